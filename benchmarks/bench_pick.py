"""Cost and quality of a pick: nanoseconds by number of backends, and how even the load is.

    python -m benchmarks.bench_pick [--quality]

The rows marked `*` were considered for large sets and not taken: see
docs/decisions/0004-pick-at-scale.md.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from lb.balancing.least_loaded import LeastLoadedPicker, WindowPicker
from lb.balancing.round_robin import RoundRobinPicker
from lb.balancing.score import PickSequence, score
from lb.domain.backend import Address, Backend, BackendSpec
from lb.domain.pool import Picker

SIZES = (2, 3, 8, 24, 64, 200)
SPEEDS = (1, 1, 2, 3, 7)
"""Relative speeds in the simulation, as of MIG slices 1g to 7g; the policy is not told."""
ROUNDS = 5

Build = Callable[[Sequence[Backend]], Picker]


def make_backends(count: int) -> list[Backend]:
    """Idle backends of equal weight."""
    address = Address(host="127.0.0.1", port=1)
    return [Backend(BackendSpec(name=f"b{at}", http=address)) for at in range(count)]


# Candidates that were not taken


class SamplePicker:
    """`draws` independent random draws and the last runner-up."""

    def __init__(self, backends: Sequence[Backend], rng: Random, draws: int) -> None:
        self._backends = tuple(backends)
        self._random = rng.random
        self._draws = range(draws)
        self._runner_up = self._backends[0]

    def pick(self) -> Backend:
        """Return the best of the draws and the runner-up."""
        backends, count, draw = self._backends, len(self._backends), self._random
        best = second = self._runner_up
        best_score, second_score = score(best), float("inf")
        for _ in self._draws:
            backend = backends[int(draw() * count)]
            value = (backend.in_flight + 1) * backend.inverse_weight
            if value < second_score and backend is not best:
                if value < best_score:
                    second, second_score, best, best_score = best, best_score, backend, value
                else:
                    second, second_score = backend, value
        self._runner_up = second
        return best


class SweepPicker:
    """A window that moves on at every pick, and the last runner-up: no random numbers."""

    def __init__(self, backends: Sequence[Backend], window: int) -> None:
        self._backends = tuple(backends)
        self._window = window
        self._at = 0
        self._runner_up = self._backends[0]

    def pick(self) -> Backend:
        """Return the best of the window and the runner-up."""
        start = self._at
        stop = start + self._window
        self._at = stop if stop < len(self._backends) else 0
        best = second = self._runner_up
        best_score, second_score = score(best), float("inf")
        for backend in self._backends[start:stop]:
            value = (backend.in_flight + 1) * backend.inverse_weight
            if value < second_score and backend is not best:
                if value < best_score:
                    second, second_score, best, best_score = best, best_score, backend, value
                else:
                    second, second_score = backend, value
        self._runner_up = second
        return best


class Index(Protocol):
    """Keeps the backends in order, so it must be told of every start and end."""

    def pick(self) -> Backend: ...
    def started(self, backend: Backend) -> None: ...
    def ended(self, backend: Backend) -> None: ...


class BucketIndex:
    """One ordered bucket per in-flight count; equal weights only."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._buckets: list[dict[Backend, None]] = [{} for _ in range(4096)]
        self._lowest = 0
        self._buckets[0].update(dict.fromkeys(backends))

    def pick(self) -> Backend:
        """Return the backend that has been in the lowest bucket for longest."""
        while not self._buckets[self._lowest]:
            self._lowest += 1
        return next(iter(self._buckets[self._lowest]))

    def started(self, backend: Backend) -> None:
        """Move it up."""
        del self._buckets[backend.in_flight][backend]
        backend.in_flight += 1
        self._buckets[backend.in_flight][backend] = None

    def ended(self, backend: Backend) -> None:
        """Move it down."""
        del self._buckets[backend.in_flight][backend]
        backend.in_flight -= 1
        self._buckets[backend.in_flight][backend] = None
        self._lowest = min(self._lowest, backend.in_flight)


