from __future__ import annotations

from lb.telemetry.scaling import ScalingStatus, scaling_rows


def rows(status: ScalingStatus) -> dict[str, list[float]]:
    return {
        name: [value for _, value in read()] for name, read in scaling_rows(lambda: status).items()
    }


def test_what_autoscalers_read() -> None:
    assert rows(ScalingStatus(desired=4, demand=99.5, rate=30.0)) == {
        "triton_lb_desired_backends": [4],
        "triton_lb_demand_rate": [99.5],
        "triton_lb_backend_capacity_rate": [30.0],
    }


def test_a_rate_that_was_not_learnt_is_absent() -> None:
    assert rows(ScalingStatus(0, 0.0, None))["triton_lb_backend_capacity_rate"] == []
