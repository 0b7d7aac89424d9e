"""Confidence intervals of shares, and when one is certainly higher than another."""

from __future__ import annotations

from random import Random

import pytest

from lb.comparison.shares import interval, is_certainly_higher


@pytest.mark.parametrize(
    ("times", "seen", "low", "high"),
    # The roots p of (p - times/seen)**2 = z**2 * p * (1 - p) / seen, with z = 2.5758.
    [(0, 10, 0.0, 0.398854), (30, 1000, 0.018906, 0.047289), (50, 100, 0.375280, 0.624720)],
)
def test_the_interval_is_that_of_wilson(times: int, seen: int, low: float, high: float) -> None:
    found = interval(times, seen)
    assert found == pytest.approx((low, high), abs=1e-6)


def test_nothing_seen_means_nothing_known() -> None:
    assert interval(0, 0) == (0.0, 1.0)
    assert not is_certainly_higher(10, 10, 0, 0)
    assert not is_certainly_higher(0, 0, 0, 10)


def test_three_percent_stand_out_from_none_once_enough_was_seen() -> None:
    assert not is_certainly_higher(3, 100, 0, 10)
    assert is_certainly_higher(300, 10_000, 0, 1000)


def test_equal_shares_are_hardly_ever_told_apart() -> None:
    rng = Random(7)
    alarms = 0
    for _ in range(2000):
        times = sum(rng.random() < 0.2 for _ in range(100))
        other = sum(rng.random() < 0.2 for _ in range(50))
        alarms += is_certainly_higher(times, 100, other, 50)
    assert alarms <= 20  # a half percent is expected


@pytest.mark.parametrize("share", [0.001, 0.03, 0.5])
def test_the_interval_holds_the_share_in_99_of_100_samples(share: float) -> None:
    rng = Random(11)
    missed = 0
    for _ in range(1000):
        low, high = interval(sum(rng.random() < share for _ in range(500)), 500)
        missed += not low <= share <= high
    assert missed <= 25
