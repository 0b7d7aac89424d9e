"""Plays all scenes with all variants of the scheduler, and writes what each moves.

    python -m benchmarks.ablate [--jobs 2] [--only TEXT] [--report] [--record]

Variants are the scheduler with one constant half or twice as large, or with one mechanism off. Each
plays each scene in which it may matter with one seed. Where that moves a goal by more than 2 % it
plays five further seeds, and these alone decide. What is played is kept in build/ablate.jsonl, so
that a run which was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.ablate.journal import TOP, Journal
from benchmarks.ablate.player import Player
from benchmarks.ablate.reach import reaching
from benchmarks.ablate.table import BASE, DECIDING, SCREENING, changes, record, report
from benchmarks.ablate.variants import variants

MOVES_A_LITTLE: Final = 0.02
"""A change of that part is looked at more closely."""
CHANCE: Final = "chance"
JOURNAL: Final = TOP / "build" / "ablate.jsonl"


def main() -> None:
    """Play and report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="variants whose names contain that")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--report", action="store_true", help="play nothing")
    parser.add_argument("--record", action="store_true", help="play nothing, tell constant by one")
    arguments = parser.parse_args()
    from benchmarks.ablate.scenes import SCENES

    journal = Journal(arguments.journal)
    player = Player(journal, tuple(SCENES), arguments.jobs)
    some = [name for name in variants() if arguments.only in name and name not in (BASE, CHANCE)]
    if arguments.record:
        print(record(journal, tuple(SCENES)))
        return
    if not arguments.report:
        everything = dict.fromkeys(SCENES, SCREENING + DECIDING)
        player.play({BASE: everything})
        if left := [scene for scene in SCENES if scene not in journal.mentions]:
            player.run(BASE, {"mentions": left})
        player.play({CHANCE: everything})
        player.play({name: _reached(journal, name, tuple(SCENES)) for name in some})
        player.play({name: _moved(journal, name, tuple(SCENES)) for name in some})
    print(report(journal, some, tuple(SCENES)))


def _reached(journal: Journal, name: str, scenes: Sequence[str]) -> dict[str, Sequence[int]]:
    """The scenes that a variant plays at first."""
    variant = variants()[name]
    if variant.patch or variant.texts:
        return dict.fromkeys(scenes, SCREENING)
    return dict.fromkeys(reaching(variant.tuning, journal.mentions, scenes), SCREENING)


def _moved(journal: Journal, variant: str, scenes: Sequence[str]) -> dict[str, Sequence[int]]:
    """The scenes that are looked at more closely."""
    return {
        scene: DECIDING
        for scene in scenes
        if any(
            abs(change.mean) > MOVES_A_LITTLE
            for change in changes(journal, variant, scene, SCREENING).values()
        )
    }


if __name__ == "__main__":
    main()
