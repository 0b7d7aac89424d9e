"""The scheduler when what it was told changes: plans of another kind, backends that leave, requests
that go again, queues that are full."""

from __future__ import annotations

import pytest

from lb.balancing.batching import BatchingModelBackend
from lb.balancing.model_backend import ModelBackend
from lb.balancing.shared_execution import SharedModelBackend
from lb.domain.load import Measured
from lb.domain.schedule import (
    Capacity,
    Ending,
    QueuePlan,
    QueueRules,
    RefusalReason,
    RequestClass,
    ScheduleRefused,
    Ticket,
)
from tests.unit.balancing.test_scheduler import Desk

PLAIN = Capacity(1, is_auto=True)
BATCHES = Capacity(32, is_auto=True, max_batch=32)
SHARED = Capacity(is_shared=True)


def desk_of(limit: Capacity, *takes_s: float) -> Desk:
    """One that has learnt while a limit held."""
    desk = Desk(*[0.0 for _ in takes_s])
    desk.plan = QueuePlan(limits={}, default=limit)
    for backend, took_s in zip(desk.backends, takes_s, strict=True):
        for _ in range(8):
            ticket = desk.ticket(backend)
            desk.offer(ticket)
            desk.now += took_s
            desk.complete(ticket)
            desk.now += 0.1
    return desk


def reload(desk: Desk, limit: Capacity) -> None:
    desk.plan = QueuePlan(limits={}, default=limit)
    desk.scheduler.follow(lambda _: (desk.plan, desk.backends), desk.now)


def in_flight_by_model(tickets: list[Ticket]) -> int:
    return sum(ticket.backend is not None for ticket in tickets)


def at_once(desk: Desk, limit: Capacity) -> int:
    """How many of a hundred begin at once after a reload."""
    reload(desk, limit)
    return in_flight_by_model(desk.fill(100))


@pytest.mark.parametrize(
    ("before", "after", "begin"),
    [
        (PLAIN, BATCHES, 64),
        (BATCHES, PLAIN, 2),
        (SHARED, PLAIN, 1),  # what it costs was not learnt
        (PLAIN, SHARED, 100),
        (SHARED, BATCHES, 1),
        (BATCHES, SHARED, 100),
    ],
)
def test_idle_lane_is_of_the_kind_that_the_new_plan_says(
    before: Capacity, after: Capacity, begin: int
) -> None:
    assert at_once(desk_of(before, 0.03), after) == begin


@pytest.mark.parametrize(("after", "learnt"), [(BATCHES, 8), (PLAIN, 8), (SHARED, 0)])
def test_what_an_execution_costs_is_known_on_where_it_means_the_same(
    after: Capacity, learnt: int
) -> None:
    desk = desk_of(PLAIN, 0.03)
    at_once(desk, after)
    (model_backend,) = desk.scheduler.model_backends()
    assert model_backend.learnt == learnt


def test_what_the_backend_has_measured_is_known_to_a_lane_of_another_kind() -> None:
    desk = desk_of(SHARED, 0.03)
    measured = {(b"model", b"1"): Measured(base_s=0.04)}
    desk.scheduler.assume(desk.backends[0], measured, desk.now)
    at_once(desk, PLAIN)
    (model_backend,) = desk.scheduler.model_backends()
    assert model_backend.expected_s == 0.04


def test_batches_are_filled_under_load_as_soon_as_the_plan_says_so() -> None:
    desk = desk_of(PLAIN, 0.03)
    tickets = desk.fill(100)
    assert in_flight_by_model(tickets) == 2
    reload(desk, BATCHES)
    assert len(desk.due()) == 62
    assert [model_backend.in_flight for model_backend in desk.scheduler.model_backends()] == [64]


