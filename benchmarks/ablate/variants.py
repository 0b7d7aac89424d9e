"""The variants of the scheduler: each constant half and twice as large, each mechanism off."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks.ablate import mechanisms

TOP: Final = Path(__file__).parents[2]
MODULES: Final = (
    "adaptive", "backend_external_load", "backend_penalty", "batching", "cost", "eligible_set",
    "external_load", "model_backend", "model_backend_index", "model_queue", "model_stats",
    "ranking", "scheduler", "selection", "step_latency", "unanswered", "waiting",
)  # fmt: skip
BOUNDS: Final = frozenset(
    {
        "adaptive._MAX",
        "cost._FLOOR_S",
        "ranking._EXACT",
        "step_latency._FLOOR_S",
        "model_backend._ENDS",
        "model_backend._SCATTER",
        "model_backend_index._LEAST_S",
        "model_queue._MAX_ALIASES",
        "model_queue._MAX_ELIGIBLE_SETS",
        "model_queue._ROUNDING_S",
        "scheduler._LATE_AT_ONCE",
        "scheduler._MAX_MODEL_QUEUES",
        "scheduler._SCATTER",
        "scheduler._SEVERAL",
        "scheduler._CLEANUP_MIN",
        "scheduler._RENEWED_AT_ONCE",
        "waiting.LOWEST",
        "waiting._COMPACT",
        "waiting._LAST_NUMBER",
        "waiting._CLEANUP_MIN",
    }
)
"""Constants that bound memory or work, or keep numbers from being 0: they decide nothing."""
UNUSUAL: Final[Mapping[str, tuple[float, float]]] = {
    # Masks of bits: twice as many, and half as many.
    "model_backend._ADJUST_EVERY": (3, 15),
    "model_backend._SKIPPED": (0xE000, 0xF800),
    "model_backend._USUAL_EVERY": (1, 7),
    "scheduler._ARRIVALS_SKIPPED": (0x8000, 0xE000),
    # Parts of 1, and what is left of something.
    "model_backend.OWN_EXECUTION_WEIGHT": (0.375, 1.0),
    "backend_penalty._LEFT_AFTER_SUCCESS": (0.25, 0.9),
    "adaptive._PRESSING": (0.4, 0.95),
    "batching._KEEP": (0.95, 0.8),
    "model_stats._MAX_TIE_TOLERANCE": (0.4, 0.95),
    # Factors: what is beyond 1.
    "adaptive._STEP": (1.25, 2.0),
    "backend_external_load._LATE": (1.25, 2.0),
    "backend_external_load._MOST": (2.5, 7.0),
    "backend_penalty._NEGLIGIBLE": (1.05, 1.2),
    "batching._JOINED": (1.5, 3.0),
    "eligible_set.SLOW": (1.125, 1.5),
    "model_backend._AS_BEFORE": (1.25, 2.0),
    "model_queue._SAME_WORK": (1.1, 1.4),
    "model_stats.TAIL": (1.15, 1.6),
    "scheduler._AFFINITY_SLACK": (1.25, 2.0),
    "selection.NO_LEAD_S": (-0.5, -2.0),
}
"""Constants of which half and double are something else."""


@dataclass(frozen=True)
class Variant:
    """One variant of the scheduler."""

    name: str
    constants: Mapping[str, float] = field(default_factory=dict)
    """By module and name."""
    texts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What stands instead of some code, by module."""
    patch: str = ""
    """A function of `mechanisms` that is called before anything is played."""


def constants() -> dict[str, float]:
    """The behavioural numeric constants of the scheduler as they are."""
    found: dict[str, float] = {}
    for module in MODULES:
        path = TOP / "lb" / "balancing" / f"{module}.py"
        for node in ast.parse(path.read_text()).body if path.exists() else ():
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
                continue
            name = f"{module}.{node.target.id}"
            value = _number(node.value)
            if value is not None and name not in BOUNDS:
                found[name] = value
    return found


def _number(node: ast.expr | None) -> float | None:
    if node is None or not all(
        isinstance(part, (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop))
        for part in ast.walk(node)
    ):
        return None
    value = eval(compile(ast.Expression(node), "", "eval"))  # numbers and operators only
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@cache
def variants() -> dict[str, Variant]:
    """All variants by name. The first is the scheduler as it is; the second differs from it in
    nothing that matters, which tells what chance does."""
    return {each.name: each for each in _all()}


def _all() -> Iterable[Variant]:
    yield Variant("as it is")
    yield Variant("chance", {"benchmarks.study.simulate.TURNAROUND_S": 0.0008001})
    for name, values in mechanisms.BY_CONSTANTS.items():
        full = {f"lb.balancing.{constant}": value for constant, value in values.items()}
        yield Variant(f"off: {name}", full)
    for name, (module, before, after) in mechanisms.BY_TEXT.items():
        yield Variant(f"off: {name}", texts={f"lb.balancing.{module}": {before: after}})
    for name in mechanisms.PATCHES:
        yield Variant(f"off: {name}", patch=name)
    for name, value in constants().items():
        half, double = UNUSUAL.get(name, (value / 2, 2 * value))
        if isinstance(value, int) and name not in UNUSUAL:
            half, double = max(1, value // 2), 2 * value
        yield Variant(f"{name} / 2", {f"lb.balancing.{name}": half})
        yield Variant(f"{name} x 2", {f"lb.balancing.{name}": double})
