"""Rules between the variants of a name, its ramp, its shadow and other models; and between what is
to be written and where to."""

from __future__ import annotations

from typing import Any

import pytest

from lb.settings.warnings import warnings_of
from tests.unit.settings.test_relations import told
from tests.unit.settings.test_standby import settings

ONE = {"name": "one", "model": "a", "weight": 1}
TWO = {"name": "two", "model": "b", "weight": 1}
SHADOW = {"model": "c"}
_MANY = [{"name": f"v{number}", "model": f"a{number}", "weight": 1} for number in range(40)]


def of_name(**given: Any) -> list[str]:
    return told({"models": {"m": given}})


@pytest.mark.parametrize(
    ("given", "problem"),
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
def test_what_contradicts_the_variants_is_told(given: dict[str, Any], problem: str) -> None:
    (found,) = of_name(**given)
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


def test_a_rollback_is_judged_by_the_requests_of_all_workers() -> None:
    models = {"m": {"variants": [ONE, TWO], "rollback": {}}}
    made = settings({"http": "127.0.0.1:18010"}, workers=2, models=models)
    assert warnings_of(made, made.backends) == []
    assert told({"workers": 2, "models": models}) == []


@pytest.mark.parametrize("value", ["true", "false", True, False, "auto"])
def test_a_switch_may_come_from_the_environment(value: str | bool) -> None:
    (backend,) = settings({"http": "127.0.0.1:18010", "shared_memory": value}).backends
    assert str(backend.shared_memory).lower() == str(value).lower()


@pytest.mark.parametrize(
    ("given", "problem"),
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
def test_what_has_nowhere_to_go_is_told(given: dict[str, Any], problem: str) -> None:
    assert told(given) == [problem]
    assert told({"payload_log": {"models": {"m": 0}}}) == []