class HeapIndex:
    """A heap by score whose stale entries are dropped when they come up; any weights."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._number = itertools.count()
        self._backends = tuple(backends)
        self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(score(backend), next(self._number), backend) for backend in self._backends]
        heapq.heapify(self._heap)

    def pick(self) -> Backend:
        """Return the first backend whose entry is true."""
        while True:
            value, _, backend = self._heap[0]
            if value == score(backend):
                return backend
            heapq.heappop(self._heap)

    def started(self, backend: Backend) -> None:
        """Add its new place."""
        backend.in_flight += 1
        self._add(backend)

    def ended(self, backend: Backend) -> None:
        """Add its new place."""
        backend.in_flight -= 1
        self._add(backend)

    def _add(self, backend: Backend) -> None:
        heapq.heappush(self._heap, (score(backend), next(self._number), backend))
        if len(self._heap) > 8 * len(self._backends) + 64:
            self._rebuild()


PICKERS: dict[str, Build] = {
    "least_loaded, scan": lambda backends: LeastLoadedPicker(backends, PickSequence()),
    "least_loaded, window of 16": lambda backends: WindowPicker(
        backends, PickSequence(), Random(1)
    ),
    "round_robin": lambda backends: RoundRobinPicker(backends, PickSequence()),
    "* sample of 4 + runner-up": lambda backends: SamplePicker(backends, Random(1), 4),
    "* sample of 8 + runner-up": lambda backends: SamplePicker(backends, Random(1), 8),
    "* moving window of 8": lambda backends: SweepPicker(backends, 8),
    "* moving window of 16": lambda backends: SweepPicker(backends, 16),
}
INDEXES: dict[str, Callable[[Sequence[Backend]], Index]] = {
    "* bucket index, pick+start+end": BucketIndex,
    "* heap index, pick+start+end": HeapIndex,
}


# Cost


def cost_of_pick(build: Build, size: int) -> float:
    """Nanoseconds per pick, the best of some rounds."""
    rounds = []
    for _ in range(ROUNDS):
        backends = make_backends(size)
        rng = Random(1)
        for backend in backends:
            backend.in_flight = rng.randrange(4)
        pick = build(backends).pick
        times = max(2_000, 100_000 // size)
        began = time.perf_counter()
        for _ in itertools.repeat(None, times):
            pick()
        rounds.append((time.perf_counter() - began) / times)
    return min(rounds) * 1e9


def cost_of_index(build: Callable[[Sequence[Backend]], Index], size: int) -> float:
    """Nanoseconds per pick, start and end with two requests per backend in flight."""
    rounds = []
    for _ in range(ROUNDS):
        index = build(make_backends(size))
        running = []
        for _ in range(2 * size):
            backend = index.pick()
            index.started(backend)
            running.append(backend)
        Random(2).shuffle(running)
        times = 50_000
        began = time.perf_counter()
        for step in range(times):
            place = step % len(running)
            index.ended(running[place])
            running[place] = backend = index.pick()
            index.started(backend)
        rounds.append((time.perf_counter() - began) / times)
    return min(rounds) * 1e9


# Quality


def simulate(build: Build, size: int, load: float, requests: int = 80_000) -> str:
    """One queue and one worker per backend, unequal speeds, Poisson arrivals, equal work.

    Prints time in the system in units of the slowest backend's service time, and the most
    loaded backend's requests in flight over the mean.
    """
    rng = Random(3)
    backends = make_backends(size)
    speed = {backend: SPEEDS[at % len(SPEEDS)] for at, backend in enumerate(backends)}
    rng.shuffle(backends)
    free_at = dict.fromkeys(backends, 0.0)
    picker = build(backends)
    rate = load * sum(speed.values())
    now = 0.0
    ends: list[tuple[float, int, Backend]] = []
    times: list[float] = []
    uneven: list[float] = []
    for number in range(requests):
        now += rng.expovariate(rate)
        while ends and ends[0][0] <= now:
            heapq.heappop(ends)[2].in_flight -= 1
        backend = picker.pick()
        assert backend is not None
        backend.in_flight += 1
        free_at[backend] = end = max(free_at[backend], now) + 1 / speed[backend]
        heapq.heappush(ends, (end, number, backend))
        if number < requests // 4:
            continue  # settle first
        times.append(end - now)
        if number % 200 == 0:
            counts = [each.in_flight for each in backends]
            uneven.append(max(counts) * size / sum(counts))
    times.sort()
    mean, p99 = sum(times) / len(times), times[int(len(times) * 0.99)]
    return f"{mean:7.2f} {p99:7.2f} {sum(uneven) / len(uneven):7.2f}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quality", action="store_true", help="also simulate (half a minute)")
    options = parser.parse_args()
    print("ns per pick, by backends".ljust(32), *(f"{size:7}" for size in SIZES))
    for name, build in PICKERS.items():
        print(name.ljust(32), *(f"{cost_of_pick(build, size):7.0f}" for size in SIZES))
    for name, build_index in INDEXES.items():
        print(name.ljust(32), *(f"{cost_of_index(build_index, size):7.0f}" for size in SIZES))
    if options.quality:
        for size, load in itertools.product((24, 64, 200), (0.6, 0.95)):
            print(f"\n{size} backends, load {load:.0%}".ljust(33), "   mean     p99 max/mean")
            for name, build in PICKERS.items():
                print(name.ljust(32), simulate(build, size, load))


if __name__ == "__main__":
    main()
