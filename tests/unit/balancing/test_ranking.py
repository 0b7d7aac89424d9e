"""Which idle model backend is picked without a comparison of estimates."""

from __future__ import annotations

from collections import Counter

import pytest

from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.model_backend import ModelBackend
from lb.balancing.model_stats import ModelStats
from lb.balancing.ranking import IdleRanking
from lb.domain.schedule import Capacity, Ending, QueuePlan, RequestClass, Ticket
from tests.fakes.backends import make_backend

PLAN = QueuePlan(limits={})
ONE_BY_ONE = Capacity(1, is_auto=True)


class Fleet:
    """Model backends that have learnt how long an execution takes; the time is 100."""

    def __init__(self, *takes_s: float, limit: Capacity = ONE_BY_ONE) -> None:
        self.stats = ModelStats()
        self.model_backends = []
        for number, took_s in enumerate(takes_s):
            penalty = BackendPenalty(make_backend(f"b{number}"))
            model_backend = ModelBackend(penalty, limit, self.stats)
            for _ in range(20):
                model_backend.learn(took_s, 1, 0, 99.9)
            self.model_backends.append(model_backend)
        self.number = 0

    def pick(self, now: float = 100.0) -> ModelBackend | None:
        ticket = Ticket(RequestClass(b"model", b"", PLAN, ()), now)
        return IdleRanking(self.model_backends, self.stats, 1, now).pick(ticket, now)

    def begin(self, model_backend: ModelBackend, now: float = 100.0) -> None:
        self.number += 1
        model_backend.last_pick = self.number
        model_backend.begin_idle(Ticket(RequestClass(b"model", b"", PLAN, ()), now), now)


def test_a_single_idle_model_backend_is_picked() -> None:
    fleet = Fleet(0.01)
    assert fleet.pick() is fleet.model_backends[0]


def test_idle_ones_that_are_alike_take_turns() -> None:
    fleet = Fleet(0.01, 0.0101, 0.0102)
    picked = Counter[int]()
    for number in range(1, 31):
        model_backend = fleet.pick()
        assert model_backend is not None
        model_backend.last_pick = number
        picked[fleet.model_backends.index(model_backend)] += 1
    assert set(picked.values()) == {10}


def test_a_slow_one_is_not_picked_while_a_fast_one_is_idle() -> None:
    fleet = Fleet(0.04, 0.01)
    assert fleet.pick() is fleet.model_backends[1]


def test_an_idle_one_is_picked_while_others_as_good_are_busy() -> None:
    fleet = Fleet(0.01, 0.01, 0.01)
    fleet.begin(fleet.model_backends[0])
    fleet.begin(fleet.model_backends[2])
    assert fleet.pick(100.001) is fleet.model_backends[1]


def test_the_one_with_the_least_load_is_picked() -> None:
    fleet = Fleet(0.01, 0.01, 0.01, limit=Capacity(8, is_auto=True, instances=8))
    for number, count in enumerate((3, 1, 2)):
        for _ in range(count):
            fleet.begin(fleet.model_backends[number])
    assert fleet.pick() is fleet.model_backends[1]


def test_nothing_is_picked_where_the_fastest_is_busy_and_only_slower_ones_are_idle() -> None:
    fleet = Fleet(0.01, 0.04)
    fleet.begin(fleet.model_backends[0])
    assert fleet.pick(100.001) is None


@pytest.mark.parametrize("what", ["unknown", "penalty", "newcomer", "capped", "doubt"])
def test_nothing_is_picked_where_more_than_load_counts(what: str) -> None:
    fleet = Fleet(0.01, 0.0101)
    one, other = fleet.model_backends
    now = 100.0
    if what == "unknown":
        one.forget()
    elif what == "penalty":
        one.penalty.on_failure(now)
    elif what == "newcomer":
        one.backend.set_share(0.5)
    elif what == "capped":
        one.backend.max_in_flight = 5
    else:
        other.last_pick, now = 1, 110.0
    assert fleet.pick(now) is None


def test_a_limit_that_is_found_anew_makes_a_ranking_void() -> None:
    fleet = Fleet(0.01, limit=Capacity(8, is_auto=True, instances=8))
    version = fleet.stats.version
    fleet.model_backends[0].apply(Capacity(2, instances=2, is_adaptive=True))
    assert fleet.stats.version != version
    version = fleet.stats.version
    (model_backend,) = fleet.model_backends
    now = 100.0
    while model_backend.instances == 2:
        now += 0.01
        tickets = [Ticket(RequestClass(b"model", b"", PLAN, ()), now) for _ in range(20)]
        for ticket in tickets:
            model_backend.begin(ticket, model_backend.estimate(1, 0, now), now)
        for ticket in tickets:
            model_backend.end(ticket, now + 0.0001, Ending.NEITHER)
        assert now < 200.0
    assert fleet.stats.version != version