def test_limits_of_the_new_kind_count_what_began_before() -> None:
    desk = desk_of(BATCHES, 0.03)
    tickets = desk.fill(100)
    assert in_flight_by_model(tickets) == 64
    reload(desk, PLAIN)
    for left in range(63, 0, -1):
        desk.now += 0.03
        desk.complete(tickets[63 - left])
        assert len(desk.due()) == (1 if left == 1 else 0)
    (model_backend,) = desk.scheduler.model_backends()
    assert model_backend.in_flight == 2


@pytest.mark.parametrize("before", [PLAIN, BATCHES, SHARED])
@pytest.mark.parametrize("after", [PLAIN, BATCHES, SHARED])
@pytest.mark.parametrize("ending", Ending)
def test_everything_ends_that_began_before_and_after_a_reload(
    before: Capacity, after: Capacity, ending: Ending
) -> None:
    desk = desk_of(before, 0.03, 0.01)
    tickets = desk.fill(300)
    desk.due()
    reload(desk, after)
    desk.due()
    running = [ticket for ticket in tickets if ticket.backend is not None]
    running.sort(key=lambda ticket: -ticket.number)  # the new ones first
    ended = 0
    while running:
        desk.now += 0.001
        desk.complete(running.pop(0), ending)
        ended += 1
        running += desk.due()
    assert ended == 300
    assert [model_backend.in_flight for model_backend in desk.scheduler.model_backends()] == [0, 0]
    model_queues = list(desk.scheduler.model_queues(desk.now))
    assert not any(model_queue.waiting for model_queue in model_queues)


def test_failures_of_what_began_before_speak_against_the_backend() -> None:
    desk = desk_of(PLAIN, 0.03, 0.03)
    failing = desk.fill(1)[0]
    failed_at = failing.backend
    reload(desk, SHARED)
    desk.complete(failing, Ending.FAILED)
    assert desk.offer(desk.ticket()) is not failed_at


def test_other_kinds_follow_before_the_snapshot_was_followed_too() -> None:
    desk = desk_of(PLAIN, *[0.03] * 20)
    tickets = desk.fill(60)
    desk.due()
    waiting = [ticket for ticket in tickets if ticket.is_waiting]
    assert waiting
    desk.plan = QueuePlan(limits={}, default=BATCHES)
    desk.offer(desk.ticket())
    begun = desk.due()
    assert set(waiting) & set(begun)
    for ticket in waiting:
        desk.scheduler.drop(ticket)
    assert not any(model_queue.waiting for model_queue in desk.scheduler.model_queues(desk.now))


def test_kinds_are_those_of_the_limits() -> None:
    desk = desk_of(PLAIN, 0.03)
    for limit, kind in (
        (BATCHES, BatchingModelBackend),
        (SHARED, SharedModelBackend),
        (PLAIN, ModelBackend),
    ):
        at_once(desk, limit)
        (model_queue,) = desk.scheduler._model_queues.values()
        assert [type(model_backend) for model_backend in model_queue.model_backends.values()] == [
            kind
        ]
        assert model_queue.runs_in_order is (kind is ModelBackend)
        assert (
            model_queue.stats.best is None
            or model_queue.stats.best in model_queue.model_backends.values()
        )


# Reserved slots


def test_part_is_kept_of_what_is_left_while_a_backend_drains() -> None:
    desk = Desk(0.01, 0.01, 0.01, 0.01, limit=4, instances=4, rules=QueueRules(reserved=0.25))
    low = desk.fill(20, priority=1)
    assert in_flight_by_model(low) == 12
    left = desk.backends[:3]
    desk.scheduler.follow(lambda _: (desk.plan, left), desk.now)
    running = [ticket for ticket in low if ticket.backend is not None]
    for _ in range(200):
        desk.now += 0.01
        desk.complete(running.pop(0))
        late = Ticket(RequestClass(b"model", b"", desk.plan, left), desk.now)
        late.priority = 1
        desk.offer(late)
        running += [late] if late.backend is not None else desk.due()
        there = sum(ticket.backend in left for ticket in running)
        assert there <= 9
    assert there == 9


