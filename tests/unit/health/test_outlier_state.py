from __future__ import annotations

import pytest

from lb.domain.fault import Fault
from lb.health.outlier_state import MEMORY, FailureRate, OutlierState, Phase, Run, Usual


def test_a_share_forgets_what_is_long_ago() -> None:
    share = FailureRate()
    assert share.value == 0.0
    for _ in range(10 * MEMORY):
        share.add(is_bad=True)
    assert share.value == pytest.approx(1.0)
    for _ in range(10 * MEMORY):
        share.add(is_bad=False)
    assert share.value == pytest.approx(0.0, abs=1e-3)
    assert share.good == pytest.approx(MEMORY, rel=0.01)


def test_the_recent_share_moves_first() -> None:
    share = FailureRate()
    for _ in range(MEMORY):
        share.add(is_bad=False)
    for _ in range(8):
        share.add(is_bad=True)
    assert share.recent > 2 * share.value


def test_a_run_counts_until_it_ends() -> None:
    run = Run()
    run.add(Fault.ERROR, 5.0)
    run.add(Fault.DEVICE, 6.0)
    assert (run.count, run.certain, run.since, run.last) == (2, 1, 5.0, Fault.DEVICE)
    run.end()
    assert (run.count, run.certain) == (0, 0)


def test_what_is_usual_is_hardly_moved_by_what_is_not() -> None:
    usual = Usual()
    assert usual.seconds == 0.0
    for _ in range(200):
        usual.add(0.02, is_outlying=False)
    for _ in range(40):
        usual.add(0.4, is_outlying=True)
    assert usual.seconds == pytest.approx(0.02, rel=0.2)
    for _ in range(400):
        usual.add(0.4, is_outlying=False)
    assert usual.seconds == pytest.approx(0.4, rel=0.05)


def test_a_outlier_state_begins_well() -> None:
    outlier_state = OutlierState(7.0)
    assert (outlier_state.phase, outlier_state.used_at, outlier_state.trial) == (
        Phase.SERVING,
        7.0,
        None,
    )
