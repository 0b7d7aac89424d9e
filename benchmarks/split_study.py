"""What cutting batches gains and costs (`models.NAME.split: auto`), in simulated time.

    python -m benchmarks.split_study

Backends execute a request in a base time and some for each row, one after the other. The scheduler
is the product's: it learns these times, divides batches, and places every part. Prints the tables
of docs/split-batches.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random

from benchmarks.study.simulate import Gpu, Request, World
from benchmarks.study.simulated_balancers import Scheduled, auto_plan
from lb.domain.schedule import QueuePlan

BASE_S, ROW_S = 0.005, 0.002
"""An execution: 5 ms, and 2 ms for each row."""
ROWS = 64
_ALONE_S = 2.0
"""Between two batches that are to find all backends idle."""
_SEEDS = range(1, 6)
_REQUESTS = 20_000
_LARGE_ONE_IN = 100


class Cutting(Scheduled):
    """The scheduler places, and divides batches where that pays."""

    def __init__(
        self, world: World, plan: QueuePlan, limit: int = ROWS, *, is_on: bool = True
    ) -> None:
        super().__init__(world, plan)
        self._limit = limit
        self._is_on = is_on
        self._left: dict[Request, int] = {}
        """Parts of batches that are under way."""
        self._wholes: dict[Request, Request] = {}
        """The batch of each of these parts."""
        self.cut = 0
        """Batches that were divided."""
        self.ended_at: dict[Request, float] = {}
        """When each request of a client was answered."""

    def arrived(self, request: Request, now: float) -> None:
        """Divide it, or offer it as it is."""
        parts: tuple[int, ...] = ()
        if self._is_on and request.rows > 1:
            parts = self.scheduler.divide(self.ticket(request, now), now, self._limit, ROWS)
        if not parts:
            super().arrived(request, now)
            return
        self.cut += 1
        self._left[request] = len(parts)
        for rows in parts:
            part = Request(now, rows)
            self._wholes[part] = request
            super().arrived(part, now)

    def ended(self, request: Request, now: float) -> None:
        """Its batch has its answer with the last part."""
        whole = self._wholes.pop(request, request)
        left = self._left.get(whole, 1) - 1
        if left:
            self._left[whole] = left
        else:
            self._left.pop(whole, None)
            self.ended_at[whole] = now
        super().ended(request, now)


def best_s(gpus: Sequence[Gpu], rows: int) -> float:
    """Seconds of the best division: rows go one by one to where they end first."""
    parts = [0] * len(gpus)
    for _ in range(rows):
        ends = [gpu.base_s + gpu.row_s * (part + 1) for gpu, part in zip(gpus, parts, strict=True)]
        parts[ends.index(min(ends))] += 1
    return max(gpu.base_s + gpu.row_s * part for gpu, part in zip(gpus, parts, strict=True) if part)


def gpu(factor: float = 1.0) -> Gpu:
    """A backend that takes some times as long as others."""
    return Gpu(BASE_S * factor, ROW_S * factor)


FLEETS = {
    "four equal": [gpu()] * 4,
    "one takes 4 times as long": [gpu(), gpu(), gpu(), gpu(4)],
    "two take 4 times as long": [gpu(), gpu(), gpu(4), gpu(4)],
    "three take 4 times as long": [gpu(), gpu(4), gpu(4), gpu(4)],
}


def alone(gpus: Sequence[Gpu], *, is_on: bool) -> float:
    """Mean seconds of the last 50 of 200 batches that find all backends idle."""
    world = World(gpus)
    balancer = Cutting(world, auto_plan(world), is_on=is_on)
    load = [Request(_ALONE_S * number, ROWS) for number in range(200)]
    world.run(load, balancer)
    took = [balancer.ended_at[each] - each.at for each in load[150:]]
    return sum(took) / len(took)


def mixed(rng: Random, rate: float) -> Iterator[Request]:
    """Requests of one row at random times, and a batch in place of some of them."""
    now = 0.0
    for _ in range(_REQUESTS):
        now += rng.expovariate(rate)
        yield Request(now, 1 if rng.randrange(_LARGE_ONE_IN) else ROWS)


class Figures:
    """What clients got of one mode."""

    def __init__(self) -> None:
        self.small: list[float] = []
        self.large: list[float] = []
        self.cut = 0
        self.rates: list[float] = []

    def add(self, balancer: Cutting, load: Iterable[Request]) -> None:
        """Count one play."""
        for request in load:
            took = balancer.ended_at[request] - request.at
            (self.small if request.rows == 1 else self.large).append(took)
        self.cut += balancer.cut
        self.rates.append(len(balancer.ended_at) / max(balancer.ended_at.values()))


def quantile(values: Sequence[float], share: float) -> float:
    """The value that a share of all does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def under(utilization: float, *, is_on: bool, seeds: Iterable[int] = _SEEDS) -> Figures:
    """Small requests and some batches at a part of what four backends can do."""
    found = Figures()
    work_s = (BASE_S + ROW_S) * (1 - 1 / _LARGE_ONE_IN) + (BASE_S + ROW_S * ROWS) / _LARGE_ONE_IN
    for seed in seeds:
        world = World([gpu()] * 4, seed)
        balancer = Cutting(world, auto_plan(world), is_on=is_on)
        load = list(mixed(Random(seed), utilization * 4 / work_s))
        world.run(load, balancer)
        found.add(balancer, load)
    return found


def main() -> None:
    """Play all, and print the tables."""
    print("| backends | whole (ms) | `auto` (ms) | best division (ms) |\n|---|---:|---:|---:|")
    for name, gpus in FLEETS.items():
        figures = [alone(gpus, is_on=False), alone(gpus, is_on=True), best_s(gpus, ROWS)]
        print(f"| {name} | " + " | ".join(f"{1000 * each:.1f}" for each in figures) + " |")
    print("\n| load | p50 of a batch | p99 of small requests | requests/s | batches cut |")
    print("|---:|---:|---:|---:|---:|")
    for utilization in (0.2, 0.4, 0.6, 0.8, 0.9, 1.2):
        off, on = (under(utilization, is_on=is_on) for is_on in (False, True))
        print(
            f"| {utilization:.0%} "
            f"| {quantile(on.large, 0.5) / quantile(off.large, 0.5):.2f} "
            f"| {quantile(on.small, 0.99) / quantile(off.small, 0.99):.2f} "
            f"| {sum(on.rates) / sum(off.rates):.3f} "
            f"| {on.cut / len(on.large):.0%} |"
        )


if __name__ == "__main__":
    main()
