"""Schedulers of several workers under requests, hedges, other snapshots and workers that are
replaced, by chance: each request begins once or is refused, and nothing is counted for good."""

from __future__ import annotations

from random import Random

import pytest

from lb.balancing.shared_scheduler import SharedScheduler
from lb.domain.backend import Backend
from lb.domain.schedule import (
    Capacity,
    Ending,
    Order,
    QueuePlan,
    QueueRules,
    RequestClass,
    ScheduleRefused,
    Ticket,
)
from lb.sharing.board import Board, clear, size
from tests.fakes.backends import make_backend

MODELS = (b"a", b"b")
CAPACITIES = (Capacity(1), Capacity(2), Capacity())
WORKERS = 3
STEPS = 400


class Worker:
    """One process: its scheduler, and the requests that it has."""

    def __init__(self, board: Board, rules: QueueRules, most: int) -> None:
        self.scheduler = SharedScheduler(board)
        self.backends = tuple(
            make_backend(f"b{number}", max_in_flight=most) for number in range(len(CAPACITIES))
        )
        limits = dict(zip(self.backends, CAPACITIES, strict=True))
        self.plans = {model: QueuePlan(limits=limits, rules=rules) for model in MODELS}
        self.request_class = self.new_request_class()
        self.running: list[Ticket] = []
        self.waiting: set[Ticket] = set()

    def new_request_class(self) -> list[RequestClass]:
        """Those of a snapshot."""
        return [
            RequestClass(model, b"", plan, some)
            for model, plan in self.plans.items()
            for some in (self.backends, self.backends[:2], self.backends[2:])
        ]

    def begin(self, ticket: Ticket) -> None:
        backend = ticket.backend
        assert backend is not None
        assert backend in ticket.eligible
        backend.in_flight += 1
        assert not backend.max_in_flight or backend.in_flight <= backend.max_in_flight
        self.running.append(ticket)

    def offer(self, rng: Random, now: float) -> None:
        ticket = Ticket(rng.choice(self.request_class), now)
        ticket.priority = rng.choice((0, 1, 2))
        ticket.rows = rng.choice((1, 8))
        ticket.deadline = now + rng.choice((0.05, 0.5, float("inf")))
        try:
            backend = self.scheduler.offer(ticket, now)
        except ScheduleRefused:
            return
        if backend is None:
            self.waiting.add(ticket)
        else:
            self.begin(ticket)

    def hedge(self, rng: Random, now: float) -> None:
        if self.running:
            hedge = rng.choice(self.running).hedge()
            if self.scheduler.hedge(hedge, now) is not None:
                self.begin(hedge)

    def end(self, rng: Random, now: float) -> None:
        if self.running:
            ticket = self.running.pop(rng.randrange(len(self.running)))
            assert ticket.backend is not None
            ticket.backend.in_flight -= 1
            self.scheduler.complete(ticket, now, rng.choice((*Ending, Ending.GOOD, Ending.GOOD)))

    def drop(self, now: float) -> None:
        if self.waiting:
            ticket = min(self.waiting, key=lambda each: each.number)
            self.waiting.remove(ticket)
            self.scheduler.drop(ticket)

    def settle(self, now: float) -> None:
        while (ticket := self.scheduler.next_due(now)) is not None:
            self.waiting.remove(ticket)
            self.begin(ticket)
            if self.scheduler.wake_at > now:
                assert self.scheduler.next_due(now) is None
                assert self.scheduler.next_refused(now) is None
        while (ticket := self.scheduler.next_refused(now)) is not None:
            self.waiting.remove(ticket)

    def follow(self, rng: Random, now: float) -> None:
        """Another snapshot: a model is gone, or a backend is, or neither."""
        gone = rng.choice((b"", b"", b"a", b"b"))
        some = rng.choice((self.backends, self.backends, self.backends[:2]))

        def renew(request_class: RequestClass) -> tuple[QueuePlan, tuple[Backend, ...]] | None:
            return None if request_class.model == gone else (request_class.plan, some)

        for ticket in self.scheduler.follow(renew, now):
            self.waiting.remove(ticket)
        self.request_class = self.new_request_class()

    def forget(self, rng: Random) -> None:
        self.scheduler.forget(rng.choice(self.backends))


def play(seed: int, rules: QueueRules, most: int) -> list[Worker]:
    rng = Random(seed)
    memory = memoryview(bytearray(size(WORKERS)))

    def start(index: int) -> Worker:
        return Worker(Board(memory, index, WORKERS), rules, most)

    workers = [start(index) for index in range(WORKERS)]
    now = 1.0
    for _ in range(STEPS):
        now += rng.choice((0.0, 0.001, 0.02, 0.1))
        index = rng.randrange(WORKERS)
        worker = workers[index]
        match rng.randrange(40):
            case 0:
                worker.follow(rng, now)
            case 1:
                worker.forget(rng)
            case 2 | 3:
                worker.hedge(rng, now)
            case 4:
                worker.drop(now)
            case 5:
                clear(memory, index)  # it has died, and another one takes its place
                worker = workers[index] = start(index)
            case choice if choice < 24:
                worker.offer(rng, now)
            case _:
                worker.end(rng, now)
        if rng.random() < 0.5:
            worker.settle(now)
        if rng.random() < 0.1:
            for each in workers:
                each.scheduler.tick(now)
    for _ in range(10_000):
        for worker in workers:
            worker.scheduler.tick(now)
            worker.settle(now)
            worker.end(rng, now)
        now += 0.1
        if not any(worker.running or worker.waiting for worker in workers):
            break
    for worker in workers * 2:
        worker.scheduler.tick(now)
    return workers


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("most", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_all_requests_end_and_no_worker_counts_anything_for_good(
    seed: int, most: int, order: Order
) -> None:
    reserved = 0.5 if order is Order.WEIGHTED else 0.0
    rules = QueueRules(order=order, max_waiting=6, max_wait_s=2.0, reserved=reserved)
    workers = play(seed, rules, most)
    for worker in workers:
        assert not worker.waiting
        assert not worker.running
        assert all(backend.in_flight == 0 for backend in worker.backends)
        assert all(each.in_flight == 0 for each in worker.scheduler.model_backends())
        # Nobody else is thought to have any: a request begins at once at each backend.
        for request_class in worker.request_class:
            ticket = Ticket(request_class, 5000.0)
            assert worker.scheduler.offer(ticket, 5000.0) is not None
            worker.scheduler.complete(ticket, 5001.0, Ending.GOOD)


def test_nothing_is_divided_while_requests_wait_and_views_are_of_the_models_asked_for() -> None:
    rules = QueueRules(order=Order.STRICT)
    memory = memoryview(bytearray(size(WORKERS)))
    worker = Worker(Board(memory, 0, WORKERS), rules, 1)
    for _ in range(len(worker.backends) + 1):
        worker.offer(Random(7), 1.0)
    assert worker.waiting
    ticket = Ticket(worker.request_class[0], 1.0)
    ticket.rows = 16
    assert worker.scheduler.divide(ticket, 1.0, 16, 8) == ()
    model = ticket.model
    assert {each.model for each in worker.scheduler.model_backends([model])} == {model}
