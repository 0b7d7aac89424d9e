"""CPU of a scheduled request in one of several workers, beside the plain scheduler.

    python -m benchmarks.bench_sharing [--rounds N]

Each worker ends a request and offers one, in turns. Only what the first worker does is timed. A
step of all workers takes `STEP_S` of simulated time, as with workers that are fully used. Printed
are microseconds of CPU per request, the least of several rounds: with one worker, with a
neighbour that rests, and with busy ones.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections import deque
from time import perf_counter
from typing import Final

from lb.balancing.scheduler import Scheduler
from lb.balancing.shared_scheduler import SharedScheduler
from lb.domain.backend import Address, Backend, BackendSpec
from lb.domain.schedule import Capacity, Ending, Plan, QueueRules, Terms, Ticket
from lb.sharing.board import Board, size

STEP_S: Final = 0.00003
"""Seconds of simulated time in which each worker serves a request."""
REQUESTS: Final = 3000
CASES: Final = ((3, False), (16, False), (200, False), (3, True))
"""Backends, and whether requests are queued."""
_TICK: Final = int(0.1 / STEP_S)


class Worker:
    """One worker, and what it has in flight."""

    def __init__(self, scheduler: Scheduler, backends: int, instances: int, waiting: int) -> None:
        address = Address(host="127.0.0.1", port=1)
        pool = tuple(Backend(BackendSpec(name=f"b{at}", http=address)) for at in range(backends))
        rules = QueueRules(max_waiting=1_000_000)
        capacity = Capacity(instances, is_auto=True, instances=instances)
        self.terms = Terms(b"resnet", b"", Plan(limits={}, default=capacity, rules=rules), pool)
        self.scheduler = scheduler
        self.waiting = waiting
        self.in_flight: deque[Ticket] = deque()
        self.spent_s = 0.0

    def begin(self, ticket: Ticket | None) -> None:
        """A backend gets one."""
        if ticket is not None and ticket.backend is not None:
            ticket.backend.in_flight += 1
            self.in_flight.append(ticket)

    def offer(self, now: float) -> None:
        """One request comes."""
        ticket = Ticket(self.terms, now)
        if self.scheduler.offer(ticket, now) is not None:
            self.begin(ticket)

    def go_on(self, now: float) -> None:
        """One request ends, one comes, and what is due begins."""
        if self.in_flight:
            ticket = self.in_flight.popleft()
            assert ticket.backend is not None
            ticket.backend.in_flight -= 1
            began = perf_counter()
            self.scheduler.complete(ticket, now, Ending.GOOD)
            self.spent_s += perf_counter() - began
        ticket = Ticket(self.terms, now)
        began = perf_counter()
        backend = self.scheduler.offer(ticket, now)
        self.spent_s += perf_counter() - began
        if backend is not None:
            self.begin(ticket)
        if self.waiting:
            began = perf_counter()
            due = self.scheduler.next_due(now)
            self.spent_s += perf_counter() - began
            while due is not None:
                self.begin(due)
                due = self.scheduler.next_due(now)


def measure(backends: int, *, is_queued: bool, workers: int, busy: int) -> float:
    """Microseconds per request of the first worker.

    Args:
        backends: that all use.
        is_queued: more is in flight than the backends execute.
        workers: in all.
        busy: of them.
    """
    instances = 4 if is_queued else max(1, 96 // backends)
    each = 8 if is_queued else max(1, int(0.5 * backends * instances) // workers)
    schedulers: list[Scheduler] = [Scheduler()]
    if workers > 1:
        memory = memoryview(bytearray(size(workers)))
        schedulers = [SharedScheduler(Board(memory, at, workers)) for at in range(workers)]
    waiting = 20 if is_queued else 0
    group = [Worker(scheduler, backends, instances, waiting) for scheduler in schedulers]
    now = 1.0
    for _ in range(2):
        tick(group, now)
    for worker in group[:busy]:
        for _ in range(each + waiting):
            worker.offer(now)
    for step in range(2 * REQUESTS):
        now += STEP_S
        if step % _TICK == 0:
            tick(group, now)
        if step == REQUESTS:
            group[0].spent_s = 0.0
        for worker in group[:busy]:
            worker.go_on(now)
    return group[0].spent_s / REQUESTS * 1e6


def tick(group: list[Worker], now: float) -> None:
    """Have all say that they run."""
    for worker in group:
        if isinstance(worker.scheduler, SharedScheduler):
            worker.scheduler.tick(now)


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    print("| backends | requests queue | 1 worker | 2, one rests | 2 busy | 4 busy |")
    print("|---:|---|---:|---:|---:|---:|")
    for backends, is_queued in CASES:
        least = [1e9] * 4
        for _ in range(rounds):
            for place, (workers, busy) in enumerate(((1, 1), (2, 1), (2, 2), (4, 4))):
                took = measure(backends, is_queued=is_queued, workers=workers, busy=busy)
                least[place] = min(least[place], took)
        cells = " | ".join([f"{took:.1f}" for took in least])
        print(f"| {backends} | {'yes' if is_queued else 'no'} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
