"""A limit that follows throughput."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lb.balancing.adaptive import AdaptiveLimit


def adapted(start: int, rate: Callable[[int], float], seconds: float = 200.0) -> list[int]:
    """The limits over time of a backend that is always full and does so many per second."""
    limit = AdaptiveLimit(start)
    found = []
    now = 0.0
    while now < seconds:
        now += 1.0 / rate(limit.limit)
        if limit.ended(now, is_full=True):
            found.append(limit.limit)
    return found or [limit.limit]


def usual(limits: list[int]) -> int:
    """The limit that it comes back to."""
    return sorted(limits[len(limits) // 2 :])[len(limits[len(limits) // 2 :]) // 2]


@pytest.mark.parametrize("start", [1, 4, 40])
def test_it_finds_how_many_run_side_by_side(start: int) -> None:
    limits = adapted(start, lambda limit: 100.0 * min(limit, 8))
    assert 5 <= usual(limits) <= 14


@pytest.mark.parametrize("start", [2, 64])
def test_batches_are_not_starved(start: int) -> None:
    limits = adapted(start, lambda limit: min(limit, 16) / (0.008 + 0.001 * min(limit, 16)))
    assert 11 <= usual(limits) <= 26


def test_one_at_a_time_stays_one() -> None:
    assert usual(adapted(1, lambda _: 100.0)) <= 2


def test_nothing_is_learnt_where_the_limit_does_not_matter() -> None:
    limit = AdaptiveLimit(4)
    assert not any(limit.ended(number / 100, is_full=False) for number in range(5000))
    assert limit.limit == 4


def test_trial_ends_when_the_load_does() -> None:
    limit = AdaptiveLimit(4)
    now = 0.0
    while not limit.ended(now, is_full=True):
        now += 0.01
    assert limit.limit == 6
    while not limit.ended(now, is_full=False):
        now += 0.01
    assert limit.limit == 4
