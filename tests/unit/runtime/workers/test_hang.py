"""Processes that stand still, as the supervisor sees them."""

from __future__ import annotations

from lb.runtime.workers.supervisor import HUNG_S, LOOK_S, HangDetector

LOOKS = int(HUNG_S / LOOK_S)


def test_a_process_hangs_when_it_has_not_run_for_long_enough() -> None:
    detector = HangDetector()
    assert not any(detector.check(1.0) for _ in range(LOOKS))
    assert detector.check(1.0)


def test_a_process_that_runs_again_does_not_hang() -> None:
    detector = HangDetector()
    for tick in range(1, 6):
        assert not any(detector.check(float(tick)) for _ in range(LOOKS))
