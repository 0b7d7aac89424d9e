"""Rules between the settings of the fronts and others."""

from __future__ import annotations

import pytest

from tests.unit.settings.test_fronts import problems, read


def test_the_port_must_be_in_the_safe_range() -> None:
    assert problems("{sagemaker: {enabled: true, safe_port_range: 9000-9100}}") == [
        "fronts.sagemaker.address: port 8080 is outside of the safe_port_range 9000-9100"
    ]
    assert read("{sagemaker: {enabled: true, safe_port_range: 8080-8080}}").fronts


@pytest.mark.parametrize(
    ("fronts", "problem"),
    [
        (
            '{sagemaker: {enabled: true, address: "0.0.0.0:8000"}}',
            "fronts.sagemaker.address: 0.0.0.0:8000 is already taken by listen.http",
        ),
        (
            "{sagemaker: {enabled: true}, "
            "vertex: {enabled: true, health_route: /h, predict_route: /p}}",
            "fronts.vertex.address: 0.0.0.0:8080 is already taken by fronts.sagemaker",
        ),
        (
            '{sagemaker: {enabled: true, address: "127.0.0.1:18000"}}',
            "backends[0].http: 127.0.0.1:18000 is our own listener fronts.sagemaker",
        ),
    ],
)
def test_addresses_must_not_meet(fronts: str, problem: str) -> None:
    assert problem in problems(fronts)


def test_a_front_that_is_off_takes_no_address() -> None:
    assert read('{sagemaker: {enabled: false, address: "0.0.0.0:8000"}}').fronts
