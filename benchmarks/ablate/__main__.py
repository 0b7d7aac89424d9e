"""Plays all scenes with all variants of the scheduler, and writes what each moves.

    python -m benchmarks.ablate [--jobs 2] [--only TEXT] [--seeds 6]

Variants are the scheduler with one constant half or twice as large, or with one mechanism off. Each
plays each scene in which it may matter with one seed. Where that moves a goal by more than 2 % it
plays five further seeds, and these alone decide. What is played is kept in build/ablate.jsonl, so
that a run which was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Final

from benchmarks.ablate.journal import TOP, Journal
from benchmarks.ablate.reach import reaching
from benchmarks.ablate.table import DECIDING, SCREENING, changes, report
from benchmarks.ablate.variants import variants

MOVES_A_LITTLE: Final = 0.02
"""A change of that part is looked at more closely."""
BASE: Final = "as it is"
CHANCE: Final = "chance"
JOURNAL: Final = TOP / "build" / "ablate.jsonl"


class Player:
    """Has children play what is not in the journal."""

    def __init__(self, journal: Journal, scenes: Sequence[str], jobs: int) -> None:
        self.journal = journal
        self.scenes = scenes
        self._jobs = jobs
        self._lock = Lock()

    def play(self, asked: Mapping[str, Mapping[str, Sequence[int]]]) -> None:
        """Play seeds of scenes, by variant."""
        with ThreadPoolExecutor(self._jobs) as pool:
            for number, _ in enumerate(pool.map(self._one, asked.items())):
                print(f"\r{number + 1} of {len(asked)} variants", end="", file=sys.stderr)
        print(file=sys.stderr)

    def _one(self, asked: tuple[str, Mapping[str, Sequence[int]]]) -> None:
        variant, plays = asked
        left: dict[str, list[int]] = {}
        marks: dict[str, str] = {}
        for scene, seeds in plays.items():
            if self.is_same(variant, scene):
                continue
            missing = [each for each in seeds if self.journal.find(variant, scene, each) is None]
            if missing:
                left[scene] = missing
                base = self.journal.find(BASE, scene, missing[0])
                if variant != BASE and base is not None:
                    marks[scene] = base.mark
        if left:
            self.run(variant, {"variant": variant, "plays": left, "marks": marks})

    def run(self, name: str, asked: Mapping[str, object]) -> None:
        """Have a child play, and note what it says."""
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ablate.child"],
            cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        json.dump(asked, child.stdin)
        child.stdin.close()
        for line in child.stdout:
            with self._lock:
                self.journal.add(name, json.loads(line))
        if child.wait():
            print(f"\n{name}: did not play to the end", file=sys.stderr)

    def is_same(self, variant: str, scene: str) -> bool:
        """Whether a variant is known to change nothing in a scene."""
        first = self.journal.find(variant, scene, SCREENING[0])
        base = self.journal.find(BASE, scene, SCREENING[0])
        return (
            variant != BASE
            and first is not None
            and base is not None
            and first.mark == base.mark
            and "instructions" not in first.figures
        )


def main() -> None:
    """Play and report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="variants whose names contain that")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--report", action="store_true", help="play nothing")
    arguments = parser.parse_args()
    from benchmarks.ablate.scenes import SCENES

    journal = Journal(arguments.journal)
    player = Player(journal, tuple(SCENES), arguments.jobs)
    some = [name for name in variants() if arguments.only in name and name not in (BASE, CHANCE)]
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
    names = [constant.rpartition(".")[2] for constant in variant.constants]
    return dict.fromkeys(reaching(names, journal.mentions, scenes), SCREENING)


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
