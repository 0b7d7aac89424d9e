"""Prometheus and Grafana beside a stack."""

from __future__ import annotations

from lb.generate.monitoring import JOB


def test_the_job_is_the_one_of_the_rules() -> None:
    assert JOB == "triton-lb"
