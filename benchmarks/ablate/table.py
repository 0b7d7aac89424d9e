"""What variants change, compared with the scheduler as it is, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Final

from benchmarks.ablate.journal import Journal

LOWER_IS_BETTER: Final = ("p50", "p99", "mean", "moved", "instructions", "refused")
BASE: Final = "as it is"
"""The variant that the others are compared with."""
MOVES: Final = 0.05
"""A goal is moved by a change of that part."""
SURE: Final = 3.0
"""Standard errors that a change has to be."""
SCREENING: Final = (1,)
DECIDING: Final = (2, 3, 4, 5, 6)


@dataclass(frozen=True)
class Change:
    """By which part a goal is worse with a variant; negative where it is better."""

    mean: float
    error: float
    """Standard error of that."""

    @property
    def is_move(self) -> bool:
        """Whether it is a change that chance does not make."""
        return abs(self.mean) >= MOVES and abs(self.mean) >= SURE * self.error


def changes(
    journal: Journal, variant: str, scene: str, seeds: Sequence[int], before: str = BASE
) -> dict[str, Change]:
    """The changes of all goals of a scene, compared with the variant before; none where it was not
    played with these seeds."""
    logs: dict[str, list[float]] = {}
    for seed in seeds:
        base = journal.find(before, scene, seed)
        other = journal.find(variant, scene, seed)
        if base is None or other is None:
            continue
        for goal, value in base.figures.items():
            now = other.figures.get(goal, value)
            ratio = log(max(now, 1e-9) / max(value, 1e-9))
            is_lower_better = goal.startswith(LOWER_IS_BETTER)
            logs.setdefault(goal, []).append(ratio if is_lower_better else -ratio)
    found = {}
    for goal, each in logs.items():
        mean = sum(each) / len(each)
        spread = sum((one - mean) ** 2 for one in each) / max(1, len(each) - 1)
        found[goal] = Change(exp(mean) - 1.0, sqrt(spread / len(each)))
    return found


def report(journal: Journal, variants: Sequence[str], scenes: Sequence[str]) -> str:
    """The moves of each variant, and those that move nothing."""
    lines = []
    for variant in variants:
        moves = []
        for scene in scenes:
            for goal, change in changes(journal, variant, scene, DECIDING).items():
                if change.is_move:
                    moves.append((abs(change.mean), f"{scene}: {goal} {change.mean:+.0%}"))
        moves.sort(reverse=True)
        told = "; ".join(text for _, text in moves[:6]) or "nothing"
        lines.append(f"{variant}: [{len(moves)}] {told}")
    return "\n".join(lines)
