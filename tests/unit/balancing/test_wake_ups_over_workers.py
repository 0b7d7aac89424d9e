"""Workers whose steps interleave by chance, also between what one of them reads and writes: once
all iterations of their event loops have ended and all rings were heard, no request is queued while
a backend that it may use has room within all limits. Nothing ticks meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

import pytest

from lb.balancing.shared_scheduler import SharedScheduler
from lb.balancing.tuning import TUNING
from lb.domain.schedule import Capacity, Ending, QueuePlan, RequestClass, Ticket
from lb.sharing.board import Board, size
from tests.fakes.backends import make_backend
from tests.fakes.busy_board import BusyBoard

pytestmark = pytest.mark.interpreted("a class of its own")

REQUESTS: Final = 6
"""Requests of one play: each lost wake-up that was found needs fewer."""
STEPS: Final = 24
PLAYS: Final = 300
MEANWHILE: Final = 0.15
"""How probably another worker does something at each store and load."""
AGES_S: Final = (TUNING.fresh_s / 8, TUNING.fresh_s * 1.5)
"""Times that pass in one step: what was read is fresh after the first, and old after the second."""
SETTLED_S: Final = 2 * TUNING.give_way_s
"""Two workers may leave room to each other for so long."""
Step = Callable[[], None]


@dataclass(frozen=True)
class Service:
    """What workers serve."""

    workers: int = 2
    limit: int = 1
    """Requests that each backend takes."""
    is_of_backend: bool = False
    """The limit is the backend's, for all models together."""
    models: Sequence[bytes] = (b"model",)
    names: Sequence[str] = ("a",)
    """Of the backends. Each request may use one of them."""
    are_known: bool = True
    """The workers have run for a while. Otherwise the first does not know yet that others run."""

    @property
    def capacity(self) -> Capacity:
        if self.is_of_backend:
            return Capacity(64, is_auto=True, instances=64)
        return Capacity(self.limit, instances=self.limit)


class Worker:
    """One process: its scheduler, its requests, and what its event loop is to call."""

    begin_due: Step
    """Begins the queued requests that are due."""

    def __init__(self, board: Board, service: Service) -> None:
        self.scheduler = SharedScheduler(board)
        most = service.limit if service.is_of_backend else 0
        backends = [make_backend(name, max_in_flight=most) for name in service.names]
        plan = QueuePlan(limits={}, default=service.capacity)
        self.request_classes = [
            RequestClass(model, b"", plan, (backend,))
            for model in service.models
            for backend in backends
        ]
        self.running: list[Ticket] = []
        self.queued: list[Ticket] = []
        self.soon: list[Step] = []
        self.is_rung = False
        self.scheduler.on_untold = partial(self.call_soon, self.scheduler.tell_untold)

    def call_soon(self, call: Step) -> None:
        if call not in self.soon:
            self.soon.append(call)

    def begin(self, ticket: Ticket) -> None:
        assert ticket.backend is not None
        ticket.backend.in_flight += 1
        self.running.append(ticket)


