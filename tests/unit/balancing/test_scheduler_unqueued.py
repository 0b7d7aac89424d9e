"""What the scheduler knows of requests that it does not place, since they cannot wait."""

from __future__ import annotations

import pytest

from lb.balancing.scheduler import Scheduler
from lb.domain.backend import Backend
from lb.domain.schedule import Capacity, Ending, QueuePlan, RequestClass, Ticket
from tests.fakes.backends import make_backend

ROUNDS = 8


class Desk:
    """A scheduler that has learnt how long requests take at some backends."""

    def __init__(self, *takes_s: float) -> None:
        self.scheduler = Scheduler()
        self.backends = tuple(make_backend(f"b{number}") for number in range(len(takes_s)))
        self.plan = QueuePlan(limits={}, default=Capacity(1, is_auto=True))
        self.now = 100.0
        for backend, took_s in zip(self.backends, takes_s, strict=True):
            for _ in range(ROUNDS if took_s else 0):
                self.run(backend, took_s)

    def ticket(self, *eligible: Backend) -> Ticket:
        return Ticket(RequestClass(b"model", b"", self.plan, eligible or self.backends), self.now)

    def run(self, backend: Backend, took_s: float) -> None:
        ticket = self.ticket()
        self.scheduler.start(ticket, backend, self.now)
        assert ticket.backend is backend
        self.now += took_s
        self.scheduler.complete(ticket, self.now, Ending.GOOD)
        self.now += 0.01

    def expected(self) -> list[float]:
        return [model_backend.expected_s for model_backend in self.scheduler.model_backends()]

    def in_flight(self) -> list[int]:
        return [model_backend.in_flight for model_backend in self.scheduler.model_backends()]

    def best(self, home: Backend | None = None) -> str:
        backend = self.scheduler.best(self.ticket(), self.now, home)
        return "-" if backend is None else backend.name


def test_what_begins_past_the_queue_teaches_and_counts() -> None:
    desk = Desk(0.01, 0.04)
    assert desk.expected() == pytest.approx([0.01, 0.04])
    ticket = desk.ticket()
    desk.scheduler.start(ticket, desk.backends[0], desk.now)
    assert desk.in_flight() == [1, 0]
    offered = desk.ticket()
    assert desk.scheduler.offer(offered, desk.now) is desk.backends[0]  # sent ahead
    desk.scheduler.complete(ticket, desk.now + 0.01, Ending.GOOD)
    desk.scheduler.complete(offered, desk.now + 0.02, Ending.GOOD)
    assert desk.in_flight() == [0, 0]


def test_the_best_is_where_a_request_ends_first() -> None:
    desk = Desk(0.01, 0.04)
    places = []
    for _ in range(10):
        ticket = desk.ticket()
        backend = desk.scheduler.best(ticket, desk.now)
        assert backend is not None
        desk.scheduler.start(ticket, backend, desk.now)
        places.append(backend.name)
    assert places[:3] == ["b0"] * 3
    assert 1 <= places.count("b1") <= 3  # however many there are already


def test_home_is_good_enough_unless_another_one_is_clearly_better() -> None:
    desk = Desk(0.010, 0.013, 0.04)
    assert desk.best() == "b0"
    assert desk.best(desk.backends[1]) == "b1"
    assert desk.best(desk.backends[2]) == "b0"
    desk.scheduler.start(desk.ticket(), desk.backends[1], desk.now)
    assert desk.best(desk.backends[1]) == "b0"


def test_a_backend_at_its_limit_for_everything_is_none_but_for_what_is_there() -> None:
    desk = Desk(0.01)
    (only,) = desk.backends
    only.max_in_flight = only.in_flight = 1
    assert desk.best() == "-"
    assert desk.best(only) == "b0"


def test_the_next_request_of_a_stream_stays_where_the_last_one_was_unless_that_is_worse() -> None:
    desk = Desk(0.010, 0.013, 0.04)
    stays = [desk.scheduler.stays(desk.ticket(), home, desk.now) for home in desk.backends]
    assert stays == [True, True, False]
    for _ in range(3):
        desk.scheduler.start(desk.ticket(), desk.backends[1], desk.now)
    assert not desk.scheduler.stays(desk.ticket(), desk.backends[1], desk.now)


def test_it_stays_where_it_can_go_nowhere_else_and_nowhere_that_is_not_known() -> None:
    desk = Desk(0.01, 0.04)
    slow = desk.backends[1]
    assert desk.scheduler.stays(desk.ticket(slow), slow, desk.now)
    assert not desk.scheduler.stays(desk.ticket(), make_backend("gone"), desk.now)
    unknown = Ticket(RequestClass(b"other", b"", desk.plan, desk.backends), desk.now)
    assert not desk.scheduler.stays(unknown, slow, desk.now)


@pytest.mark.parametrize("streams", [1, 50, 100, 200])
def test_how_long_many_requests_wait_at_a_backend_is_not_taken_for_their_execution(
    streams: int,
) -> None:
    """A Triton may execute the requests of each stream in turn, and so all of them in another order
    than they came."""
    desk = Desk(0.01)
    [backend] = desk.backends
    tickets = [desk.ticket() for _ in range(500)]
    for ticket in tickets:
        desk.scheduler.start(ticket, backend, desk.now)
    tickets = [ticket for first in range(streams) for ticket in tickets[first::streams]]
    for ticket in tickets:
        desk.now += 0.01
        desk.scheduler.complete(ticket, desk.now, Ending.GOOD)
        assert desk.expected()[0] < 0.2
    ticket = desk.ticket()
    ticket.deadline = desk.now + 1.0
    assert desk.scheduler.offer(ticket, desk.now) is backend
