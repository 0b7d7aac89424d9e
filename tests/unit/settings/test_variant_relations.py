"""Rules between the variants of a name, its ramp, its shadow and other models; and between what is
to be written and where to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.settings.test_relations import told

ONE = {"name": "one", "model": "a", "weight": 1}
TWO = {"name": "two", "model": "b", "weight": 1}
SHADOW = {"model": "c"}
_MANY = [{"name": f"v{number}", "model": f"a{number}", "weight": 1} for number in range(40)]


def of_name(**settings: Any) -> list[str]:
    return told({"models": {"m": settings}})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"variants": _MANY}, "models.m.variants: at most "),
        (
            {"variants": [ONE, TWO], "ramp": {"from": 60, "to": 40, "over": "1h"}},
            "models.m.ramp.to: the share of the last variant is 60 percent already",
        ),
        ({"shadow": SHADOW}, "models.m.shadow: needs variants"),
        (
            {"variants": [ONE, TWO], "shadow": {"model": "a"}},
            "models.m.shadow.model: variants[0] is the same model and version",
        ),
    ],
)
def test_what_contradicts_the_variants_is_told(settings: dict[str, Any], problem: str) -> None:
    (found,) = of_name(**settings)
    assert found.startswith(problem)


def test_a_shadow_is_a_model_and_may_run_what_it_gets_twice() -> None:
    models = {
        "m": {"variants": [ONE, TWO], "shadow": SHADOW},
        "c": {"variants": [{"name": "x", "model": "y", "weight": 1}]},
    }
    assert told({"models": models}) == [
        "models.m.shadow.model: 'c' has variants itself; name the model"
    ]
    assert told({"models": {**models, "c": {"retry": "never"}}}) == [
        "models.m.shadow.model: requests for 'c' must not run twice (retry: never)"
    ]
    assert told({"models": {**models, "c": {}}}) == []


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"tracing": {"headers": {"x-key": "0123456789abcdef"}}},
            "tracing.headers: there is no endpoint that they could go to",
        ),
        (
            {"payload_log": {"models": {"m": 0.5}}},
            "payload_log.path: needed to log what payload_log.models asks for",
        ),
    ],
)
def test_what_has_nowhere_to_go_is_told(settings: dict[str, Any], problem: str) -> None:
    assert told(settings) == [problem]
    assert told({"payload_log": {"models": {"m": 0}}}) == []
