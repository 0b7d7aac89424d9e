"""What was measured, kept on disk as it comes: a run that was ended goes on where it stopped.

A line is one measurement, or what Tritons take when they are asked directly. It counts for what has
the same fingerprint: what was played, for how long, and the commit that was measured.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.study.figures import Run, run_from

Times = dict[str, float]
"""Milliseconds that an execution takes without its rows, by model."""


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
        self._times: dict[tuple[str, str], list[Times]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            try:
                said = json.loads(line)
            except ValueError:  # the last line of a run that was killed
                continue
            if "times" in said:
                self._times[said["part"], said["commit"]] = said["times"]
            else:
                self._runs[Key(**said["key"])] = run_from(said["run"])

    def __contains__(self, key: Key) -> bool:
        return key in self._runs

    def add(self, key: Key, run: Run) -> None:
        """Note a measurement at once."""
        self._runs[key] = run
        self._write({"key": asdict(key), "run": asdict(run)})

    def add_times(self, part: str, commit: str, times: list[Times]) -> None:
        """Note what each Triton of a part takes."""
        self._times[part, commit] = times
        self._write({"part": part, "commit": commit, "times": times})

    def times(self, part: str, commit: str) -> list[Times] | None:
        """What was noted of a part."""
        return self._times.get((part, commit))

    def _write(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def contestants(self, part: str) -> list[str]:
        """Everybody with measurements of a part."""
        return list(dict.fromkeys(key.contestant for key in self._runs if key.part == part))

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
        self._times.clear()
        self._path.unlink(missing_ok=True)
