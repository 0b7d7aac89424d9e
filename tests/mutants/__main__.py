"""Command line of the mutants: `python -m tests.mutants --help`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.fakes.process import REPOSITORY
from tests.mutants.mutate import choose
from tests.mutants.run import KILLED, NOT_RUN, Workshop

_RECORD = Path(__file__).with_name("record.json")
_SEED = 1
_MOST = 12
"""Mutants of one module."""


def main() -> int:
    """Play mutants until the time is over; 1 if fewer are killed than is recorded."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description="Puts small defects into lb/proxy and tells which ones no test notices.",
    )
    parser.add_argument("--count", type=int, default=300, help="mutants to choose (300)")
    parser.add_argument("--seconds", type=float, default=1200, help="for playing them (1200)")
    parser.add_argument("--update", action="store_true", help="record what was found")
    given = parser.parse_args()
    workshop = Workshop(REPOSITORY / "build" / "mutants")
    chosen = choose(workshop.sources, given.count, most=_MOST, seed=_SEED)
    workshop.learn()
    until = time.monotonic() + given.seconds
    outcomes: dict[str, str] = {}
    for number, mutant in enumerate(chosen, 1):
        if mutant.name not in workshop.outcomes and time.monotonic() > until:
            break
        outcomes[mutant.name] = outcome = workshop.play(mutant)
        _say(f"{number:3} {outcome:8} {mutant.name} line {mutant.line}: {mutant.text}")
    counts = Counter(outcomes.values())
    _say(
        f"{counts[KILLED]} of {len(outcomes)} killed ({_share(outcomes):.1%}), {counts[NOT_RUN]} in"
        f" lines that no test runs; {len(chosen)} were chosen"
    )
    if given.update:
        _RECORD.write_text(json.dumps(outcomes, indent=1) + "\n")
    recorded = json.loads(_RECORD.read_text())
    _say(f"recorded: {_share(recorded):.1%} of {len(recorded)}")
    lost = [name for name, was in recorded.items() if was == KILLED != outcomes.get(name, KILLED)]
    for name in lost:
        _say(f"was killed: {name}")
    return 1 if lost or _share(outcomes) < _share(recorded) else 0


def _share(outcomes: Mapping[str, str]) -> float:
    """How much of them is killed."""
    return Counter(outcomes.values())[KILLED] / max(1, len(outcomes))


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # this is what it is for


if __name__ == "__main__":
    sys.exit(main())
