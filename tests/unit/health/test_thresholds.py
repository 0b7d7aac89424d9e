from __future__ import annotations

from random import Random

import pytest

from lb.health.thresholds import Thresholds


@pytest.mark.parametrize(("timeout_s", "after_s"), [(2.0, 1.0), (0.5, 0.25), (30.0, 1.0)])
def test_suspicion_comes_after_half_the_timeout_and_at_most_a_second(
    timeout_s: float, after_s: float
) -> None:
    assert Thresholds(timeout_s=timeout_s).suspect_after_s == after_s


def test_the_interval_varies_by_a_tenth() -> None:
    rng = Random(1)
    drawn = [Thresholds(interval_s=10.0).jittered_interval_s(rng) for _ in range(500)]
    assert 9.0 <= min(drawn) < 9.1
    assert 10.9 < max(drawn) <= 11.0
