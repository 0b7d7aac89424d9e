"""Has child processes play scenes, as many at a time as there are cores."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Final

from benchmarks.ablate.journal import TOP, Journal
from benchmarks.ablate.table import BASE, SCREENING

AND: Final = " & "
"""Between the names of variants that are played together."""


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

    def play_split(self, variant: str, asked: Mapping[str, Sequence[int]]) -> None:
        """Play one variant, its scenes shared out among children."""
        scenes = list(asked)
        parts = [
            {each: asked[each] for each in scenes[at :: self._jobs]} for at in range(self._jobs)
        ]
        with ThreadPoolExecutor(self._jobs) as pool:
            list(pool.map(self._all, [(variant, part) for part in parts]))

    def _one(self, asked: tuple[str, Mapping[str, Sequence[int]]]) -> None:
        """Play what is missing of one variant. Where it changes nothing with the first seed the
        others are left out."""
        variant, plays = asked
        left = {scene: seeds for scene, seeds in plays.items() if not self.is_same(variant, scene)}
        marks = {}
        for scene in left:
            base = self.journal.find(BASE, scene, SCREENING[0])
            if variant != BASE and base is not None:
                marks[scene] = base.mark
        self._play(variant, left, marks)

    def _all(self, asked: tuple[str, Mapping[str, Sequence[int]]]) -> None:
        self._play(*asked, {})

    def _play(
        self, variant: str, plays: Mapping[str, Sequence[int]], marks: Mapping[str, str]
    ) -> None:
        left = {
            scene: [each for each in seeds if self.journal.find(variant, scene, each) is None]
            for scene, seeds in plays.items()
        }
        left = {scene: seeds for scene, seeds in left.items() if seeds}
        if left:
            self.run(variant, {"variants": variant.split(AND), "plays": left, "marks": marks})

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