def test_requests_at_a_backend_that_drains_shut_nobody_out() -> None:
    desk = Desk(0.01, 0.01, limit=1, rules=QueueRules(reserved=0.25))
    (held,) = desk.fill(1, priority=1)
    left = tuple(each for each in desk.backends if each is not held.backend)
    desk.scheduler.follow(lambda _: (desk.plan, left), desk.now)
    low = desk.ticket(*left, priority=1)
    assert desk.offer(low) is left[0]


# Requests that go again


def test_request_that_goes_again_may_wait_as_long_as_any() -> None:
    desk = Desk(0.005, 0.005, limit=1, rules=QueueRules(max_wait_s=0.4))
    first, second = desk.fill(2)
    desk.now += 0.9
    desk.complete(first, Ending.FAILED)
    assert first.backend is None
    other = desk.ticket(*[each for each in desk.backends if each is not second.backend])
    assert desk.offer(other) is not None
    first.tried = tuple(each for each in desk.backends if each is not second.backend)
    assert desk.offer(first) is None
    assert desk.due() == []
    assert desk.refused() == []
    desk.now += 0.3
    assert desk.refused() == []
    desk.now += 0.1
    assert desk.refused() == [(first, RefusalReason.EXPIRED)]


def test_snapshot_does_not_prolong_a_wait() -> None:
    desk = Desk(0.005, limit=1, rules=QueueRules(max_wait_s=0.75))
    _, waiting = desk.fill(2)
    desk.now += 0.5
    desk.scheduler.follow(lambda _: (desk.plan, desk.backends), desk.now)
    desk.now += 0.25
    assert desk.due() == []
    assert desk.refused() == [(waiting, RefusalReason.EXPIRED)]


def test_pool_that_was_to_be_looked_at_when_a_place_became_free_is_looked_at() -> None:
    desk = Desk(0.19, 0.2)
    wide, narrow = desk.backends
    desk.plan = QueuePlan(limits={wide: PLAIN, narrow: Capacity(1)})
    first = desk.ticket(narrow)
    desk.offer(desk.ticket(wide))
    desk.offer(first)
    waiting = [desk.ticket(wide, narrow) for _ in range(2)]
    for ticket in waiting:
        ticket.request_class = waiting[0].request_class
        assert desk.offer(ticket) is None
    assert desk.scheduler.wake_at < desk.now + 0.2
    desk.now += 0.2
    desk.complete(first)
    assert [ticket.backend for ticket in desk.due()] == [narrow, wide]


# Full queues


def test_urgent_request_gets_the_place_of_another_one_that_may_use_more_backends() -> None:
    desk = Desk(0.005, 0.005, limit=1, rules=QueueRules(max_waiting=2))
    low = desk.fill(4, priority=2)[2:]
    middle = desk.ticket(desk.backends[0], priority=2)
    with pytest.raises(ScheduleRefused, match="full"):
        desk.offer(middle)
    urgent = desk.ticket(desk.backends[0])
    assert desk.offer(urgent) is None
    assert desk.refused() == [(low[1], RefusalReason.SHED)]
    lowest = desk.ticket(desk.backends[1], priority=3)
    with pytest.raises(ScheduleRefused, match="full"):
        desk.offer(lowest)


def test_lowest_priority_of_all_makes_room() -> None:
    desk = Desk(0.005, 0.005, limit=1, rules=QueueRules(max_waiting=3))
    desk.fill(4, priority=1)
    lowest = desk.ticket(desk.backends[1], priority=2)
    assert desk.offer(lowest) is None
    assert desk.offer(desk.ticket()) is None
    assert desk.refused() == [(lowest, RefusalReason.SHED)]


def test_where_nobody_may_wait_a_slower_backend_is_better_than_none() -> None:
    desk = Desk(0.04, 0.005, limit=1, rules=QueueRules(max_waiting=0))
    assert [desk.offer(desk.ticket()) for _ in range(2)] == [desk.backends[1], desk.backends[0]]
    with pytest.raises(ScheduleRefused, match="full"):
        desk.offer(desk.ticket())
