"""What the scheduler promises, in the simulation: the policy code is that of the product."""

from __future__ import annotations

import pytest

from benchmarks.study.simulate import Gpu, World, bound, bound_of, poisson, quantile
from benchmarks.study.simulate_goals import (
    BATCHED,
    CONTESTANTS,
    EQUAL,
    MIXED_ROWS,
    ROWS,
    UNEQUAL,
    URGENT,
    at_once,
    capacity,
    closed_loop,
    mixed,
    ours,
    play,
    with_deadline,
    with_priorities,
    with_tenants,
)
from lb.domain.schedule import QueueRules

SECONDS = 15.0
RESERVED = QueueRules(max_waiting=200, reserved=0.34)


def test_bound_sends_each_request_where_it_ends_first() -> None:
    assert bound([(0.0, (1.0, 3.0)), (0.0, (1.0, 3.0)), (0.0, (1.0, 3.0))], [1, 1]) == [
        1.0,
        2.0,
        3.0,
    ]
    assert bound([(0.0, (1.0,)), (0.0, (1.0,)), (0.5, (1.0,))], [2]) == [1.0, 1.0, 1.5]


@pytest.mark.parametrize("rate", [150.0, 240.0, 280.0])
def test_unequal_backends_are_used_nearly_perfectly(rate: float) -> None:
    load = poisson(rate, SECONDS, 1)
    ideal = 1000.0 * quantile(bound_of(load, UNEQUAL), 0.99)
    found = play(UNEQUAL, ours(), load, SECONDS)
    peer = play(UNEQUAL, at_once("least_requests"), poisson(rate, SECONDS, 1), SECONDS)
    assert found.p(0.99) <= 1.4 * ideal
    assert found.p(0.99) <= 0.5 * peer.p(0.99)


def test_slow_event_loops_cost_no_capacity() -> None:
    world = World(UNEQUAL, late_s=0.002)
    load = poisson(280.0, SECONDS, 1)
    ideal = 1000.0 * quantile(bound_of(load, UNEQUAL), 0.99)
    world.run(load, ours()(world))
    latencies = [1000.0 * each.latency_s for each in world.done]
    assert quantile(latencies, 0.99) <= 1.4 * ideal + 4.0


def test_far_backends_are_kept_busy() -> None:
    gpus = (Gpu(0.02),) * 4
    load = poisson(1.5 * capacity(gpus), SECONDS, 1, with_deadline(0.3))
    assert play(gpus, ours(), load, SECONDS, turnaround_s=0.05).goodput >= 0.9 * capacity(gpus)
    world = World(gpus, late_s=0.02)
    world.run(poisson(146.0, SECONDS, 1), ours()(world))
    assert quantile([each.latency_s for each in world.done], 0.99) < 0.4


@pytest.mark.parametrize("part", [0.5, 0.8, 0.95])
def test_equal_backends_are_no_worse_off_than_with_the_best_peer(part: float) -> None:
    rate = part * capacity(EQUAL)
    found = play(EQUAL, ours(), poisson(rate, SECONDS, 1), SECONDS)
    peers = [
        play(EQUAL, at_once(name), poisson(rate, SECONDS, 1), SECONDS)
        for name in ("least_requests", "round_robin")
    ]
    assert found.p(0.99) <= 1.05 * min(peer.p(0.99) for peer in peers)
    shares = [server.executed / found.offered for server in found.world.servers]
    assert max(shares) - min(shares) < 0.06


@pytest.mark.parametrize("part", [0.7, 0.85])
def test_small_requests_do_not_wait_for_large_ones(part: float) -> None:
    rate = part * capacity(ROWS, MIXED_ROWS)
    found = play(ROWS, ours(), poisson(rate, SECONDS, 1, mixed), SECONDS)
    peer = play(ROWS, CONTESTANTS["the same of two"], poisson(rate, SECONDS, 1, mixed), SECONDS)
    assert found.p(0.99, "small") <= 0.5 * peer.p(0.99, "small")
    assert found.p(0.99) <= peer.p(0.99)