class Play:
    """Workers on one board, and the time."""

    def __init__(self, seed: int, service: Service) -> None:
        self.rng = Random(seed)
        self.service = service
        self.left = REQUESTS
        self.acting: set[Worker] = set()
        """Workers that are in the middle of something."""
        count = service.workers
        memory = memoryview(bytearray(size(count)))
        boards = [BusyBoard(memory, index, count) for index in range(count)]
        for board in boards:
            board.meanwhile = lambda: None
        self.workers = [Worker(board, service) for board in boards]
        self.now = 1.0
        for worker in self.workers:
            worker.begin_due = partial(self.begin_due, worker)
            worker.scheduler.on_room = partial(worker.call_soon, worker.begin_due)
            worker.scheduler.ring = self.ring
        for worker in self.workers * (2 if service.are_known else 1):
            worker.scheduler.tick(self.now)
        self.now += AGES_S[1]
        for board in boards:
            board.meanwhile = self.meanwhile

    def ring(self, index: int) -> None:
        self.workers[index].is_rung = True

    def begin_due(self, worker: Worker) -> None:
        scheduler = worker.scheduler
        while (ticket := scheduler.next_due(self.now)) is not None:
            worker.queued.remove(ticket)
            worker.begin(ticket)
            if scheduler.wake_at > self.now:
                return  # as the process does
        assert scheduler.next_refused(self.now) is None

    def offer(self, worker: Worker) -> None:
        self.left -= 1
        ticket = Ticket(self.rng.choice(worker.request_classes), self.now)
        if worker.scheduler.offer(ticket, self.now) is None:
            worker.queued.append(ticket)
        else:
            worker.begin(ticket)
        if worker.scheduler.wake_at <= self.now:
            worker.call_soon(worker.begin_due)

    def complete(self, worker: Worker) -> None:
        ticket = worker.running.pop(self.rng.randrange(len(worker.running)))
        assert ticket.backend is not None
        ticket.backend.in_flight -= 1
        worker.scheduler.complete(ticket, self.now, Ending.GOOD)

    def hear(self, worker: Worker) -> None:
        worker.is_rung = False
        worker.scheduler.rung(self.now)

    def act(self, worker: Worker, step: Step) -> None:
        self.acting.add(worker)
        step()
        self.acting.discard(worker)

    def some_step(self) -> None:
        """Have one worker do one of the things that it could do."""
        steps: list[list[tuple[Worker, Step]]] = [[], [], [], []]
        for worker in self.workers:
            if worker in self.acting:
                continue
            if self.left:
                steps[0].append((worker, partial(self.offer, worker)))
            if worker.running:
                steps[1].append((worker, partial(self.complete, worker)))
            if worker.soon:
                steps[2].append((worker, lambda worker=worker: worker.soon.pop(0)()))  # type: ignore[misc]
            if worker.is_rung:
                steps[3].append((worker, partial(self.hear, worker)))
        kinds = [kind for kind in steps if kind]
        if kinds:
            self.act(*self.rng.choice(self.rng.choice(kinds)))

    def meanwhile(self) -> None:
        if self.rng.random() < MEANWHILE:
            self.some_step()

    def run(self) -> None:
        for _ in range(self.rng.randrange(STEPS)):
            if self.rng.random() < 1 / 4:
                self.now += self.rng.choice(AGES_S)
            else:
                self.some_step()
        self.left = 0
        self.settle()

    def settle(self) -> None:
        """Have all go on until nothing is to be done but to wait for what is in flight."""
        end = self.now + SETTLED_S
        while self.now <= end:
            is_over = True
            for worker in self.workers:
                while worker.soon or worker.is_rung or worker.scheduler.wake_at <= self.now:
                    is_over = False
                    if worker.is_rung:
                        self.act(worker, partial(self.hear, worker))
                    call = worker.soon.pop(0) if worker.soon else worker.begin_due
                    self.act(worker, call)
            if is_over:
                self.now = max(self.now, min(each.scheduler.wake_at for each in self.workers))

    def idle(self) -> set[str]:
        """The backends with room for a request that is queued."""
        running = [ticket for worker in self.workers for ticket in worker.running]
        counts = Counter(self.place(ticket, ticket.eligible[0].name) for ticket in running)
        return {
            backend.name
            for worker in self.workers
            for ticket in worker.queued
            for backend in ticket.eligible
            if counts[self.place(ticket, backend.name)] < self.service.limit
        }

    def place(self, ticket: Ticket, name: str) -> tuple[bytes, str]:
        """What the limit is for."""
        return b"" if self.service.is_of_backend else ticket.model, name


@pytest.mark.parametrize(
    "service",
    [
        Service(),
        Service(are_known=False),
        Service(workers=3),
        Service(workers=3, limit=2),
        Service(is_of_backend=True),
        Service(workers=3, limit=2, is_of_backend=True),
        Service(is_of_backend=True, models=(b"model", b"other")),
        Service(names=("a", "b")),
        Service(workers=3, names=("a", "b")),
    ],
    ids=lambda service: (
        " ".join(
            f"{name}={value}"
            for name, value in vars(service).items()
            if value != getattr(Service(), name)
        )
        or "two workers"
    ),
)
def test_no_request_is_queued_while_a_backend_has_room(service: Service) -> None:
    for seed in range(PLAYS):
        play = Play(seed, service)
        play.run()
        assert not play.idle(), seed
