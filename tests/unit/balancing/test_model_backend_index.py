"""The best of very many model backends, without looking at all."""

from __future__ import annotations

from random import Random

import pytest

from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.batching import BatchingModelBackend
from lb.balancing.model_backend import ModelBackend
from lb.balancing.model_backend_index import LARGE, ModelBackendIndex
from lb.balancing.model_stats import ModelStats
from lb.balancing.shared_execution import SharedModelBackend
from lb.domain.schedule import Capacity, Ending, QueuePlan, RequestClass, Ticket
from tests.fakes.backends import make_backend

PLAN = QueuePlan(limits={})


def lanes_of(count: int, *, limit: int = 2) -> list[ModelBackend]:
    """Every third is four times as slow."""
    stats = ModelStats()
    model_backends = [
        ModelBackend(BackendPenalty(make_backend(f"b{number}")), Capacity(limit), stats)
        for number in range(count)
    ]
    for number, model_backend in enumerate(model_backends):
        for _ in range(4):
            model_backend.learn(0.04 if number % 3 == 2 else 0.01, 1, 0, 99.0)
    return model_backends


def begin(index: ModelBackendIndex, model_backend: ModelBackend, now: float) -> Ticket:
    ticket = Ticket(RequestClass(b"model", b"", PLAN, (model_backend.backend,)), now)
    model_backend.begin(ticket, model_backend.estimate(1, 0, now), now)
    index.changed(model_backend, now)
    return ticket


def test_candidates_are_the_best_idle_busy_and_full_lane() -> None:
    model_backends = lanes_of(30)
    index = ModelBackendIndex(model_backends, 100.0)
    for model_backend in model_backends[:20]:
        begin(index, model_backend, 100.0)
    for model_backend in model_backends[:10]:
        begin(index, model_backend, 100.002)
    found = index.candidates(100.003, None)
    assert found is not None
    idle, busy, full = found
    assert idle in model_backends[20:]
    assert busy in model_backends[10:20]
    assert full in model_backends[:10]
    assert all(model_backend.usual_s(100.0) < 0.02 for model_backend in found)


def test_they_are_as_good_as_those_that_a_scan_finds() -> None:
    rng = Random(1)
    model_backends = lanes_of(40)
    index = ModelBackendIndex(model_backends, 100.0)
    in_flight_by_model: list[tuple[ModelBackend, Ticket]] = []
    now = 100.0
    for _ in range(3000):
        now += rng.expovariate(3000.0)
        if in_flight_by_model and rng.random() < 0.49:
            model_backend, ticket = in_flight_by_model.pop(rng.randrange(len(in_flight_by_model)))
            model_backend.end(ticket, now, Ending.NEITHER)
            index.changed(model_backend, now)
        found = index.candidates(now, None) or model_backends
        best = min(model_backend.estimate(1, 0, now).ends_at for model_backend in model_backends)
        assert (
            min(model_backend.estimate(1, 0, now).ends_at for model_backend in found) - now
            <= (best - now) * 1.1 + 1e-9
        )
        open_lanes = [
            model_backend for model_backend in found if model_backend.estimate(1, 0, now).may_begin
        ]
        if open_lanes:
            chosen = rng.choice(open_lanes)
            in_flight_by_model.append((chosen, begin(index, chosen, now)))


def test_only_lanes_that_may_be_given_are() -> None:
    model_backends = lanes_of(30)
    index = ModelBackendIndex(model_backends, 100.0)
    among = frozenset(model_backends[3:])
    assert index.candidates(100.0, among) is not None
    for _ in range(5):
        found = index.candidates(100.0, among)
        assert found
        assert set(found) <= among


def test_where_hardly_any_may_be_given_all_are_to_be_looked_at() -> None:
    model_backends = lanes_of(30)
    index = ModelBackendIndex(model_backends, 100.0)
    assert index.candidates(100.0, frozenset(model_backends[20:21])) is None


def test_backend_at_its_limit_is_passed_over() -> None:
    model_backends = lanes_of(30)
    index = ModelBackendIndex(model_backends, 100.0)
    first = index.candidates(100.0, None)
    assert first
    first[0].backend.max_in_flight = 1
    first[0].backend.in_flight = 1
    second = index.candidates(100.0, None)
    assert second
    assert second[0] is not first[0]


def test_slow_start_is_noticed_without_an_event() -> None:
    model_backends = lanes_of(LARGE + 1)
    for model_backend in model_backends[:-1]:
        model_backend.backend.set_share(0.2)
    model_backends[-1].backend.set_share(0.01)
    index = ModelBackendIndex(model_backends, 100.0)
    for model_backend in model_backends:
        model_backend.last_pick = 1
    model_backends[-1].last_pick = 0
    model_backends[-1].backend.set_share(1.0)
    found = index.candidates(102.0, None)
    assert found == [model_backends[-1]]


def test_void_entries_do_not_pile_up() -> None:
    model_backends = lanes_of(20)
    index = ModelBackendIndex(model_backends, 100.0)
    for _ in range(2000):
        index.changed(model_backends[0], 100.0)
    assert len(index._idle) <= 4 * len(model_backends) + 1


BATCHES = Capacity(16, is_auto=True, instances=2, max_batch=8)
ONE_BY_ONE = Capacity(2, is_auto=True, instances=2)
SIDE_BY_SIDE = Capacity(is_shared=True)


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        (ModelBackend, ONE_BY_ONE),
        (BatchingModelBackend, BATCHES),
        (SharedModelBackend, SIDE_BY_SIDE),
    ],
)
def test_newcomer_that_takes_no_more_does_not_hide_the_others(
    kind: type[ModelBackend], limit: Capacity
) -> None:
    stats = ModelStats()
    model_backends = [
        kind(BackendPenalty(make_backend(f"b{number}")), limit, stats)
        for number in range(LARGE + 2)
    ]
    *old, new = model_backends
    for number, model_backend in enumerate(old):
        model_backend.last_pick = 100 + number
        for _ in range(4):
            model_backend.learn(0.01, 1, 0, 99.0)
    index = ModelBackendIndex(model_backends, 100.0)
    while new.estimate(1, 0, 100.0).may_begin and new.in_flight < limit.instances:
        begin(index, new, 100.0)
    for model_backend in old:
        begin(index, model_backend, 100.0)
    for now in (100.001, 100.02, 100.5, 103.0):
        found = index.candidates(now, None) or model_backends
        assert any(model_backend.estimate(1, 0, now).may_begin for model_backend in found)


def test_newcomer_that_is_not_known_is_no_free_one_among_those_that_have_room() -> None:
    model_backends = lanes_of(LARGE + 1, limit=3)
    index = ModelBackendIndex(model_backends, 100.0)
    for model_backend in model_backends:
        begin(index, model_backend, 100.0)
    model_backends[0].forget()
    index.outdated()
    found = index.candidates(100.0001, None)
    assert found
    busy, full = found
    assert full is model_backends[0]
    assert busy.estimate(1, 0, 100.0001).may_begin


def test_number_below_the_instances_is_a_limit_like_others() -> None:
    stats = ModelStats()
    limit = Capacity(1, instances=4)
    model_backends = [
        ModelBackend(BackendPenalty(make_backend(f"b{number}")), limit, stats)
        for number in range(LARGE + 1)
    ]
    index = ModelBackendIndex(model_backends, 100.0)
    for model_backend in model_backends:
        begin(index, model_backend, 100.0)
    found = index.candidates(100.001, None)
    assert found
    assert len(found) == 1