@pytest.mark.parametrize("gpus", [EQUAL, UNEQUAL])
@pytest.mark.parametrize("factor", [2.0, 10.0])
def test_goodput_stays_at_capacity_whatever_is_offered(
    gpus: tuple[Gpu, ...], factor: float
) -> None:
    load = poisson(factor * capacity(gpus), 8.0, 1, with_deadline(0.2))
    assert play(gpus, ours(), load, 8.0).goodput >= 0.95 * capacity(gpus)


def test_batches_fill_as_they_do_at_one_backend() -> None:
    for rate in (120.0, 240.0, 560.0):
        one = play(BATCHED[:1], at_once("round_robin"), poisson(rate, 8.0, 1), 8.0)
        found = play(BATCHED, ours(), poisson(3 * rate, 8.0, 1), 8.0)
        assert found.mean_batch >= 0.9 * one.mean_batch
        assert found.p(0.99) <= 1.05 * one.p(0.99)


def test_seven_backends_do_seven_times_as_much() -> None:
    one = closed_loop([Gpu(0.02)], ours(), 100, 10.0)
    seven = closed_loop([Gpu(0.02)] * 7, ours(), 100, 10.0)
    assert seven.goodput >= 6.8 * one.goodput


def test_any_number_of_clients_keeps_equal_backends_busy() -> None:
    for clients in (2, 9, 20):
        assert closed_loop([Gpu(0.02)] * 2, ours(), clients, 10.0).goodput >= 90.0


@pytest.mark.parametrize("gpus", [EQUAL, UNEQUAL])
def test_urgent_requests_do_not_notice_others(gpus: tuple[Gpu, ...]) -> None:
    high = URGENT * capacity(gpus)
    alone = play(gpus, ours(RESERVED), with_priorities(0.001, high, 40.0), 40.0)
    load = with_priorities(2 * capacity(gpus), high, 40.0)
    among = play(gpus, ours(RESERVED), load, 40.0)
    low = sum(each.kind == "low" and each.ended_at >= 0 for each in among.world.done)
    assert among.p(0.99, "high") < 1.5 * alone.p(0.99, "high")
    assert low / 40.0 >= 0.65 * capacity(gpus)


def test_every_tenant_gets_its_share() -> None:
    whole = capacity(EQUAL)
    rates = {"greedy": 4 * whole, "a": 0.5 * whole, "b": 0.4 * whole}
    found = play(EQUAL, ours(), with_tenants(rates, SECONDS), SECONDS)
    for tenant in rates:
        good = sum(each.kind == tenant and each.is_good for each in found.world.done)
        assert good >= 0.9 * whole * SECONDS / len(rates), tenant


def test_backend_that_slows_down_is_left_and_found_again() -> None:
    gpus = (Gpu(0.005, slow=((5.0, 12.0, 20.0),)), Gpu(0.01), Gpu(0.01))
    found = play(gpus, ours(), poisson(150.0, 40.0, 1), 40.0)
    late = [each for each in found.world.done if each.at > 25.0]
    slow = [each for each in found.world.done if 7.0 < each.at < 12.0]
    assert sum(each.backend == 0 for each in slow) < 0.2 * len(slow)
    assert sum(each.backend == 0 for each in late) > 0.3 * len(late)


def test_stalled_backend_holds_up_only_what_it_has() -> None:
    gpus = (Gpu(0.005, stalls=((5.0, 3.0),)), Gpu(0.01), Gpu(0.01))
    found = play(gpus, ours(), poisson(100.0, 15.0, 1), 15.0)
    assert sum(latency > 500.0 for latency in found.latencies_ms()) <= 12


def test_first_execution_that_takes_long_keeps_no_backend_idle() -> None:
    gpus = (Gpu(0.01), Gpu(0.01, slow=((0.0, 0.3, 80.0),)))
    found = play(gpus, ours(), poisson(100.0, SECONDS, 1), SECONDS)
    shares = [server.executed / found.offered for server in found.world.servers]
    assert min(shares) > 0.35
