from __future__ import annotations

import pytest

from lb.simulator.gpu import SimulatedGpu


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def gpu_and_clock(*, is_slice: bool = False) -> tuple[SimulatedGpu, Clock]:
    clock = Clock()
    return SimulatedGpu("GPU-1", is_slice=is_slice, interval_s=2.0, clock=clock), clock


def test_it_is_as_busy_as_it_was_in_the_last_interval() -> None:
    gpu, clock = gpu_and_clock()
    with gpu.used():
        clock.now += 0.5
    clock.now += 0.5
    assert gpu.utilization == 0.0
    clock.now += 1.0
    assert gpu.utilization == pytest.approx(0.25)
    clock.now += 2.0
    assert gpu.utilization == 0.0


def test_what_runs_at_once_counts_once() -> None:
    gpu, clock = gpu_and_clock()
    with gpu.used():
        clock.now += 0.5
        with gpu.used():
            clock.now += 0.5
    clock.now += 1.0
    assert gpu.utilization == pytest.approx(0.5)


def test_what_runs_through_makes_it_busy_all_the_time() -> None:
    gpu, clock = gpu_and_clock()
    with gpu.used():
        clock.now += 7.0
        assert gpu.utilization == 1.0


def test_of_a_slice_nothing_is_known() -> None:
    gpu, clock = gpu_and_clock(is_slice=True)
    with gpu.used():
        clock.now += 5.0
    assert gpu.utilization is None
