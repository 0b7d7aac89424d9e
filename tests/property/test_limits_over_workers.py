"""Workers that begin, hear and end requests while others are about to: counted by the backend,
nobody exceeds a limit that somebody gave, and nobody waits for long while a backend is idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Final

import pytest

from lb.domain.schedule import Capacity, QueueRules, Ticket
from lb.sharing.board import size
from tests.fakes.busy_board import BusyBoard
from tests.unit.balancing.test_shared_scheduler import NAMES, Worker

pytestmark = pytest.mark.interpreted("a class of its own")

LIMIT: Final = 3
REQUESTS: Final = 600
QUEUED: Final = 12
"""Requests that all workers together have queued at most."""
TICK_S: Final = 0.1
WORST_IDLE_S: Final = 0.003
"""Two workers may leave room to each other for 2 ms; the rest is for bells, one after the other."""
WAKE_S: Final = 0.0001
"""How long a worker takes to hear a bell, or to see that it is time."""
MEANWHILE: Final = 0.1
"""How probably another worker does something at each store and load."""


class Play:
    """Workers on one board, and backends that count what is in flight there."""

    def __init__(
        self,
        seed: int,
        workers: int,
        plan: Capacity,
        most: int,
        names: Sequence[str] = NAMES,
        busy: float = 0.5,
    ) -> None:
        """
        Args:
            seed: of all that is random.
            workers: how many there are.
            plan: of the model.
            most: requests at each backend.
            names: of the backends.
            busy: how probably a worker does something when another one has.
        """
        self.rng = Random(seed)
        memory = memoryview(bytearray(size(workers)))
        boards = [BusyBoard(memory, index, workers) for index in range(workers)]
        for board in boards:
            board.meanwhile = self.meanwhile
        self.workers = [Worker(board, names, plan, QueueRules(), most) for board in boards]
        self.busy = busy
        self.now = 1.0
        self.acting: set[int] = set(range(workers))
        """Workers that are in the middle of something."""
        self.rung: set[int] = set()
        self.untold: set[int] = set()
        """Workers that have something to tell at the end of an iteration of their loop."""
        self.queued: Counter[int] = Counter()
        self.numbers = count()
        self.running: list[tuple[float, int, int, Ticket]] = []
        self.at_backend: Counter[str] = Counter()
        self.idle_s = self.longest_idle_s = 0.0
        """For how long all backends have been idle by now while a request is queued."""
        self.begun: Counter[int] = Counter()
        """Requests that began, by how many were at their backend then."""
        for index, worker in enumerate(self.workers):
            worker.scheduler.ring = self.rung.add
            worker.scheduler.on_untold = partial(self.untold.add, index)
        for _ in range(2):
            for worker in self.workers:
                worker.scheduler.tick(self.now)
        self.ticked_at = self.now
        self.acting.clear()

    def tick(self) -> None:
        self.ticked_at = self.now
        for index, worker in enumerate(self.workers):
            self.acting.add(index)
            worker.scheduler.tick(self.now)
            self.acting.discard(index)

    def meanwhile(self) -> None:
        if self.rng.random() < MEANWHILE and len(self.acting) < len(self.workers):
            self.act(self.rng.choice([*({*range(len(self.workers))} - self.acting)]))

    def act(self, index: int, ended: Ticket | None = None) -> None:
        """Have a worker hear a bell, begin what is due, send a request, or end one."""
        self.acting.add(index)
        worker = self.workers[index]
        if ended is not None:
            worker.complete(ended, self.now)
        elif index in self.rung:
            self.rung.discard(index)
            worker.scheduler.rung(self.now)
        elif self.queued.total() < QUEUED and self.rng.random() < 0.5:
            self.queued[index] += 1
            ticket = worker.ticket(self.now, self.rng.choice((0, 0, 1)))
            if worker.offer(ticket, self.now) is not None:
                self.begin(index, ticket)
        if self.rng.random() < 0.8:
            # Otherwise its loop has other things to do before.
            for ticket in worker.due(self.now):
                self.begin(index, ticket)
            self.tell(index)
        self.acting.discard(index)

    def tell(self, index: int) -> None:
        if index in self.untold:
            self.untold.discard(index)
            self.workers[index].scheduler.tell(self.now)

    def begin(self, index: int, ticket: Ticket) -> None:
        assert ticket.backend is not None
        self.queued[index] -= 1
        self.at_backend[ticket.backend.name] += 1
        self.begun[self.at_backend[ticket.backend.name]] += 1
        ends_at = self.now + self.rng.uniform(0.001, 0.02)
        heappush(self.running, (ends_at, next(self.numbers), index, ticket))

    def wake(self) -> bool:
        """Have one worker go on that was rung for, or that wanted to at this time."""
        for index, worker in enumerate(self.workers):
            is_due = worker.scheduler.wake_at <= self.now
            if is_due or index in self.rung or index in self.untold:
                self.acting.add(index)
                if index in self.rung:
                    self.rung.discard(index)
                    worker.scheduler.rung(self.now)
                for ticket in worker.due(self.now):
                    self.begin(index, ticket)
                self.tell(index)
                self.acting.discard(index)
                return True
        return False

    def idle_while_queued(self) -> float:
        """Play, with workers that go on at once when they are rung for.

        Returns:
            The longest time in seconds for which all backends were idle while a request was queued.
        """
        while self.begun.total() < REQUESTS:
            while self.wake():
                self.wait_until(self.now + WAKE_S)
            at = min(worker.scheduler.wake_at for worker in self.workers)
            at = min(at, self.running[0][0] if self.running else at, self.ticked_at + TICK_S)
            self.wait_until(max(self.now, at))
            if self.now >= self.ticked_at + TICK_S:
                self.tick()
            while self.running and self.running[0][0] <= self.now:
                _, _, index, ticket = heappop(self.running)
                assert ticket.backend is not None
                self.at_backend[ticket.backend.name] -= 1
                self.act(index, ticket)
            if self.rng.random() < self.busy:
                self.act(self.rng.randrange(len(self.workers)))
        return self.longest_idle_s

    def wait_until(self, at: float) -> None:
        is_idle = self.queued.total() and not self.at_backend.total()
        self.idle_s = self.idle_s + at - self.now if is_idle else 0.0
        self.longest_idle_s = max(self.longest_idle_s, self.idle_s)
        self.now = at

    def run(self) -> None:
        while self.begun.total() < REQUESTS:
            self.now += self.rng.expovariate(1 / 0.0005)
            while self.running and self.running[0][0] <= self.now:
                _, _, index, ticket = heappop(self.running)
                assert ticket.backend is not None
                self.at_backend[ticket.backend.name] -= 1
                self.act(index, ticket)
            if self.now >= self.ticked_at + TICK_S:
                self.tick()
            # Half of the clients are those of one worker.
            self.act(0 if self.rng.random() < 0.5 else self.rng.randrange(len(self.workers)))


@pytest.mark.parametrize(
    ("plan", "most"),
    [(Capacity(LIMIT), 0), (Capacity(64, is_auto=True), LIMIT)],
    ids=["per model", "per backend"],
)
def test_no_limit_is_exceeded(plan: Capacity, most: int) -> None:
    play = Play(3, 4, plan, most)
    play.run()
    assert max(play.begun) == LIMIT


@pytest.mark.parametrize(
    ("plan", "most"),
    [(Capacity(1), 0), (Capacity(64, is_auto=True), 1)],
    ids=["per model", "per backend"],
)
def test_no_request_waits_while_the_backend_is_idle(plan: Capacity, most: int) -> None:
    for seed in range(8):
        play = Play(seed, 2, plan, most, NAMES[:1], busy=0.05)
        assert play.idle_while_queued() < WORST_IDLE_S, seed
