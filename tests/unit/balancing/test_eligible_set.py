"""Which model backend is chosen."""

from __future__ import annotations

from collections import Counter

import pytest

from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.eligible_set import EligibleSet
from lb.balancing.model_backend import ModelBackend
from lb.balancing.model_stats import ModelStats
from lb.balancing.selection import Selection
from lb.domain.schedule import Capacity, QueuePlan, QueueRules, RequestClass, Ticket
from tests.fakes.backends import make_backend

PLAN = QueuePlan(limits={})


def pool_of(*takes_s: float, limit: int = 2) -> EligibleSet:
    """Model backends that have learnt how long an execution takes."""
    stats = ModelStats()
    model_backends = []
    for number, took_s in enumerate(takes_s):
        model_backend = ModelBackend(
            BackendPenalty(make_backend(f"b{number}")), Capacity(limit), stats
        )
        for _ in range(20 if took_s else 0):
            model_backend.learn(took_s, 1, 0, 99.0)
        model_backends.append(model_backend)
    return EligibleSet(tuple(model_backends), QueueRules(), stats)


def begin(pool: EligibleSet, model_backend: ModelBackend, now: float, number: int = 0) -> None:
    estimate = model_backend.estimate(1, 0, now)
    model_backend.begin(Ticket(RequestClass(b"model", b"", PLAN, ()), now), estimate, now)
    model_backend.last_pick = number


def decide(pool: EligibleSet, now: float = 100.0) -> Selection:
    return pool.decide(Ticket(RequestClass(b"model", b"", PLAN, ()), now), now)


def chosen(pool: EligibleSet, now: float = 100.0) -> ModelBackend | None:
    return decide(pool, now).chosen


def test_fastest_idle_lane_is_chosen() -> None:
    pool = pool_of(0.04, 0.005, 0.01)
    assert chosen(pool) is pool.model_backends[1]
    assert decide(pool).is_best(100.0)
    assert decide(pool).best_estimate.ends_at == pytest.approx(100.005)


def test_second_goes_behind_the_first_if_it_ends_sooner_there() -> None:
    pool = pool_of(0.04, 0.005, 0.015)
    begin(pool, pool.model_backends[1], 100.0)
    assert chosen(pool) is pool.model_backends[1]


def test_full_lane_may_be_better_than_an_open_one() -> None:
    pool = pool_of(0.04, 0.005)
    begin(pool, pool.model_backends[1], 100.0)
    begin(pool, pool.model_backends[1], 100.0)
    assert chosen(pool) is pool.model_backends[0]
    assert not decide(pool).is_best(100.0)
    assert decide(pool).best is pool.model_backends[1]


def test_backend_that_has_just_come_gets_what_would_wait_elsewhere() -> None:
    pool = pool_of(0.01, 0.01, limit=1)
    old, new = pool.model_backends
    new.backend.set_share(0.1)
    for _ in range(2):
        assert chosen(pool) is old
        new.last_pick += 1
    begin(pool, old, 100.0)
    assert chosen(pool) is new
    assert decide(pool).is_best(100.0)


def test_backend_that_has_just_come_is_not_made_faster_than_it_is() -> None:
    pool = pool_of(0.01, 0.04, limit=1)
    old, new = pool.model_backends
    new.backend.set_share(0.5)
    begin(pool, old, 100.0)
    assert chosen(pool) is new
    assert not decide(pool).is_best(100.0)


def test_lanes_that_nobody_would_choose_do_not_keep_a_request_from_one_that_has_just_come() -> None:
    pool = pool_of(0.01, 0.01, 0.01, limit=1)
    busy, shut, new = pool.model_backends
    new.backend.set_share(0.1)
    begin(pool, busy, 100.0)
    shut.backend.max_in_flight = shut.backend.in_flight = 1
    assert chosen(pool) is new
    assert decide(pool).is_best(100.0)


def test_of_idle_lanes_one_that_has_just_come_gets_little() -> None:
    pool = pool_of(0.01, 0.01, 0.05, 0.2)
    new = pool.model_backends[0]
    new.backend.set_share(0.1)
    begun: Counter[str] = Counter()
    for number in range(1, 31):
        model_backend = chosen(pool)
        assert model_backend is not None
        assert decide(pool).is_best(100.0)
        model_backend.last_pick = number
        begun[model_backend.backend.spec.name] += 1
    assert begun == {"b1": 30}
    begin(pool, pool.model_backends[1], 100.0)
    assert chosen(pool) is pool.model_backends[2]
    begin(pool, pool.model_backends[2], 100.0)
    assert chosen(pool) is new


