"""What was measured, kept on disk as it comes: a run that was ended goes on where it stopped.

A line is one measurement. It counts for what has the same fingerprint: what was played, for how
long, and the commit that was measured.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.study.figures import Run, run_from


@dataclass(frozen=True)
class Key:
    """Which measurement it is."""

    part: str
    step: str
    contestant: str
    number: int
    fingerprint: str


class Journal:
    """The file, and all that is in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._runs: dict[Key, Run] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            try:
                said = json.loads(line)
            except ValueError:  # the last line of a run that was killed
                continue
            self._runs[Key(**said["key"])] = run_from(said["run"])

    def __contains__(self, key: Key) -> bool:
        return key in self._runs

    def add(self, key: Key, run: Run) -> None:
        """Note a measurement at once."""
        self._runs[key] = run
        with self._path.open("a") as file:
            file.write(json.dumps({"key": asdict(key), "run": asdict(run)}) + "\n")

    def runs(self, part: str, step: str, contestant: str, fingerprint: str) -> list[Run]:
        """All of them, in the order of their numbers."""
        found = {
            key.number: run
            for key, run in self._runs.items()
            if (key.part, key.step, key.contestant, key.fingerprint)
            == (part, step, contestant, fingerprint)
        }
        return [found[number] for number in sorted(found)]

    def clear(self) -> None:
        """Forget everything."""
        self._runs.clear()
        self._path.unlink(missing_ok=True)
