"""What the scheduler makes of what Tritons say of their speed and load, in the simulation."""

from __future__ import annotations

import pytest

from benchmarks.study.simulate import Gpu, Request, World, poisson, quantile
from benchmarks.study.simulate_goals import UNEQUAL
from benchmarks.study.simulate_load import MODEL, SharedBackends
from benchmarks.study.simulated_balancers import Scheduled, auto_plan
from lb.domain.load import Measured

FIRST = 30


def started(world: World, *, knows: bool) -> Scheduled:
    """A balancer that begins before backends which have served others for long."""
    balancer = Scheduled(world, auto_plan(world))
    for server in world.servers if knows else ():
        # What a Triton has measured contains warm-up: everything took somewhat longer.
        measured = Measured(base_s=1.2 * server.gpu.base_s)
        balancer.scheduler.assume(server.backend, {(MODEL, b"1"): measured}, 0.0)
    return balancer


def firsts(*, knows: bool) -> list[Request]:
    """The first requests of many starts."""
    found = []
    for seed in range(20):
        world = World(UNEQUAL, seed=seed)
        load = poisson(150.0, 1.0, seed)[:FIRST]
        world.run(load, started(world, knows=knows))
        found += load
    return found


def test_the_first_requests_go_by_speed_where_backends_say_how_fast_they_are() -> None:
    cold, told = firsts(knows=False), firsts(knows=True)
    slow_cold, slow_told = (sum(each.backend == 2 for each in some) for some in (cold, told))
    assert slow_told <= 0.35 * slow_cold
    mean_cold, mean_told = (sum(each.latency_s for each in some) for some in (cold, told))
    assert mean_told < 0.85 * mean_cold


def test_what_backends_say_is_forgotten_where_it_does_not_hold() -> None:
    world = World(UNEQUAL)
    balancer = Scheduled(world, auto_plan(world))
    for server, wrong_s in zip(world.servers, (0.1, 0.01, 0.002), strict=True):
        measured = {(MODEL, b"1"): Measured(base_s=wrong_s)}
        balancer.scheduler.assume(server.backend, measured, 0.0)
    load = poisson(150.0, 12.0, 1)
    world.run(load, balancer)
    late = [each for each in load if each.at > 6.0]
    assert sum(each.backend == 0 for each in late) > 0.5 * len(late)
    assert quantile([each.latency_s for each in late], 0.99) < 0.045


def shared(*, asks: bool, rate: float) -> list[Request]:
    """Ours in ten plays, before a fast backend that others use from 10 to 20 s, nearly all the
    time, and a slower one."""
    found = []
    for seed in range(10):
        world = World((Gpu(0.01), Gpu(0.02)))
        balancer = SharedBackends(world, 1.0 if asks else 0.0)
        for each in poisson(95.0, 10.0, 100 + seed):
            world.at(10.0 + each.at, lambda each=each, world=world: world.send(each, 0))  # type: ignore[misc]
        load = poisson(rate, 30.0, seed)
        world.run(load, balancer, until=40.0)
        found += load
    return found


def used(load: list[Request], begin_s: float, end_s: float) -> float:
    """The part of the requests of some time that went to the fast backend."""
    some = [each.backend == 0 for each in load if begin_s < each.at < end_s]
    return sum(some) / len(some)


@pytest.mark.parametrize("rate", [1.0, 4.0, 10.0])
def test_a_backend_that_others_use_is_left_to_them_and_used_again_when_they_leave(
    rate: float,
) -> None:
    told, untold = shared(asks=True, rate=rate), shared(asks=False, rate=rate)
    assert used(told, 1.0, 10.0) >= 0.65
    assert used(told, 12.0, 20.0) < 0.15
    assert used(told, 21.0, 30.0) > 0.55
    total_s = [sum(each.latency_s for each in load) for load in (told, untold)]
    assert total_s[0] < 0.95 * total_s[1]


@pytest.mark.parametrize("rate", [40.0, 110.0])
def test_what_backends_say_changes_nothing_where_nobody_else_uses_them(rate: float) -> None:
    def mean_s(*, asks: bool) -> float:
        world = World((Gpu(0.01), Gpu(0.02)))
        load = poisson(rate, 20.0, 1)
        world.run(load, SharedBackends(world, 1.0 if asks else 0.0), until=30.0)
        return sum(each.latency_s for each in load) / len(load)

    assert mean_s(asks=True) <= 1.03 * mean_s(asks=False)
