"""Compare the branch coverage of each package with the recorded floor.

    python tools/coverage_floors.py REPORT [--update]

REPORT is what `coverage json` writes. Exit code 1: a package is below its floor, or has none.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FLOORS = Path(__file__).parents[1] / "tests" / "coverage_floors.json"
_TOLERANCE = 0.5
"""Percentage points: which of two sides comes first on a socket differs from run to run."""


class Branches(NamedTuple):
    """How many branches of a package there are, and how many of them the tests took."""

    covered: int
    total: int

    @property
    def percent(self) -> float:
        """Share of the branches taken, rounded down to a tenth."""
        return math.floor(self.covered / self.total * 1000) / 10


def by_package(
    report: Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]],
) -> dict[str, Branches]:
    """The branches of each package that has any, without those of the packages inside of it.

    Args:
        report: what `coverage json` writes.
    """
    found: dict[str, Branches] = {}
    for file, entry in report["files"].items():
        summary = entry["summary"]
        covered, total = found.get(package := str(Path(file).parent), Branches(0, 0))
        found[package] = Branches(
            covered + summary["covered_branches"], total + summary["num_branches"]
        )
    return {package: found[package] for package in sorted(found) if found[package].total}


def problems(measured: Mapping[str, Branches], floors: Mapping[str, float]) -> list[str]:
    """One line for every package that is below its floor, or has none."""
    lines = []
    for package, branches in measured.items():
        floor = floors.get(package)
        if floor is None:
            lines.append(f"{package} has no floor: run with --update")
        elif branches.percent < floor - _TOLERANCE:
            lines.append(f"{package}: {branches.percent} % of the branches, the floor is {floor} %")
    return lines


def main() -> int:
    """Print a table of all packages, and what is wrong."""
    parser = argparse.ArgumentParser(prog="python tools/coverage_floors.py")
    parser.add_argument("report", type=Path, help="what `coverage json` writes")
    parser.add_argument("--update", action="store_true", help="record these figures as the floors")
    given = parser.parse_args()
    measured = by_package(json.loads(given.report.read_text()))
    if given.update:
        floors = {package: branches.percent for package, branches in measured.items()}
        FLOORS.write_text(json.dumps(floors, indent=1) + "\n")
    floors = json.loads(FLOORS.read_text())
    for package, branches in measured.items():
        counts = f"{branches.covered:6} of {branches.total:6} {branches.percent:6.1f} %"
        print(f"{package:24} {counts}  floor {floors.get(package, 'none')}")
    wrong = problems(measured, floors)
    for line in wrong:
        print(f"coverage: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
