"""Which backend gets the next sequence."""

from __future__ import annotations

from lb.balancing.open_sequences import OpenModel, OpenSequences, least_loaded
from lb.balancing.step_latency import StepLatencies
from lb.domain.backend import Backend
from tests.fakes.backends import make_backend, make_backends


class Model:
    """The open sequences of a model."""

    def __init__(self) -> None:
        self.latencies = StepLatencies()
        self.model = OpenModel(b"m", 1, self.latencies)

    def runs(self, backend: Backend, count: int) -> None:
        """Have a number of sequences open on a backend."""
        found = OpenSequences(self.model, backend, len(self.model.by_backend))
        found.open = count
        self.model.by_backend[backend] = found

    def takes(self, backend: Backend, step_s: float) -> None:
        """A step on a backend takes so long."""
        for _ in range(20):
            self.latencies.of(backend).ended(100.0, 100.0 + step_s)

    def choose(self, *candidates: Backend, slots: int = 0) -> Backend:
        return least_loaded(self.latencies, self.model.by_backend, candidates, slots)


def test_a_faster_backend_gets_as_many_more_as_it_is_faster() -> None:
    fast, slow = make_backends(0, 0)
    model = Model()
    model.takes(fast, 0.01)
    model.takes(slow, 0.04)
    model.runs(slow, 1)
    model.runs(fast, 6)
    assert model.choose(slow, fast) is fast
    model.runs(fast, 7)
    fast.last_sequence = 1
    assert model.choose(slow, fast) is slow


def test_four_requests_in_flight_count_like_an_open_sequence() -> None:
    one, two = make_backends(9, 0)
    model = Model()
    model.runs(two, 2)
    assert model.choose(one, two) is two
    model.runs(two, 3)
    assert model.choose(one, two) is one


def test_an_unknown_backend_counts_as_fast_as_the_fastest_for_its_weight() -> None:
    slow, fast, new = make_backends(0, 0, 0)
    model = Model()
    model.takes(slow, 0.04)
    model.takes(fast, 0.01)
    model.runs(fast, 2)
    model.runs(new, 1)
    assert model.choose(slow, fast, new) is new
    light = make_backend("light", weight=0.25)
    assert model.choose(fast, light) is fast


def test_weights_count_while_no_step_was_answered() -> None:
    light, heavy = make_backend("light"), make_backend("heavy", weight=3.0)
    model = Model()
    model.runs(light, 1)
    model.runs(heavy, 4)
    assert model.choose(light, heavy) is heavy
    model.runs(heavy, 6)
    assert model.choose(light, heavy) is light


def test_a_backend_that_starts_slowly_gets_fewer() -> None:
    old, young = make_backends(0, 0)
    young.set_share(0.25)
    model = Model()
    model.takes(old, 0.01)
    model.takes(young, 0.01)
    model.runs(old, 2)
    assert model.choose(old, young) is old


def test_sequences_that_were_lost_with_their_backend_do_not_count() -> None:
    one, two = make_backends(0, 0)
    model = Model()
    model.runs(one, 5)
    model.runs(two, 1)
    one.died()
    assert model.choose(one, two) is one


def test_a_backend_without_a_free_slot_comes_last() -> None:
    one, two = make_backends(0, 9)
    model = Model()
    model.runs(one, 4)
    model.runs(two, 3)
    assert model.choose(one, two, slots=4) is two
    assert model.choose(one, two, slots=5) is one
    assert model.choose(one, two, slots=3) is one


def test_equal_ones_take_turns() -> None:
    one, two = make_backends(0, 0)
    one.last_sequence = 7
    assert Model().choose(one, two) is two
