"""Requests that go again are counted, and those that might have."""

from __future__ import annotations

from lb.telemetry.reruns import RerunCounts, rerun_rows


def test_everything_is_read_when_it_is_asked_for() -> None:
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
