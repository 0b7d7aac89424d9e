"""Several workers before the same backends, in simulated time, with the code of the product.

    python -m benchmarks.workers [--seeds N]

Each request comes to a random worker. The workers share a board (`lb.sharing.board`), or know
nothing of each other ("apart"). Printed are the 50th and the 99th percentile of latency as
multiples of what one worker achieves with the same arrivals: the geometric mean over all seeds. A
worker that is rung for takes half of a millisecond, which is an event loop's turn on a busy core,
and tells the others at the end of such a turn what it has not told at once.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial
from math import exp, log
from random import Random
from typing import Final

from benchmarks.study.simulate import Gpu, Request, World, poisson, quantile
from benchmarks.study.simulated_balancers import Scheduled, auto_plan
from lb.balancing.shared_scheduler import SharedScheduler
from lb.domain.schedule import QueuePlan
from lb.sharing.board import Board, size

EQUAL: Final = (Gpu(0.01, jitter=0.1),) * 4
UNEQUAL: Final = (Gpu(0.005, jitter=0.1), Gpu(0.01, jitter=0.1), Gpu(0.04, jitter=0.1))
SCENES: Final = {"equal": EQUAL, "unequal": UNEQUAL}
LOADS: Final = (0.6, 0.75, 0.9)
WORKERS: Final = (2, 4, 8, 16)
_RUNG_S: Final = 0.0005
_ITERATION_S: Final = 0.0005
_TICK_S: Final = 0.1
_WARM_UP: Final = 0.2


class Workers:
    """Several workers that place requests. Each is a `Scheduled` with a scheduler of its own."""

    def __init__(
        self, world: World, plan: QueuePlan, count: int, seed: int, *, shared: bool
    ) -> None:
        self._world = world
        self._random = Random(seed)
        memory = memoryview(bytearray(size(count)))
        self.workers: list[Scheduled] = []
        self._schedulers: list[SharedScheduler] = []
        self._at: dict[Request, Scheduled] = {}
        for index in range(count):
            worker = Scheduled(world, plan)
            if shared:
                scheduler = SharedScheduler(Board(memory, index, count))
                scheduler.ring = self._ring
                scheduler.on_untold = partial(self._tell_later, scheduler)
                self._schedulers.append(scheduler)
                worker.scheduler = scheduler
            self.workers.append(worker)
        self._tick_at = 0.0

    def _ring(self, index: int) -> None:
        self._world.at(self._world.now + _RUNG_S, lambda: self._rung(index))

    def _tell_later(self, scheduler: SharedScheduler) -> None:
        at = self._world.now + _ITERATION_S
        self._world.at(at, lambda: scheduler.tell(self._world.now))

    def _rung(self, index: int) -> None:
        self._schedulers[index].rung(self._world.now)
        self.workers[index].woken(self._world.now)

    def _tick(self, now: float) -> None:
        if now >= self._tick_at:
            self._tick_at = now + _TICK_S
            for scheduler in self._schedulers:
                scheduler.tick(now)

    def arrived(self, request: Request, now: float) -> None:
        """A client of a random worker sends it."""
        self._tick(now)
        worker = self._at[request] = self._random.choice(self.workers)
        worker.arrived(request, now)

    def ended(self, request: Request, now: float) -> None:
        """The worker that has sent it gets its answer."""
        self._at.pop(request).ended(request, now)

    def failed(self, request: Request, now: float) -> None:
        """The worker that has sent it gets an error."""
        self._at[request].failed(request, now)

    def wake_at(self) -> float:
        """When the first worker is to be woken."""
        return min([worker.wake_at() for worker in self.workers])

    def woken(self, now: float) -> None:
        """Have those go on whose time it is."""
        for worker in self.workers:
            if worker.wake_at() <= now:
                worker.woken(now)


def play(
    gpus: Sequence[Gpu], load: float, seed: int, count: int, *, shared: bool, requests: int
) -> tuple[float, float]:
    """The 50th and the 99th percentile of latency in seconds."""
    world = World(gpus, seed)
    rate = load * sum([gpu.rate() for gpu in gpus])
    balancer: Workers | Scheduled
    if count == 1:
        balancer = Scheduled(world, auto_plan(world))
    else:
        balancer = Workers(world, auto_plan(world), count, seed, shared=shared)
    world.run(poisson(rate, requests / rate, seed), balancer)
    done = world.done[int(_WARM_UP * len(world.done)) :]
    took = [each.latency_s for each in done]
    return quantile(took, 0.5), quantile(took, 0.99)


def compare(
    gpus: Sequence[Gpu], load: float, count: int, seeds: int, *, shared: bool, requests: int
) -> tuple[float, float]:
    """Both percentiles as multiples of one worker's, the geometric mean over seeds."""
    logs = [0.0, 0.0]
    for seed in range(seeds):
        one = play(gpus, load, seed, 1, shared=False, requests=requests)
        several = play(gpus, load, seed, count, shared=shared, requests=requests)
        for place in range(2):
            logs[place] += log(several[place] / one[place]) / seeds
    return exp(logs[0]), exp(logs[1])


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--workers", type=int, nargs="*", default=WORKERS)
    parser.add_argument("--backends", choices=SCENES, nargs="*", default=list(SCENES))
    options = parser.parse_args()
    print("| backends | load | workers | shared: p50, p99 | apart: p50, p99 |")
    print("|---|---:|---:|---:|---:|")
    for name in options.backends:
        for load in LOADS:
            for count in options.workers:
                cells = []
                for shared in (True, False):
                    p50, p99 = compare(
                        SCENES[name],
                        load,
                        count,
                        options.seeds,
                        shared=shared,
                        requests=options.requests,
                    )
                    cells.append(f"{p50:.3f}, {p99:.3f}")
                print(f"| {name} | {load:.0%} | {count} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
