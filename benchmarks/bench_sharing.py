"""CPU of a scheduled request in one of several workers, beside the plain scheduler.

    python -m benchmarks.bench_sharing [--rounds N]

In a worker that is fully used a request ends, and another one comes, every `STEP_S` of simulated
time. Backends execute one request after the other on each instance. Only what the first worker does
is timed. Printed are microseconds of CPU per request, the least of several rounds: with one worker,
with a neighbour that rests, and with busy ones.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections import deque
from functools import partial
from heapq import heappop, heappush, heapreplace
from random import Random
from time import perf_counter
from typing import Final

from lb.balancing.scheduler import Scheduler
from lb.balancing.shared_scheduler import SharedScheduler
from lb.domain.backend import Address, Backend, BackendSpec
from lb.domain.schedule import Capacity, Ending, QueuePlan, QueueRules, RequestClass, Ticket
from lb.sharing.board import Board, size

STEP_S: Final = 0.00003
"""Seconds of simulated time in which each worker serves a request."""
REQUESTS: Final = 3000
CASES: Final = ((3, 0.5), (16, 0.5), (200, 0.5), (3, 10.0))
"""Backends, and requests under way per slot; above 1.0 some are queued."""
SLOTS: Final = 96
"""Executions that all backends of few can run at once."""
_QUEUED_SLOTS: Final = 2
"""Requests that each backend may have in flight where some are queued."""
_ITERATION_S: Final = 0.00015
"""Seconds that an iteration of a busy event loop takes: about five requests (`epoll_wait` calls per
request of a relay with 16 connections)."""
_TICK_S: Final = 0.1


class Worker:
    """One worker."""

    def __init__(self, number: int, scheduler: Scheduler, backends: int, instances: int) -> None:
        self.number = number
        address = Address(host="127.0.0.1", port=1)
        self.backends = tuple(
            Backend(BackendSpec(name=f"b{at}", http=address)) for at in range(backends)
        )
        rules = QueueRules(max_waiting=1_000_000)
        capacity = Capacity(instances, is_auto=instances != _QUEUED_SLOTS, instances=instances)
        plan = QueuePlan(limits={}, default=capacity, rules=rules)
        self.request_class = RequestClass(b"resnet", b"", plan, self.backends)
        self.scheduler = scheduler
        self.spent_s = 0.0
        self.ended = 0


class Machine:
    """Workers, and the backends that they share."""

    def __init__(self, backends: int, instances: int, schedulers: list[Scheduler]) -> None:
        self.workers = [
            Worker(number, scheduler, backends, instances)
            for number, scheduler in enumerate(schedulers)
        ]
        self.now = 1.0
        self.execution_s = 0.0
        self._names = {each.spec.name: at for at, each in enumerate(self.workers[0].backends)}
        self._free_at = [[0.0] * instances for _ in range(backends)]
        self._ends: list[tuple[float, int, Worker, Ticket]] = []
        self._random = Random(1)
        self._count = 0
        self._rung: list[int] = []
        self._untold: deque[tuple[float, Worker]] = deque()
        """Workers that tell the others something, and when their iterations end."""
        self._ticked_at = 0.0
        for worker in self.workers:
            if isinstance(worker.scheduler, SharedScheduler):
                worker.scheduler.ring = self._rung.append
                worker.scheduler.on_untold = partial(self._tell_later, worker)

    def _tell_later(self, worker: Worker) -> None:
        self._untold.append((self.now + _ITERATION_S, worker))

    def _tell(self) -> None:
        """Iterations of event loops end."""
        while self._untold and self._untold[0][0] <= self.now:
            _, worker = self._untold.popleft()
            began = perf_counter()
            if isinstance(worker.scheduler, SharedScheduler):
                worker.scheduler.tell(self.now)
            worker.spent_s += perf_counter() - began

    def _begin(self, worker: Worker, ticket: Ticket) -> None:
        backend = ticket.backend
        assert backend is not None
        backend.in_flight += 1
        instances = self._free_at[self._names[backend.spec.name]]
        took_s = self.execution_s * self._random.uniform(0.9, 1.1)
        ends_at = max(self.now, instances[0]) + took_s
        heapreplace(instances, ends_at)
        self._count += 1
        heappush(self._ends, (ends_at, self._count, worker, ticket))

    def offer(self, worker: Worker) -> None:
        """A request comes."""
        ticket = Ticket(worker.request_class, self.now)
        began = perf_counter()
        backend = worker.scheduler.offer(ticket, self.now)
        worker.spent_s += perf_counter() - began
        if backend is not None:
            self._begin(worker, ticket)

    def dispatch(self, worker: Worker) -> None:
        """What is due begins."""
        while True:
            began = perf_counter()
            ticket = worker.scheduler.next_due(self.now)
            worker.spent_s += perf_counter() - began
            if ticket is None:
                return
            self._begin(worker, ticket)

    def go_on(self) -> None:
        """One request ends, and the same worker gets another one."""
        self._dispatch_in_time()
        if self.now - self._ticked_at > _TICK_S:
            self.tick()
        self.now, _, worker, ticket = heappop(self._ends)
        backend = ticket.backend
        assert backend is not None
        backend.in_flight -= 1
        worker.ended += 1
        began = perf_counter()
        worker.scheduler.complete(ticket, self.now, Ending.GOOD)
        worker.spent_s += perf_counter() - began
        self.offer(worker)
        if worker.scheduler.wake_at <= self.now:
            self.dispatch(worker)
        self._tell()
        while self._rung:
            other = self.workers[self._rung.pop()]
            began = perf_counter()
            if isinstance(other.scheduler, SharedScheduler):
                other.scheduler.rung(self.now)
            other.spent_s += perf_counter() - began
            self.dispatch(other)

    def _dispatch_in_time(self) -> None:
        """What workers wanted to check before the next end begins."""
        while True:
            first = min(self.workers, key=lambda worker: worker.scheduler.wake_at)
            at = first.scheduler.wake_at
            if self._ends and at >= self._ends[0][0]:
                return
            self.now = max(self.now, at)
            self.dispatch(first)

    def tick(self) -> None:
        """Have all say that they run, and look for what is due."""
        self._ticked_at = self.now
        for worker in self.workers:
            if isinstance(worker.scheduler, SharedScheduler):
                worker.scheduler.tick(self.now)
            self.dispatch(worker)


def busy_machine(backends: int, load: float, *, workers: int, busy: int) -> Machine:
    """Make a machine whose workers have begun to serve requests.

    Args:
        backends: that all use.
        load: requests under way per slot.
        workers: in all.
        busy: of them.
    """
    instances = max(1, SLOTS // backends) if load <= 1.0 else _QUEUED_SLOTS
    schedulers: list[Scheduler] = [Scheduler()]
    if workers > 1:
        memory = memoryview(bytearray(size(workers)))
        schedulers = [SharedScheduler(Board(memory, at, workers)) for at in range(workers)]
    machine = Machine(backends, instances, schedulers)
    slots = backends * instances
    each = max(1, round(load * slots / busy))
    machine.execution_s = min(load, 1.0) * slots * STEP_S / busy
    machine.tick()
    machine.tick()
    for worker in machine.workers[:busy]:
        for _ in range(each):
            machine.offer(worker)
    return machine


def measure(backends: int, load: float, *, workers: int, busy: int) -> float:
    """Microseconds per request of the first worker; see `busy_machine`."""
    machine = busy_machine(backends, load, workers=workers, busy=busy)
    first = machine.workers[0]
    while first.ended < REQUESTS:
        machine.go_on()
    first.spent_s = 0.0
    while first.ended < 2 * REQUESTS:
        machine.go_on()
    return first.spent_s / REQUESTS * 1e6


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    print("| backends | requests queue | 1 worker | 2, one rests | 2 busy | 4 busy |")
    print("|---:|---|---:|---:|---:|---:|")
    for backends, load in CASES:
        least = [1e9] * 4
        for _ in range(rounds):
            for place, (workers, busy) in enumerate(((1, 1), (2, 1), (2, 2), (4, 4))):
                took = measure(backends, load, workers=workers, busy=busy)
                least[place] = min(least[place], took)
        cells = " | ".join([f"{took:.1f}" for took in least])
        print(f"| {backends} | {'yes' if load > 1.0 else 'no'} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
