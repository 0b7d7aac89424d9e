"""The variants of the scheduler: each constant half and twice as large, each mechanism off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Final

from benchmarks.ablate import mechanisms
from lb.balancing.tuning import Tuning

UNUSUAL: Final[Mapping[str, tuple[float, float]]] = {
    # Powers of two.
    "adjust_every": (4, 16),
    # Parts of 1, and what is left of something.
    "own_execution_weight": (0.375, 1.0),
    "penalty_after_success": (0.25, 0.9),
    "adaptive_pressure": (0.4, 0.95),
    # Factors: what is beyond 1.
    "adaptive_step": (1.25, 2.0),
    "external_late_intervals": (1.25, 2.0),
    "negligible_penalty": (1.05, 1.2),
    "penalty_per_failure": (1.125, 1.5),
    "slow_ratio": (1.125, 1.5),
    "confirm_ratio": (1.25, 2.0),
    "same_work_ratio": (1.1, 1.4),
    "tail_ratio": (1.15, 1.6),
    "affinity_slack": (1.25, 2.0),
    "sequence_alike_ratio": (1.25, 2.0),
}
"""Constants of which half and double are something else."""


@dataclass(frozen=True)
class Variant:
    """One variant of the scheduler."""

    name: str
    tuning: Mapping[str, float] = field(default_factory=dict)
    """Values of `Tuning`."""
    texts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What stands instead of some code, by module."""
    patch: str = ""
    """A function of `mechanisms` that is called before anything is played."""


@cache
def variants() -> dict[str, Variant]:
    """All variants by name. The first is the scheduler as it is; the second differs from it in
    nothing that matters, which tells what chance does."""
    return {each.name: each for each in _all()}


def _all() -> Iterable[Variant]:
    yield Variant("as it is")
    text = "TURNAROUND_S = 0.0008"
    yield Variant("chance", texts={"benchmarks.study.simulate": {text: f"{text}001"}})
    for name, values in mechanisms.BY_TUNING.items():
        yield Variant(f"off: {name}", values)
    for name, (module, before, after) in mechanisms.BY_TEXT.items():
        yield Variant(f"off: {name}", texts={f"lb.balancing.{module}": {before: after}})
    for name in mechanisms.PATCHES:
        yield Variant(f"off: {name}", patch=name)
    for name, value in asdict(Tuning()).items():
        half, double = UNUSUAL.get(name, (value / 2, 2 * value))
        if isinstance(value, int) and name not in UNUSUAL:
            half, double = max(1, value // 2), 2 * value
        yield Variant(f"{name} / 2", {name: half})
        yield Variant(f"{name} x 2", {name: double})
