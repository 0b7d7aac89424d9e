"""Counters beside those of requests."""

from __future__ import annotations

from lb.telemetry.counts import (
    LAG_BOUNDS_S,
    LoopLag,
    OwnCalls,
    Reloads,
    RerunCounts,
    ScalingStatus,
    rerun_rows,
    scaling_rows,
)
from tests.fakes.backends import make_backend


def test_reruns_are_read_when_they_are_asked_for() -> None:
    counts = RerunCounts()
    rows = rerun_rows(lambda: counts)
    assert list(rows["triton_lb_reruns_refused_total"]()) == []
    counts = RerunCounts(
        count=5,
        refused={"budget": 2, "lost_twice": 1},
        blocked_models=1,
        unkept_bodies=7,
        hedges=9,
        hedges_won=4,
        hedges_refused=3,
    )
    assert {name: list(read()) for name, read in rows.items()} == {
        "triton_lb_reruns_total": [((), 5)],
        "triton_lb_reruns_refused_total": [(("budget",), 2), (("lost_twice",), 1)],
        "triton_lb_blocked_models": [((), 1)],
        "triton_lb_unkept_bodies_total": [((), 7)],
        "triton_lb_hedges_total": [((), 9)],
        "triton_lb_hedges_won_total": [((), 4)],
        "triton_lb_hedges_refused_total": [((), 3)],
    }


def test_each_outcome_is_counted_by_operation_and_backend() -> None:
    calls, a, b = OwnCalls(), make_backend("a"), make_backend("b")
    calls.count("RepositoryIndex", a, "ok")
    calls.count("RepositoryIndex", a, "ok")
    calls.count("RepositoryIndex", b, "lost")
    assert calls.counts == {("RepositoryIndex", a, "ok"): 2, ("RepositoryIndex", b, "lost"): 1}


def test_backends_that_are_gone_are_forgotten() -> None:
    calls, a, b = OwnCalls(), make_backend("a"), make_backend("b")
    calls.count("RepositoryIndex", a, "ok")
    calls.count("RepositoryIndex", b, "ok")
    calls.retain({b})
    assert calls.counts == {("RepositoryIndex", b, "ok"): 1}


def scaling(status: ScalingStatus) -> dict[str, list[float]]:
    return {
        name: [value for _, value in read()] for name, read in scaling_rows(lambda: status).items()
    }


def test_what_autoscalers_read() -> None:
    assert scaling(ScalingStatus(desired=4, demand=99.5, rate=30.0)) == {
        "triton_lb_desired_backends": [4],
        "triton_lb_demand_rate": [99.5],
        "triton_lb_backend_capacity_rate": [30.0],
    }


def test_a_rate_that_was_not_learnt_is_absent() -> None:
    assert scaling(ScalingStatus(0, 0.0, None))["triton_lb_backend_capacity_rate"] == []


def test_the_first_configuration_counts_as_success_and_not_as_reload() -> None:
    reloads = Reloads("abc", 5.0)
    assert (reloads.digest, reloads.applied_at, reloads.succeeded) == ("abc", 5.0, True)
    assert reloads.counts == {"applied": 0, "unchanged": 0, "refused": 0}


def test_a_refused_one_leaves_what_is_in_force() -> None:
    reloads = Reloads("abc", 5.0)
    reloads.refused()
    assert (reloads.digest, reloads.applied_at, reloads.succeeded) == ("abc", 5.0, False)
    reloads.accepted("def", 9.0, changed=True)
    assert (reloads.digest, reloads.applied_at, reloads.succeeded) == ("def", 9.0, True)
    reloads.accepted("ghi", 10.0, changed=False)
    assert reloads.counts == {"applied": 1, "unchanged": 1, "refused": 1}
    assert reloads.digest == "ghi"


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
