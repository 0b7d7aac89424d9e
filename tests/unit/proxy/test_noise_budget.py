"""How often requests are copied to the model that serves them, and what that does to latency."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from random import Random

import pytest

from lb.proxy.noise_budget import NoiseBudget

EXECUTION_S = 0.01
ONE_IN = 10
"""Of requests, one in so many would be copied."""


class Simulation:
    """Two backends that execute one request at a time, and copies that whoever places requests does
    not know of. Requests wait in one queue until a backend has answered its last one."""

    def __init__(self, load: float, *, copies: bool) -> None:
        self.copied = 0
        self.latencies: list[float] = []
        self._rate = load * 2 / EXECUTION_S
        self._copies = copies
        self._budget = NoiseBudget()
        self._queue: deque[float] = deque()
        self._in_service: list[float | None] = [None, None]
        """When the request came that a backend has; None: it has none."""
        self._free_at = [0.0, 0.0]
        """When a backend has executed all that it has, copies included."""
        self._events: list[tuple[float, int, str, int]] = []

    def run(self, count: int) -> None:
        """Have so many requests come at random."""
        rng = Random(1)
        at = 0.0
        for number in range(count):
            at += rng.expovariate(self._rate)
            heappush(self._events, (at, number, "request", 0))
        while self._events:
            now, _, kind, which = heappop(self._events)
            if kind == "request":
                self._queue.append(now)
            elif kind == "answer":
                self._answered(which, now)
            else:
                self._budget.end(self._in_service[which] is not None)
            self._dispatch(now)

    def _dispatch(self, now: float) -> None:
        for backend in (0, 1):
            if self._queue and self._in_service[backend] is None:
                self._in_service[backend] = self._queue.popleft()
                heappush(self._events, (self._execute(backend, now), -1, "answer", backend))

    def _execute(self, backend: int, now: float) -> float:
        self._free_at[backend] = max(now, self._free_at[backend]) + EXECUTION_S
        return self._free_at[backend]

    def _answered(self, backend: int, now: float) -> None:
        came = self._in_service[backend]
        assert came is not None
        self._in_service[backend] = None
        self.latencies.append(now - came)
        self._budget.request()
        is_idle = not self._queue
        if self._copies and not len(self.latencies) % ONE_IN and is_idle and self._budget.allows:
            self.copied += 1
            self._budget.begin()
            heappush(self._events, (self._execute(backend, now), -1, "copy", backend))

    @property
    def p99(self) -> float:
        """The 99th percentile of the latency."""
        return sorted(self.latencies)[len(self.latencies) * 99 // 100]


@pytest.mark.parametrize("load", [0.3, 0.7])
@pytest.mark.parametrize("count", [5_000, 50_000])
def test_p99_under_load_is_that_without_copies(load: float, count: int) -> None:
    without, with_copies = Simulation(load, copies=False), Simulation(load, copies=True)
    for each in (without, with_copies):
        each.run(count)
    assert with_copies.p99 < 1.02 * without.p99
    assert with_copies.copied >= count // 1000


def test_idle_backends_get_all_copies() -> None:
    simulation = Simulation(0.005, copies=True)
    simulation.run(10_000)
    assert simulation.copied == 10_000 // ONE_IN


def test_one_copy_is_under_way_at_a_time() -> None:
    budget = NoiseBudget()
    assert budget.allows
    budget.begin()
    assert not budget.allows
    budget.end(delayed=0)
    assert budget.allows


def test_a_copy_that_delayed_many_requests_is_paid_by_further_requests() -> None:
    budget = NoiseBudget()
    budget.begin()
    budget.end(delayed=2)
    for _ in range(1000):
        assert not budget.allows
        budget.request()
    budget.request()
    assert budget.allows
