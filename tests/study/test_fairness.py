"""Whatever the order is that lowers the median, nobody waits much longer than in strict order.

Each seed is a short trace of its own: backends, load, sizes and arrivals by chance, one tenant, one
priority, no deadlines. The same trace is played in strict order by a dispatcher that knows every
execution time and sends each request where it ends first. Where sizes differ the scheduler has seen
other requests before: while it does not know what sizes cost on a backend, one trace of a hundred
has a request that waits longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heapreplace
from random import Random

from benchmarks.study.simulate import TURNAROUND_S, Gpu, Request, World, poisson
from benchmarks.study.simulated_balancers import Scheduled, auto_plan

SEEDS = range(1000)
REQUESTS = 80
LESSON = 400
"""Requests that teach what sizes cost."""
TIMES_FIFO = 3.0
TIMERS_S = 0.001
"""Timers of the simulated event loop are late."""


def execution_s(gpu: Gpu, request: Request) -> float:
    """How long a request executes on a backend."""
    return gpu.base_s + gpu.row_s * request.rows


def make_gpus(rng: Random) -> tuple[list[Gpu], tuple[int, ...]]:
    """Some backends, and the rows that requests for them have."""
    fast_s = rng.choice((0.001, 0.005, 0.02))
    sizes = rng.choice(((1,), (1, 1, 1, 1, 1, 8, 32)))
    gpus = []
    for _ in range(rng.randint(2, 4)):
        base_s = fast_s * rng.choice((1.0, 1.0, 2.0, 4.0, 8.0))
        row_s = base_s / 4 if len(sizes) > 1 else 0.0
        gpus.append(Gpu(base_s, row_s, instances=rng.choice((1, 1, 2)), jitter=0.0))
    return gpus, sizes


def make_load(
    gpus: list[Gpu], sizes: tuple[int, ...], part: float, count: int, seed: int
) -> list[Request]:
    """About so many requests that ask for a part of what the backends can do."""
    mean_rows = sum(sizes) / len(sizes)
    rate = part * sum(gpu.instances / (gpu.base_s + gpu.row_s * mean_rows) for gpu in gpus)
    return poisson(rate, count / rate, seed, lambda at, rng: Request(at, rng.choice(sizes)))


def in_order(gpus: list[Gpu], load: list[Request]) -> tuple[list[float], list[float]]:
    """When each request begins and ends in strict order, each where it ends first."""
    free = [[load[0].at] * gpu.instances for gpu in gpus]
    for heap in free:
        heapify(heap)
    begins, ends = [], []
    for request in load:
        found = [
            (max(request.at, heap[0]) + execution_s(gpu, request), number)
            for number, (gpu, heap) in enumerate(zip(gpus, free, strict=True))
        ]
        end, number = min(found)
        begins.append(end - execution_s(gpus[number], request))
        ends.append(end)
        heapreplace(free[number], end)
    return begins, ends


def excess_s(seed: int) -> float:
    """By how much the unluckiest request of a trace waits longer than it may; negative: it does
    not."""
    rng = Random(seed)
    gpus, sizes = make_gpus(rng)
    world = World(gpus, seed)
    balancer = Scheduled(world, auto_plan(world))
    if len(sizes) > 1:
        world.run(make_load(gpus, sizes, 1.2, LESSON, seed + len(SEEDS)), balancer)
    load = make_load(gpus, sizes, rng.uniform(0.4, 1.3), REQUESTS, seed)
    for request in load:
        request.at += world.now
    world.run(load, balancer)
    begins, ends = in_order(gpus, load)
    longest_s = max(execution_s(gpus[each.backend], each) for each in load)
    worst = -longest_s
    for busy in busy_periods(load, ends):
        fifo_s = max(begins[each] - load[each].at for each in busy)
        waited_s = max(waited(gpus, load[each]) for each in busy)
        worst = max(worst, waited_s - TIMES_FIFO * fifo_s - longest_s - TIMERS_S)
    return worst


def waited(gpus: list[Gpu], request: Request) -> float:
    """How long a request waited for its execution."""
    return request.latency_s - execution_s(gpus[request.backend], request) - TURNAROUND_S


def busy_periods(load: list[Request], ends: list[float]) -> Iterator[list[int]]:
    """The requests between two times at which nothing is under way in either order."""
    busy: list[int] = []
    until = 0.0
    for number, request in enumerate(load):
        if busy and request.at > until:
            yield busy
            busy = []
        busy.append(number)
        until = max(until, ends[number], request.ended_at)
    yield busy


def test_nobody_waits_much_longer_than_in_strict_order() -> None:
    unfair = {seed: excess for seed in SEEDS if (excess := excess_s(seed)) > 0.0}
    assert unfair == {}
