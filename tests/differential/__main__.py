"""Compare the balancer with a Triton: `python -m tests.differential [--seconds S] [--seed N]`.

`--first N` begins with that case, `--only N` plays that one, `--replay JSON` one that was printed.
Exit code 1 when answers differ that should not.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

from tests.differential.cases import from_json
from tests.differential.compare import difference
from tests.differential.run import run
from tests.differential.stage import Stage


def _say(text: object) -> None:
    print(text, flush=True)  # noqa: T201  # this is what it is for


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--replay")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="differential-") as folder:
        stage = Stage(Path(folder))
        try:
            if asked.replay:
                return _replay(stage, asked.replay)
            only = asked.only
            numbers = itertools.count(asked.first) if only is None else iter((only,))
            report = run(stage, asked.seed, numbers=numbers, seconds=asked.seconds, tell=_say)
        finally:
            stage.close()
    _say(f"{report.played} requests, {len(report.findings)} differences, "
         f"{len(report.deaths)} deaths of Tritons")  # fmt: skip
    return 1 if report.findings or not report.played else 0


def _replay(stage: Stage, text: str) -> int:
    case = from_json(text)
    direct, balanced = stage.play(case)
    what = difference(case, direct, balanced)
    for side, outcome in (("Triton", direct), ("here", balanced), ("difference", what)):
        _say(f"{side}: {outcome}")
    return 1 if what else 0


if __name__ == "__main__":
    sys.exit(main())
