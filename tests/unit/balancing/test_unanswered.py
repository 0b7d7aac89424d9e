"""Requests that a backend never answers hold back others for a bounded time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from operator import itemgetter

import pytest

from lb.balancing.scheduler import Scheduler
from lb.balancing.shared_scheduler import SharedScheduler
from lb.balancing.unanswered import LOST_S, overdue_after_s
from lb.domain.backend import Backend
from lb.domain.schedule import NO_DEADLINE, Capacity, Ending, QueuePlan, RequestClass, Ticket
from lb.sharing.board import Board, size
from tests.fakes.backends import make_backend

TOOK_S = 0.005
TICK_S = 0.1
LIMITS = {
    "a limit of 1": Capacity(1),
    "a limit of 2": Capacity(2),
    "found by itself": Capacity(1, is_auto=True),
    "two instances": Capacity(2, is_auto=True, instances=2),
    "batches": Capacity(8, is_auto=True, max_batch=4),
    "adaptive": Capacity(1, is_adaptive=True),
}


class World:
    """Schedulers of one or several workers, and their backends, each of which answers at once what
    it answers at all."""

    def __init__(self, limit: Capacity, count: int = 1, workers: int = 1) -> None:
        self.schedulers = [Scheduler()]
        if workers > 1:
            memory = memoryview(bytearray(size(workers)))
            boards = [Board(memory, index, workers) for index in range(workers)]
            self.schedulers = [SharedScheduler(board) for board in boards]
        self.scheduler = self.schedulers[0]
        self.lost: list[Ticket] = []
        self.backends: dict[Scheduler, tuple[Backend, ...]] = {}
        for scheduler in self.schedulers:
            scheduler.on_lost = lambda ticket, _now: self.lost.append(ticket)
            names = [f"b{number}" for number in range(count)]
            self.backends[scheduler] = tuple(make_backend(name) for name in names)
        self.plan = QueuePlan(limits={}, default=limit)
        self.now = self.ticked_at = 100.0
        self.asked = 0
        self.served = 0
        self.unanswerable: set[Ticket] = set()
        self.silent: Backend | None = None
        """Answers nothing."""
        self.running: dict[Ticket, Scheduler] = {}
        self._tick()
        for _ in range(40 * count):
            self.ask()
            self.run(0.1)

    def ask(self, *, is_answered: bool = True, only: int | None = None) -> Ticket:
        """Have the next worker place a request that all backends may get, or only one of them."""
        scheduler = self.schedulers[self.asked % len(self.schedulers)]
        self.asked += 1
        eligible = self.backends[scheduler]
        if only is not None:
            eligible = eligible[only : only + 1]
        ticket = Ticket(RequestClass(b"m", b"", self.plan, eligible), self.now)
        if not is_answered:
            self.unanswerable.add(ticket)
        if scheduler.offer(ticket, self.now) is not None:
            self._began(ticket, scheduler)
        return ticket

    def _began(self, ticket: Ticket, scheduler: Scheduler) -> None:
        assert ticket.backend is not None
        ticket.backend.in_flight += 1
        self.running[ticket] = scheduler

    def complete(self, ticket: Ticket, ending: Ending = Ending.GOOD) -> None:
        scheduler = self.running.pop(ticket)
        assert ticket.backend is not None
        ticket.backend.in_flight -= 1
        scheduler.complete(ticket, self.now, ending)

    def turn(self) -> None:
        """Begin what is due."""
        for scheduler in self.schedulers:
            while (ticket := scheduler.next_due(self.now)) is not None:
                self._began(ticket, scheduler)

    def _tick(self) -> None:
        self.ticked_at = self.now
        for scheduler in self.schedulers:
            if isinstance(scheduler, SharedScheduler):
                scheduler.tick(self.now)

    def run(self, seconds: float, *, stops: Callable[[], bool] = bool) -> None:
        """Let time pass; wakes are kept and each good request takes `TOOK_S`."""
        end = self.now + seconds
        while not stops():
            ends = [
                (ticket.began_at + TOOK_S, ticket.number, ticket)
                for ticket in self.running
                if ticket not in self.unanswerable and ticket.backend is not self.silent
            ]
            ended_at = min(ends, key=itemgetter(0))[0] if ends else NO_DEADLINE
            tick_at = self.ticked_at + TICK_S if len(self.schedulers) > 1 else NO_DEADLINE
            wakes = [scheduler.wake_at for scheduler in self.schedulers]
            at = min(ended_at, tick_at, *wakes)
            if at > end:
                break
            self.now = max(self.now, at)
            if at == ended_at:
                self.complete(min(ends, key=itemgetter(0))[2])
                self.served += 1
            elif at == tick_at:
                self._tick()
            self.turn()
        self.now = max(self.now, end) if not stops() else self.now

    @property
    def in_flight(self) -> int:
        """What all workers believe to be in flight."""
        return sum(
            model_backend.in_flight
            for scheduler in self.schedulers
            for model_backend in scheduler.model_backends()
        )


@pytest.fixture(params=LIMITS)
def limit(request: pytest.FixtureRequest) -> Capacity:
    return LIMITS[request.param]


def test_patience_is_a_multiple_and_at_least_a_second() -> None:
    assert overdue_after_s(0.001) == LOST_S
    assert overdue_after_s(10.0) == 50.0


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("lost", [1, 2, 5])
def test_requests_that_are_never_answered_do_not_hold_back_others(
    limit: Capacity, count: int, lost: int, workers: int
) -> None:
    world = World(limit, count, workers)
    for _ in range(lost):
        world.ask(is_answered=False)
    good = [world.ask() for _ in range(20)]
    world.run(LOST_S * 5 * lost + 1.0)
    assert all(ticket.backend is None and not ticket.is_waiting for ticket in good)
    # From now on it is as if they were not there.
    for _ in range(20):
        asked_at, served = world.now, world.served
        world.ask()
        world.run(1.0, stops=lambda served=served: world.served > served)  # type: ignore[misc]
        assert world.now - asked_at < 0.1
    assert world.in_flight == lost - len(world.lost)


def test_lost_requests_count_neither_as_load_nor_toward_the_limit() -> None:
    world = World(Capacity(1))
    first = world.ask(is_answered=False)
    world.ask()
    world.run(LOST_S + 0.1)
    assert world.lost == [first]
    assert world.in_flight == 0


def test_one_more_request_at_a_time_begins_beside_overdue_ones() -> None:
    world = World(Capacity(1))
    world.ask(is_answered=False)
    more = [world.ask(is_answered=False) for _ in range(10)]
    begun_at = []
    for _ in range(2000):
        world.run(0.01)
        begun_at += [world.now] * (len(world.running) - 1 - len(begun_at))
    assert 4 <= len(begun_at) <= 7
    gaps = [after - before for before, after in pairwise(begun_at)]
    assert all(gap > LOST_S for gap in gaps)
    assert max(gaps) < 4.5 * LOST_S
    assert sum(ticket.is_waiting for ticket in more) == 10 - len(begun_at)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", ["found by itself", "two instances", "batches", "adaptive"])
def test_hundreds_of_lost_requests_hold_back_others_for_seconds(name: str, workers: int) -> None:
    world = World(LIMITS[name], 2, workers)
    for _ in range(400):
        world.ask(is_answered=False)
    good = [world.ask() for _ in range(workers)]
    world.run(20 * LOST_S)
    assert all(ticket.backend is None and not ticket.is_waiting for ticket in good)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_trickle_of_lost_requests_holds_back_others_for_about_a_second(
    limit: Capacity, workers: int
) -> None:
    world = World(limit, 2, workers)
    good: list[tuple[float, Ticket]] = []
    for number in range(600):
        if not number % 5:
            world.ask(is_answered=False)
        good.append((world.now, world.ask()))
        world.run(0.05)
        good = [(at, each) for at, each in good if each.is_waiting or each in world.running]
        assert not good or world.now - good[0][0] < 2 * LOST_S


def test_a_backend_that_never_answers_gets_few_requests_while_another_one_answers() -> None:
    world = World(LIMITS["found by itself"], 2)
    world.silent = world.backends[world.scheduler][0]
    for _ in range(200):
        for _ in range(20):
            world.ask()
        world.run(0.1)
    assert not world.lost
    assert world.served > 3900
    # Its limit, and those that it was tried with.
    assert sum(ticket.backend is world.silent for ticket in world.running) < 20


def test_a_backend_that_goes_on_answering_has_lost_nothing() -> None:
    """Everything in flight may be overdue where all has become slower."""
    world = World(Capacity(4))
    slow = [world.ask() for _ in range(4)]
    world.unanswerable.update(slow)
    waiting = world.ask()
    for ticket in slow[:-1]:
        world.now += 0.9
        world.complete(ticket)
        world.turn()
    assert world.lost == []
    assert waiting.backend is not None


@pytest.mark.parametrize("ending", Ending)
def test_a_lost_request_may_be_answered_after_all(limit: Capacity, ending: Ending) -> None:
    world = World(limit)
    lost = world.ask(is_answered=False)
    while not world.lost:
        world.ask()
        world.run(0.1)
    assert world.lost == [lost]
    before = world.in_flight
    world.complete(lost, ending)
    assert lost.backend is None
    assert world.in_flight == before
    # It may go again like any other.
    world.unanswerable.clear()
    lost.tried = ()
    assert world.scheduler.offer(lost, world.now) is not None
    world._began(lost, world.scheduler)
    world.run(1.0)
    assert world.in_flight == 0


def test_an_answer_to_an_earlier_request_proves_nothing() -> None:
    world = World(Capacity(3))
    first, second = world.ask(is_answered=False), world.ask(is_answered=False)
    world.run(3.0)
    world.complete(second)
    assert world.lost == []
    assert world.in_flight == 1
    world.complete(first)
    assert world.in_flight == 0


@pytest.mark.parametrize("ending", [Ending.FAILED, Ending.NEITHER])
def test_only_a_good_answer_proves_something(ending: Ending) -> None:
    world = World(Capacity(1))
    world.ask(is_answered=False)
    further = world.ask(is_answered=False)
    world.run(LOST_S + 0.1)
    world.complete(further, ending)
    assert world.lost == []


def test_a_request_that_began_in_a_lane_of_another_kind_is_found_lost() -> None:
    world = World(Capacity(1))
    lost = world.ask(is_answered=False)
    world.plan = QueuePlan(limits={}, default=Capacity(2, max_batch=2, is_auto=True))
    for _ in range(40):
        world.ask()
        world.run(0.1)
    assert world.lost == [lost]
    assert world.in_flight == 0
    world.complete(lost)
    assert world.in_flight == 0


def test_many_backends_are_found_out_as_well() -> None:
    world = World(Capacity(1), 20)
    for number in range(20):
        world.ask(is_answered=False, only=number)
    world.run(0.5)
    good = [world.ask() for _ in range(100)]
    world.run(5.0)
    assert all(ticket.backend is None and not ticket.is_waiting for ticket in good)
    assert world.lost


def test_lost_requests_may_outlive_all_that_is_known_of_their_model() -> None:
    world = World(Capacity(1))
    lost = world.ask(is_answered=False)
    world.ask()
    world.run(2.0)
    assert world.lost == [lost]
    world.scheduler.forget(world.backends[world.scheduler][0])
    world.scheduler.follow(lambda _ticket: None, world.now)
    assert not list(world.scheduler.model_backends())
    world.complete(lost, Ending.NEITHER)
    assert lost.backend is None