def test_none_is_chosen_where_all_are_full() -> None:
    pool = pool_of(0.005, 0.005, limit=1)
    for model_backend in pool.model_backends:
        begin(pool, model_backend, 100.0)
    assert chosen(pool) is None


def test_lanes_that_are_as_good_take_turns() -> None:
    pool = pool_of(0.0100, 0.0102, 0.0101)
    picked = Counter[int]()
    for number in range(1, 301):
        model_backend = chosen(pool)
        assert model_backend is not None
        model_backend.last_pick = number
        picked[pool.model_backends.index(model_backend)] += 1
    assert set(picked.values()) == {100}


def test_unknown_lane_is_tried() -> None:
    pool = pool_of(0.005, 0.0)
    pool.stats.best_s = 0.005
    pool.model_backends[0].last_pick = 1
    assert chosen(pool) is pool.model_backends[1]


def test_requests_that_others_end_first_are_counted() -> None:
    pool = pool_of(0.005, 0.01, 0.04)
    slow = pool.model_backends[2]
    assert pool.before(100.04, slow, 100.0) == 8 + 4
    begin(pool, pool.model_backends[0], 100.0)
    begin(pool, pool.model_backends[0], 100.0)
    assert pool.before(100.04, slow, 100.0) == 6 + 4


def test_unused_lane_is_tried_again() -> None:
    pool = pool_of(0.005, 0.04)
    pool.model_backends[0].last_pick = 1
    pool.stats.best_s = 0.005
    assert chosen(pool) is pool.model_backends[0]
    for _ in range(20):
        pool.model_backends[0].learn(0.005, 1, 0, 109.9)
    assert chosen(pool, 110.0) is pool.model_backends[1]


def test_rate_is_the_sum_of_what_lanes_do() -> None:
    assert pool_of(0.005, 0.01, 0.0).rate(100.0) == pytest.approx(300.0)


def test_slow_lane_is_used_early_where_it_makes_nobody_late() -> None:
    pool = pool_of(0.005, 0.04, limit=8)
    for _ in range(4):
        begin(pool, pool.model_backends[0], 100.0)
    assert chosen(pool) is pool.model_backends[0]
    pool.stats.tail_s = 0.015
    assert chosen(pool) is pool.model_backends[0]
    pool.stats.tail_s = 0.035
    assert chosen(pool) is pool.model_backends[1]


def test_nobody_is_passed_where_lanes_are_alike() -> None:
    tie_tolerance, uneven = pool_of(0.01, 0.01), pool_of(0.005, 0.04)
    for pool in (tie_tolerance, uneven):
        pool.stats.usual.learn(0.01, 1, 0, 99.0)
        for number in range(100):
            pool.on_arrival(100.0 + number / 100)
            pool.stats.on_arrival(0.05, 100.0 + number / 100)
    assert tie_tolerance.max_overtaken_s() == 0.0
    assert 0.0 < uneven.max_overtaken_s() < uneven.stats.tail_s


def test_the_newest_goes_first_over_all_workers_until_an_older_one_was_overtaken_for_long() -> None:
    pool = pool_of(0.005, 0.04)
    pool.stats.usual.learn(0.01, 1, 0, 99.0)
    for number in range(100):
        pool.on_arrival(100.0 + number / 100)
        pool.stats.on_arrival(0.05, 100.0 + number / 100)
    now, most_s = 101.0, pool.max_overtaken_s()

    def order(waited_s: float) -> tuple[int, float, float]:
        """That of a worker's queue with one request."""
        ticket = Ticket(RequestClass(b"model", b"", PLAN, ()), now - waited_s)
        ticket.number, ticket.work_s = 1, 0.01
        pool.queue.add(ticket)
        waits = pool.waits(now)
        pool.queue.remove(ticket)
        return pool.order(waits, now)

    assert order(1.1 * most_s) < order(0.1 * most_s) < order(0.9 * most_s)


def test_idle_lanes_that_differ_little_take_turns() -> None:
    pool = pool_of(0.01, 0.012, 0.02)
    for model_backend in pool.model_backends:
        model_backend.cost.unsure_s = 0.0
    begun: Counter[str] = Counter()
    for number in range(1, 31):
        model_backend = chosen(pool)
        assert model_backend is not None
        assert decide(pool).is_best(100.0)
        model_backend.last_pick = number
        begun[model_backend.backend.spec.name] += 1
    assert begun == {"b0": 15, "b1": 15}
