"""What variants change, compared with the scheduler as it is, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log, sqrt
from typing import Final

from benchmarks.ablate.journal import Journal
from benchmarks.ablate.mechanisms import BY_TUNING
from lb.balancing.tuning import Tuning

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


def record(journal: Journal, scenes: Sequence[str]) -> str:
    """A row for each constant: the scene that shows it best, with what changes there if it is off,
    half and double, and the mean of all goals of all scenes that were played with it."""
    lines = ["| constant | value | scene that shows it | off | half | double |", "|---|" * 2]
    for name, value in asdict(Tuning()).items():
        off = [f"off: {each}" for each, values in BY_TUNING.items() if name in values]
        off.sort(key=lambda each: len(BY_TUNING[each.removeprefix("off: ")]))
        variants = (*off[:1], f"{name} / 2", f"{name} x 2")
        found = {each: _all_changes(journal, each, scenes) for each in variants}
        shown = _most_moved(found)
        cells = [_cell(found.get(off[0], {}), shown) if off else "-"]
        cells += [_cell(found[each], shown) for each in variants[-2:]]
        where = ": ".join(shown) if shown else "none"
        lines.append(f"| `{name}` | {value:.4g} | {where} | {' | '.join(cells)} |")
    return "\n".join(lines)


Goal = tuple[str, str]
"""A scene, and a figure of it."""


def _all_changes(journal: Journal, variant: str, scenes: Sequence[str]) -> dict[Goal, Change]:
    """All changes by a variant, with as many seeds as were played."""
    return {
        (scene, goal): change
        for scene in scenes
        for goal, change in changes(journal, variant, scene, SCREENING + DECIDING).items()
    }


def _most_moved(found: Mapping[str, Mapping[Goal, Change]]) -> Goal | None:
    """The goal that a constant moves most: surely, if there is one, and by being off rather than by
    being half or double."""
    best: tuple[tuple[bool, float], Goal] | None = None
    for variant, all_changes in found.items():
        for goal, change in all_changes.items():
            size = min(abs(change.mean), 10.0) * (2.0 if variant.startswith("off: ") else 1.0)
            key = (change.is_move and change.error > 0.0, size)
            if change.mean and (best is None or key > best[0]):
                best = key, goal
    return best[1] if best is not None else None


def _cell(all_changes: Mapping[Goal, Change], shown: Goal | None) -> str:
    """What changes for the goal that is shown, and the mean of all goals."""
    if not all_changes:
        return "0"
    change = all_changes.get(shown) if shown is not None else None
    mean = sum(log(1.0 + each.mean) for each in all_changes.values()) / len(all_changes)
    own = f"{change.mean:+.0%}" if change is not None else "0"
    return f"{own} (mean {exp(mean) - 1.0:+.1%})"
