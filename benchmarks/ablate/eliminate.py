"""Takes mechanisms away, one after the other, as long as nothing becomes worse.

    python -m benchmarks.ablate.eliminate [--jobs 2]

Each step plays all scenes without one more mechanism. It is gone for good if no goal is worse by
5 %, compared with the step before: of two mechanisms that do the same, the second one stays. Those
that moved least by themselves come first.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.ablate.__main__ import JOURNAL
from benchmarks.ablate.journal import Journal
from benchmarks.ablate.player import AND, Player
from benchmarks.ablate.table import BASE, DECIDING, changes
from benchmarks.ablate.variants import variants


def main() -> None:
    """Play and report, step by step."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    arguments = parser.parse_args()
    from benchmarks.ablate.scenes import SCENES

    journal = Journal(arguments.journal)
    scenes = tuple(SCENES)
    player = Player(journal, scenes, arguments.jobs)
    seeds = dict.fromkeys(scenes, DECIDING)
    player.play({BASE: seeds})
    weight = {name: _weight(journal, name, scenes) for name in variants() if name[:5] == "off: "}
    gone: list[str] = []
    for name in sorted(weight, key=lambda each: weight[each]):
        before = AND.join(gone) or BASE
        now = AND.join([*gone, name])
        player.play_split(now, seeds)
        worse, better = [], []
        for scene in scenes:
            for goal, change in changes(journal, now, scene, DECIDING, before).items():
                if change.is_move:
                    told = f"{scene}: {goal} {change.mean:+.0%}"
                    (worse if change.mean > 0 else better).append(told)
        if not worse:
            gone.append(name)
        verdict = "stays" if worse else "goes"
        print(f"{name}: {verdict}; worse: {worse[:5]}; better: {better[:5]}", flush=True)


def _weight(journal: Journal, name: str, scenes: tuple[str, ...]) -> int:
    """How many goals a mechanism moves by itself, as far as that was played: those that are worse
    without it."""
    return sum(
        change.is_move and change.mean > 0
        for scene in scenes
        for change in changes(journal, name, scene, DECIDING).values()
    )


if __name__ == "__main__":
    main()
