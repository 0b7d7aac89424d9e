"""Processes that stand still, as the supervisor sees them."""

from __future__ import annotations

import pytest

from lb.runtime.next_process import READY_S
from lb.runtime.workers.supervisor import HUNG_S, LOOK_S, HangDetector

LOOKS = int(HUNG_S / LOOK_S)


def test_a_process_hangs_when_it_has_not_run_for_long_enough() -> None:
    detector = HangDetector(0.0)
    assert not any(detector.check(1.0) for _ in range(LOOKS))
    assert detector.check(1.0)


def test_a_process_that_runs_again_does_not_hang() -> None:
    detector = HangDetector(0.0)
    for tick in range(1, 6):
        assert not any(detector.check(float(tick)) for _ in range(LOOKS))


@pytest.mark.parametrize("tick", [0.0, 5.0], ids=["the first life", "a later one"])
def test_a_process_that_does_not_begin_hangs_after_a_minute(tick: float) -> None:
    detector = HangDetector(tick)
    looks = [detector.check(tick) for _ in range(int(READY_S / LOOK_S))]
    assert looks.index(True) == len(looks) - 1
