"""Every behavioural constant of the scheduler and the policies is in `Tuning`, and is justified."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from lb.balancing.tuning import TUNING, Tuning

TOP = Path(__file__).parents[2]
BALANCING = TOP / "lb" / "balancing"
RECORD = TOP / "docs" / "decisions" / "0051-constants-of-the-scheduler.md"
MODULES = sorted(path for path in BALANCING.glob("*.py") if path.name != "tuning.py")

BOUNDS = {
    # Memory
    "capacity.NO_LIMIT", "adaptive._MAX", "least_latency._SPARE", "model_backend._ENDS",
    "model_queue._MAX_ELIGIBLE_SETS", "pin_rows._SHARDS",
    "scheduler._CLEANUP_MIN", "scheduler._MAX_MODEL_QUEUES", "sequences.IDLE_FACTOR",
    "sequences.REFUSED_LIFETIME_S", "sequences._MAX_MODELS", "waiting._CLEANUP_MIN",
    "tenant_times._KEPT", "waiting._COMPACT",
    # Work in one call
    "model_backend_index._TRIES", "model_queue._TRIES", "scheduler._LATE_AT_ONCE",
    "scheduler._RENEWED_AT_ONCE", "sequences._EVICTION_TRIES", "sequences._EXPIRED_PER_STEP",
    "waiting._SAMPLED",
    # Numbers that must not be 0, rounding, and shortcuts that give the same answer
    "cost._FLOOR_S", "least_latency._LEAST_S", "model_backend_index._LEAST_S",
    "model_queue._MIN_RETRY_S", "model_queue._ROUNDING_S", "ranking._EXACT",
    "ranking._FAR_EXECUTIONS", "step_latency._FLOOR_S",
    # Names of numbers
    "model_backend._SCATTER", "pin_rows.NO_ROW", "rendezvous.CHOICES", "scheduler._SCATTER",
    "scheduler._SEVERAL", "tenant_times._SCALE", "waiting.LOWEST", "waiting._LAST_NUMBER",
}  # fmt: skip
"""Numbers that decide nothing but how much memory or work something takes, by module and name."""
PLAIN = {0.0, 0.5, 1.0, 2.0}
"""Numbers that formulas contain."""


def numbers(path: Path) -> Iterator[str]:
    """The constants of a module that are made of numbers alone."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, value = node.target.id, node.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
        else:
            continue
        parts = list(ast.walk(value)) if value is not None else []
        constants = [each.value for each in parts if isinstance(each, ast.Constant)]
        is_made = any(isinstance(each, (ast.Name, ast.Call, ast.Tuple)) for each in parts)
        if constants and not is_made and all(isinstance(each, (int, float)) for each in constants):
            yield f"{path.stem}.{name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_behavioural_constant_is_elsewhere(path: Path) -> None:
    assert set(numbers(path)) <= BOUNDS
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef):
            found = {
                node.value
                for node in ast.walk(function)
                if isinstance(node, ast.Constant) and isinstance(node.value, float)
            }
            assert found <= PLAIN, function.name


def test_all_bounds_are_there() -> None:
    assert {name for path in MODULES for name in numbers(path)} >= BOUNDS


def rows() -> dict[str, list[str]]:
    """The rows of the record by the constant that each is about."""
    found = {}
    for line in RECORD.read_text().splitlines():
        match = re.match(r"\| `(\w+)` \|", line)
        if match:
            assert match[1] not in found, match[1]
            found[match[1]] = [cell.strip() for cell in line.strip("|").split("|")]
    return found


@pytest.mark.parametrize("name", [field.name for field in fields(Tuning)])
def test_each_constant_is_justified(name: str) -> None:
    _, value, purpose, scene, half, double, *_ = rows()[name]
    assert float(value) == pytest.approx(getattr(TUNING, name), rel=0.01)
    assert purpose
    assert scene
    assert half
    assert double


def test_nothing_else_is_justified() -> None:
    assert rows().keys() == {field.name for field in fields(Tuning)}


def test_each_constant_says_what_it_is() -> None:
    (body,) = [
        node.body
        for node in ast.parse((BALANCING / "tuning.py").read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    for field, text in zip(body[1::2], body[2::2], strict=True):
        assert isinstance(field, ast.AnnAssign)
        assert isinstance(text, ast.Expr), ast.unparse(field)
        assert isinstance(text.value, ast.Constant), ast.unparse(field)
