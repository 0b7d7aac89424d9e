"""Tickets, plans and refusals."""

from __future__ import annotations

from lb.domain.backend import Address, Backend, BackendSpec
from lb.domain.schedule import (
    POSITION_BOUNDS,
    Capacity,
    PositionHistogram,
    QueuePlan,
    RefusalReason,
    RequestClass,
    ScheduleRefused,
    Ticket,
)


def backend(name: str) -> Backend:
    return Backend(BackendSpec(name=name, http=Address("127.0.0.1", 8000)))


def test_plan_has_the_limit_of_a_backend_or_the_default() -> None:
    one, two = backend("one"), backend("two")
    plan = QueuePlan(limits={one: Capacity(4)}, default=Capacity(2))
    assert plan.limit(one).concurrency == 4
    assert plan.limit(two).concurrency == 2


def test_ticket_waits_nowhere_at_first() -> None:
    one = backend("one")
    ticket = Ticket(RequestClass(b"resnet", b"", QueuePlan(limits={}), (one,)), 5.0)
    assert ticket.backend is None
    assert not ticket.is_waiting
    assert ticket.arrived_at == 5.0
    assert ticket.deadline == float("inf")


def test_refusal_says_when_to_come_again() -> None:
    refused = ScheduleRefused(RefusalReason.FULL, 0.25)
    assert refused.retry_after_s == 0.25
    assert str(refused) == "full"


def test_places_are_counted_in_the_bucket_that_they_belong_to() -> None:
    for position in (0, 1, 2, 3, 4, 65_535, 65_536, 10**9):
        places = PositionHistogram()
        places.add(position)
        bucket = places.counts.index(1)
        assert bucket == len(POSITION_BOUNDS) or position <= POSITION_BOUNDS[bucket]
        assert bucket == 0 or position > POSITION_BOUNDS[bucket - 1]
        assert places.sum == position
