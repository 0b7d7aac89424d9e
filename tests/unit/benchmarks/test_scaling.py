"""A day of bursty traffic."""

from __future__ import annotations

import pytest

from benchmarks.scaling import BUDGET_S, DAY_S, day, desired_rule, queue_time_rule


@pytest.mark.parametrize("instances", [1, 4])
def test_more_is_in_time_with_fewer_servers_than_by_queue_times(instances: int) -> None:
    ours = day(desired_rule(BUDGET_S), instances=instances)
    # What bursts cost until servers have started is late, whatever one follows.
    assert ours.late < 0.08
    for target_s in (50e-6, 0.02):
        theirs = day(queue_time_rule(target_s), instances=instances, seconds=DAY_S // 4)
        assert ours.late < theirs.late
        assert ours.hours < 4 * theirs.hours
        assert ours.changes < 4 * theirs.changes
