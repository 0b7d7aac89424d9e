"""Requests that go again: soon, but not beside each other."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from lb.domain.backend import AppProtocol, Backend
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Outcome, Reason
from lb.domain.pool import PoolRef
from lb.domain.retry import RetryRules
from lb.proxy.exchange import Attempt, Exchange
from lb.proxy.reruns import RerunLimits
from tests.fakes.backends import make_backend
from tests.fakes.clock import FakeLoop
from tests.fakes.records import INFER
from tests.fakes.relay import snapshot_of
from tests.fakes.work import instructions


def begins(one: Exchange, backend: Backend, at: float) -> Attempt:
    """An attempt at a backend from then on."""
    attempt = Attempt(one, backend, backend.port(one.protocol), at)
    one.attempt, one.backend = attempt, backend
    one.attempts += 1
    return attempt


def attempt_of(one: Exchange) -> Attempt:
    """The last one of an exchange that has one."""
    assert one.attempt is not None
    return one.attempt


class Bench:
    """Two backends, and requests that were at a third."""

    def __init__(self, share: float = 0.2, floor: float = 10.0) -> None:
        self.loop = FakeLoop()
        self.backends = [make_backend(f"b{number}") for number in range(2)]
        self.gone = make_backend("gone")
        self.ref = PoolRef(snapshot_of(self.backends))
        self.reruns = RerunLimits(
            self.ref,
            self.loop.time,
            RetryRules(share=share, floor=floor),
            rng=Random(1),
            schedule=self.loop.call_later,
        )
        self.went: list[Exchange] = []

    def lost(self, model: bytes = b"m", after_s: float = 0.1) -> Exchange:
        """A request whose connection was lost."""
        return self.loses(Exchange(AppProtocol.GRPC, INFER, "10.0.0.9:4711", 0.0), model, after_s)

    def loses(self, one: Exchange, model: bytes = b"m", after_s: float = 0.1) -> Exchange:
        """The connection of a request is lost after so long."""
        one.model = model
        begins(one, self.gone, self.loop.time() - after_s).outcome = Outcome.LOST
        one.tried = (self.gone,)
        return one

    def takes(self, one: Exchange, outcome: Outcome) -> bool:
        """Whether a request goes again whose attempt ended so."""
        return self.reruns.note_loss(one, outcome) and self.reruns.take(one, outcome)

    def waits(self, one: Exchange) -> None:
        """It shall go again, to whoever has the fewest of its kind."""

        def place() -> None:
            backend: Backend = self.reruns.spread(tuple(self.backends))[0]
            begins(one, backend, self.loop.time())
            self.went.append(one)

        self.reruns.later(one, place)


def test_a_mistake_in_placing_one_keeps_no_other_from_going() -> None:
    bench = Bench()

    def fails() -> None:
        raise RuntimeError("a bug")

    bench.reruns.later(bench.lost(), fails)
    bench.waits(one := bench.lost())
    bench.loop.advance(0.1)
    assert len(bench.loop.errors) == 1
    assert bench.went == [one]
    assert len(bench.reruns) == 0


def test_one_at_a_time_goes_to_each_backend() -> None:
    bench = Bench()
    for _ in range(3):
        bench.waits(bench.lost())
    bench.loop.advance(0.1)
    assert [one.backend for one in bench.went] == bench.backends
    attempt_of(bench.went[0]).outcome = Outcome.ANSWERED
    bench.loop.advance(0.02)
    assert [one.backend for one in bench.went] == [*bench.backends, bench.backends[0]]


@pytest.mark.parametrize("answered", [True, False])
def test_an_answer_that_has_begun_makes_room(answered: bool) -> None:
    bench = Bench()
    for _ in range(3):
        bench.waits(bench.lost())
    bench.loop.advance(0.1)
    if answered:
        attempt_of(bench.went[1]).first_byte_at = bench.loop.time()
    bench.loop.advance(0.02)
    assert len(bench.went) == (3 if answered else 2)


def test_nobody_waits_for_others_for_long() -> None:
    bench = Bench()
    for _ in range(5):
        bench.waits(bench.lost())
    bench.loop.advance(0.3)
    assert len(bench.went) == 5


def lost_after(bench: Bench, took_s: float, model: bytes = b"m") -> Exchange:
    one = bench.lost(model, took_s)
    assert bench.takes(one, Outcome.LOST)
    return one


def test_where_requests_take_long_one_waits_for_others_longer() -> None:
    bench = Bench()
    for took_s in (0.1, 0.5, 0.3, 0.2):
        bench.waits(lost_after(bench, took_s))
    bench.loop.advance(0.9)
    assert len(bench.went) == 2, "one at each of two backends"
    bench.loop.advance(0.2)
    assert len(bench.went) == 4, "twice the longest of them"
    assert bench.loop.pending == 0


def test_what_another_model_takes_makes_nobody_wait() -> None:
    bench = Bench()
    for _ in range(2):
        bench.waits(lost_after(bench, 2.0, b"slow"))
    bench.loop.advance(0.05)
    bench.waits(one := bench.lost())
    bench.loop.advance(0.3)
    assert bench.went[-1] is one


def test_nobody_waits_for_seconds_because_a_server_had_hung() -> None:
    bench = Bench()
    for _ in range(3):
        bench.waits(lost_after(bench, 60.0))
    bench.loop.advance(3.1)
    assert len(bench.went) == 3


def test_who_was_late_makes_nobody_wait_for_longer() -> None:
    bench = Bench()
    for _ in range(3):
        one = bench.lost(after_s=2.0)
        assert bench.takes(one, Outcome.LATE)
        bench.waits(one)
    bench.loop.advance(0.3)
    assert len(bench.went) == 3


class Due(Exchange):
    """Its client waits so long."""

    at = 0.0

    @property
    def deadline(self) -> float:
        return self.at


@pytest.mark.interpreted("a class of its own")
def test_one_does_not_wait_until_its_answer_would_be_late() -> None:
    bench = Bench()
    for _ in range(2):
        bench.waits(lost_after(bench, 0.4))
    bench.loop.advance(0.05)
    hurried = Due(AppProtocol.GRPC, INFER, "10.0.0.9:4711", 0.0)
    bench.loses(hurried)
    hurried.at = bench.loop.time() + 0.5
    bench.waits(hurried)
    bench.loop.advance(0.13)
    assert bench.went[-1] is hurried


def test_who_has_not_killed_its_server_for_long_keeps_nobody_waiting() -> None:
    bench = Bench()
    for _ in range(2):
        bench.waits(bench.lost())
    bench.loop.advance(10.1)
    bench.waits(one := bench.lost())
    bench.loop.advance(0.06)
    assert bench.went[-1] is one


def test_of_very_many_some_go_together() -> None:
    bench = Bench()
    for _ in range(80):
        bench.waits(bench.lost())
    bench.loop.advance(0.03)
    assert 10 <= len(bench.went) <= 20, "at most ten for each backend"


@pytest.mark.interpreted("instructions are counted")
def test_twice_as_many_that_go_again_are_twice_the_work() -> None:
    work = []
    for count in (100, 200):
        bench = Bench()
        for _ in range(count):
            bench.waits(bench.lost())
        work.append(instructions(partial(bench.loop.advance, 0.3)))
        assert len(bench.went) == count
    assert work[1] < 2.5 * work[0]


def test_after_the_second_server_requests_of_the_model_are_not_forgiven() -> None:
    bench = Bench()
    killer = bench.lost()
    victim = bench.lost()
    for _ in range(2):
        bench.takes(killer, Outcome.LOST)
    assert bench.takes(victim, Outcome.LOST)
    bench.loop.advance(1.0)
    assert not bench.takes(bench.lost(), Outcome.LOST)
    assert bench.takes(bench.lost(b"other"), Outcome.LOST)
    assert bench.takes(bench.lost(), Outcome.PROTOCOL_ERROR)
    assert bench.reruns.refused == {"lost_twice": 1, "deadly_model": 1}
    bench.loop.advance(60.0)
    assert bench.takes(bench.lost(), Outcome.LOST)


def test_the_budget_holds() -> None:
    bench = Bench(share=0.2, floor=0.0)
    bench.backends[0].port(AppProtocol.GRPC).attempts = 50
    bench.loop.advance(2.0)
    allowed = [bench.takes(bench.lost(), Outcome.RESET) for _ in range(12)]
    assert allowed == [True] * 10 + [False] * 2
    assert bench.reruns.refused == {"budget": 2}


def dies(bench: Bench, outcome: Outcome, count: int) -> int:
    """A backend with so many requests in flight dies. Returns how many of them may go again."""
    bench.gone.in_flight = count
    allowed = 0
    for _ in range(count):
        bench.gone.in_flight -= 1
        allowed += bench.takes(bench.lost(after_s=60.0), outcome)
    return allowed


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.STALE, Outcome.STALLED])
def test_all_that_a_dead_backend_had_goes_again(outcome: Outcome) -> None:
    bench = Bench()
    assert dies(bench, outcome, 500) == 500
    assert not bench.reruns.refused


def test_a_backend_that_dies_again_and_again_has_the_budget_only() -> None:
    bench = Bench(share=0.2, floor=0.0)
    assert dies(bench, Outcome.LOST, 50) == 50
    bench.loop.advance(2.0)
    assert dies(bench, Outcome.LOST, 50) == 0
    assert bench.reruns.refused == {"budget": 50}
    bench.loop.advance(10.0)
    assert dies(bench, Outcome.LOST, 50) == 50


def test_a_death_spends_nothing_of_the_budget() -> None:
    bench = Bench(share=0.2, floor=1.0)
    assert dies(bench, Outcome.LOST, 50) == 50
    assert [bench.takes(bench.lost(), Outcome.RESET) for _ in range(11)].count(True) == 10


def test_without_a_budget_nothing_that_may_have_run_goes_again() -> None:
    assert dies(Bench(share=0.0, floor=0.0), Outcome.LOST, 5) == 0


@pytest.mark.parametrize(
    ("heard_after_s", "goes"), [(None, False), (0.0, False), (0.01, False), (0.05, True)]
)
@pytest.mark.parametrize("how", ["last_byte_at", "probed_at"])
def test_a_server_that_was_heard_since_did_not_die(
    how: str, heard_after_s: float | None, goes: bool
) -> None:
    bench = Bench()
    one = bench.lost()
    one.backend = bench.gone
    assert bench.takes(one, Outcome.LOST)
    if heard_after_s is not None:
        setattr(bench.gone.port(AppProtocol.HTTP), how, bench.loop.time() + heard_after_s)
    one.backend = bench.backends[0]
    bench.loop.advance(0.2)
    assert bench.takes(one, Outcome.LOST) is goes
    assert bench.reruns.refused == ({} if goes else {"lost_twice": 1})
    assert bench.takes(bench.lost(), Outcome.LOST)
    bench.loop.advance(1.0)
    assert bench.takes(bench.lost(), Outcome.LOST) is goes


def is_replaced(backend: Backend, sign: str, at: float) -> None:
    """A process has died, and another one has answered in its place since."""
    for port in backend.ports:
        assert port is not None
        port.probed_at = at + 2.0
        if sign == "refused":
            port.left_before = at
    if sign == "died":
        backend.died()


@pytest.mark.parametrize("sign", ["refused", "died", "cut"])
@pytest.mark.parametrize("is_hedged", [False, True])
def test_a_server_that_is_back_did_not_survive_the_request_that_it_died_of(
    sign: str, is_hedged: bool
) -> None:
    bench = Bench()
    first, second = bench.backends
    one = bench.lost()
    began = begins(one, first, bench.loop.time())
    bench.loop.advance(5.0)
    if is_hedged:
        bench.reruns.ended_beside(began, Outcome.LOST, bench.loop.time())
    else:
        assert bench.takes(one, Outcome.LOST)
    is_replaced(first, sign, bench.loop.time())
    begins(one, second, bench.loop.time())
    bench.loop.advance(5.0)
    goes = sign == "cut"
    assert bench.takes(one, Outcome.LOST) is goes
    assert bench.reruns.refused == ({} if goes else {"lost_twice": 1})
    assert bench.reruns.poison_models.blocked(bench.loop.time()) == ([] if goes else [b"m"])


def test_a_server_that_died_before_it_had_the_request_did_not_die_of_it() -> None:
    bench = Bench()
    first, second = bench.backends
    is_replaced(first, "refused", bench.loop.time())
    first.died()
    bench.loop.advance(2.0)
    one = bench.lost()
    begins(one, first, bench.loop.time())
    assert bench.takes(one, Outcome.LOST)
    bench.loop.advance(1.0)
    first.port(AppProtocol.GRPC).last_byte_at = bench.loop.time()
    begins(one, second, bench.loop.time())
    assert bench.takes(one, Outcome.LOST)


@pytest.mark.parametrize("is_hedged", [False, True])
@pytest.mark.parametrize("how", ["gone", "replaced", "hung", "there"])
def test_who_was_late_where_the_server_died_since_goes_nowhere(how: str, is_hedged: bool) -> None:
    bench = Bench()
    backend = bench.backends[1] if how in ("there", "replaced") else bench.gone
    backend.port(AppProtocol.GRPC).is_hung = how == "hung"
    one = bench.lost()
    late = begins(one, backend, bench.loop.time() - 0.1)
    if is_hedged:
        bench.reruns.ended_beside(late, Outcome.LATE, bench.loop.time())
    else:
        assert bench.takes(one, Outcome.LATE)
    if how == "replaced":
        is_replaced(backend, "refused", bench.loop.time())
    begins(one, bench.backends[0], bench.loop.time())
    bench.loop.advance(0.2)
    goes = how in ("hung", "there")
    assert bench.takes(one, Outcome.LATE) is goes
    assert bench.reruns.refused == ({} if goes else {"lost_twice": 1})
    bench.loop.advance(1.0)
    assert bench.takes(bench.lost(), Outcome.LATE) is goes


def test_one_that_waits_for_its_turn_counts_again_once_it_is_under_way() -> None:
    bench = Bench()
    one = bench.lost()
    bench.reruns.later(one, lambda: None)  # it joins a queue
    bench.loop.advance(0.05)
    assert len(bench.reruns) == 0
    both = tuple(bench.backends)
    assert bench.reruns.spread(both) == both
    begins(one, both[0], bench.loop.time())
    assert bench.reruns.spread(both) == both[1:]


def test_one_that_goes_again_twice_is_counted_where_it_is_now() -> None:
    bench = Bench()
    one = bench.lost()
    bench.waits(one)
    bench.loop.advance(0.05)
    attempt_of(one).outcome = Outcome.PROTOCOL_ERROR
    bench.waits(one)
    bench.loop.advance(0.05)
    assert bench.went == [one, one]
    here = attempt_of(one).backend
    (there,) = (backend for backend in bench.backends if backend is not here)
    bench.waits(other := bench.lost())
    bench.loop.advance(0.05)
    assert attempt_of(other).backend is there
    assert bench.reruns.spread((here, there)) == (here, there)


def test_what_goes_again_avoids_where_it_was_and_the_company_of_others() -> None:
    bench = Bench()
    eligible = (*bench.backends, bench.gone)
    one, other = bench.lost(), bench.lost()
    assert bench.reruns.avoided(Exchange(AppProtocol.GRPC, INFER, "", 0.0), eligible) == ()
    assert bench.reruns.avoided(other, eligible) == (bench.gone,)
    bench.waits(one)
    bench.loop.advance(0.05)
    assert one.backend is not None
    assert set(bench.reruns.avoided(other, eligible)) == {bench.gone, one.backend}
    assert bench.reruns.avoided(other, (one.backend, bench.gone)) == (bench.gone,)


@pytest.mark.parametrize("sign", ["a byte", "gone", "none"])
def test_who_lost_two_connections_at_once_waits_to_see_whether_the_first_server_died(
    sign: str,
) -> None:
    bench = Bench()
    first, second = bench.backends
    one = bench.lost()
    one.tried = (first, second)
    refused: list[RequestRefused] = []

    def place() -> None:
        try:
            bench.reruns.check(one)
        except RequestRefused as refusal:
            refused.append(refusal)
        else:
            bench.went.append(one)

    one.backend = first
    assert bench.takes(one, Outcome.LOST)
    one.backend = second
    assert bench.takes(one, Outcome.LOST)
    bench.reruns.later(one, place)
    bench.loop.advance(0.3)
    assert not bench.went
    assert not refused
    if sign == "a byte":
        first.port(AppProtocol.HTTP).last_byte_at = bench.loop.time()
    elif sign == "gone":
        bench.ref.publish(snapshot_of([second]))
    bench.loop.advance(0.05 if sign != "none" else 1.5)
    assert bench.went == ([one] if sign == "a byte" else [])
    assert [each.reason for each in refused] == ([] if sign == "a byte" else [Reason.UPSTREAM_LOST])
    assert bench.reruns.poison_models.seen == (sign != "a byte")
    assert bench.loop.pending == 0
