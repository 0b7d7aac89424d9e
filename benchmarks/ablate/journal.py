"""What was played, kept on disk as it comes: a run that was ended goes on where it stopped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

TOP: Final = Path(__file__).parents[2]
PLAYED: Final = (
    "lb/balancing/*.py",
    "lb/domain/*.py",
    "benchmarks/ablate/scenes.py",
    "benchmarks/ablate/balancers.py",
    "benchmarks/study/simulate*.py",
)
"""Files that decide what comes of a play."""


def source() -> str:
    """Tells whether the scheduler and the scenes are the same as those of a play."""
    digest = blake2b(digest_size=8)
    for pattern in PLAYED:
        for path in sorted(TOP.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Play:
    """What came of one scene with one seed."""

    figures: dict[str, float]
    mark: str


class Journal:
    """All plays of the present source."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._source = source()
        self._plays: dict[tuple[str, str, int], Play] = {}
        self.mentions: dict[str, set[str]] = {}
        """By scene: the names that the scheduler mentions there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                said = json.loads(line)
            except ValueError:  # the last line of a run that was killed
                continue
            if said["source"] == self._source:
                self._note(said)

    def _note(self, said: dict[str, object]) -> None:
        if "mentions" in said:
            names = said["mentions"]
            assert isinstance(names, list)
            self.mentions[str(said["scene"])] = set(names)
            return
        key = (str(said["variant"]), str(said["scene"]), int(str(said["seed"])))
        figures = said["figures"]
        assert isinstance(figures, dict)
        self._plays[key] = Play(figures, str(said["mark"]))

    def add(self, variant: str, said: dict[str, object]) -> None:
        """Note a line that a child has written."""
        said = {"source": self._source, "variant": variant, **said}
        self._note(said)
        with self._path.open("a") as file:
            file.write(json.dumps(said) + "\n")

    def find(self, variant: str, scene: str, seed: int) -> Play | None:
        """What came of a play, if it is known."""
        return self._plays.get((variant, scene, seed))
