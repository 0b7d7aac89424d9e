"""Lags are counted by bucket."""

from __future__ import annotations

from lb.telemetry.loop_lag import LAG_BOUNDS_S, LoopLag


def test_a_lag_on_a_bound_belongs_below_it() -> None:
    lag = LoopLag()
    lag.observe(LAG_BOUNDS_S[2])
    assert lag.counts[2] == 1
    assert sum(lag.counts) == 1


def test_lags_beyond_all_bounds_are_counted_last() -> None:
    lag = LoopLag()
    lag.observe(60.0)
    assert lag.counts[-1] == 1
    assert lag.sum == lag.last == 60.0


def test_an_early_tick_counts_as_no_lag() -> None:
    lag = LoopLag()
    lag.observe(-0.001)
    assert lag.counts[0] == 1
    assert lag.sum == 0.0
