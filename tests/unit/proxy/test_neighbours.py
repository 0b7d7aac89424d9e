"""Workers that wake each other over real sockets."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from lb.domain.schedule import Capacity, Ending, QueuePlan, RequestClass, Ticket
from lb.net.bell import Bell
from lb.proxy.neighbours import Neighbours
from lb.sharing.memory import attach, create
from tests.fakes.backends import make_backend


def name_of(test: str) -> str:
    """No other process has it."""
    return f"test-{os.getpid()}-{test}"


async def test_an_end_in_one_worker_begins_a_request_that_another_one_has_queued() -> None:
    loop = asyncio.get_running_loop()
    descriptor = create(2)
    workers = [Neighbours(attach(descriptor, 2), index, 2) for index in range(2)]
    os.close(descriptor)
    name = name_of("end")
    try:
        for worker in workers:
            worker.start(loop, name, time.monotonic)
        for worker in workers:
            worker.tick(time.monotonic(), 0)
        one, two = (worker.scheduler for worker in workers)
        begun = loop.create_future()

        def look() -> None:
            ticket = two.next_due(time.monotonic())
            if ticket is not None:
                begun.set_result(ticket)

        two.on_room = look
        tickets = []
        for _ in range(2):  # each worker has a record of its own of the only backend
            backends = (make_backend(),)
            request_class = RequestClass(
                b"model", b"", QueuePlan(limits={}, default=Capacity(1)), backends
            )
            tickets.append(Ticket(request_class, time.monotonic()))
        assert one.offer(tickets[0], time.monotonic()) is not None
        assert two.offer(tickets[1], time.monotonic()) is None
        one.complete(tickets[0], time.monotonic(), Ending.GOOD)
        assert await asyncio.wait_for(begun, 30) is tickets[1]
    finally:
        for worker in workers:
            worker.close()


def test_what_ends_when_the_event_loop_is_closed_is_told_of() -> None:
    loop = asyncio.new_event_loop()
    descriptor = create(2)
    one, two = [Neighbours(attach(descriptor, 2), index, 2) for index in range(2)]
    os.close(descriptor)
    one.start(loop, name_of("close"), lambda: 1.0)
    one.tick(1.0, 0)
    two.scheduler.tick(1.0)
    plan = QueuePlan(limits={}, default=Capacity(1))
    tickets = [Ticket(RequestClass(b"model", b"", plan, (make_backend(),)), 1.0) for _ in range(2)]
    assert one.scheduler.offer(tickets[0], 1.0) is not None
    one.close()
    loop.close()
    one.scheduler.complete(tickets[0], 1.0, Ending.GOOD)
    assert two.scheduler.offer(tickets[1], 1.0) is not None


def test_a_worker_with_more_connections_than_its_part_leaves_new_ones_to_others() -> None:
    descriptor = create(2)
    one, two = [Neighbours(attach(descriptor, 2), index, 2) for index in range(2)]
    os.close(descriptor)
    one.tick(time.monotonic(), 0)
    assert one.room() > 0  # nobody else is there
    two.tick(time.monotonic(), 0)
    one.tick(time.monotonic(), 0)
    for _ in range(3):
        assert one.room() > 0
        one.accepted(1)
        assert one.room() <= 0
        assert two.room() > 0
        two.accepted(1)


async def test_a_bell_is_taken_over_from_a_worker_that_has_ended_and_from_no_other() -> None:
    loop = asyncio.get_running_loop()
    heard = asyncio.Event()
    first = Bell(loop, name_of("bell"), 0, heard.set)
    with pytest.raises(OSError, match="in use"):
        Bell(loop, name_of("bell"), 0, heard.set)
    first.ring(1)  # nobody is there
    first.close()
    second = Bell(loop, name_of("bell"), 0, heard.set)
    other = Bell(loop, name_of("bell"), 1, heard.set)
    try:
        for _ in range(10_000):  # more than it can hear meanwhile
            other.ring(0)
        await asyncio.wait_for(heard.wait(), 30)
    finally:
        second.close()
        other.close()
