"""Command line of the fault suite: `python -m benchmarks.faults --help`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.faults import report, soak
from benchmarks.faults.contestants import MAKERS
from benchmarks.faults.load import Mix
from benchmarks.faults.play import play
from benchmarks.faults.scenarios import Scenario
from benchmarks.faults.site import capacity
from benchmarks.faults.worker_rows import every_scenario, with_workers
from benchmarks.load.bench import say
from benchmarks.load.processes import BenchError
from benchmarks.load.proxies import ENVOY, TRITON_LB, version

_HERE = Path(__file__).resolve().parents[1]


def main() -> int:
    """Play what the arguments ask for; 1 if triton-lb missed something, 2 if nothing ran."""
    parser = _parser()
    given = parser.parse_args()
    if given.list:
        for each in every_scenario(quick=given.quick):
            print(f"{each.name:20} {each.title}")
        return 0
    contestants = given.proxies.split(",")
    if unknown := set(contestants) - set(MAKERS):
        parser.error(f"unknown: {', '.join(unknown)}; there are: {', '.join(MAKERS)}")
    mix = Mix(rate=given.load * capacity(3, Mix().milliseconds))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    plays = []
    try:
        chosen = _chosen(given.scenarios, quick=given.quick)
        if given.soak:
            chosen = [soak.scenario(given.soak)]
        if given.workers > 1:
            chosen = with_workers(chosen, given.workers)
        for played in play(chosen, contestants, mix, seed=given.seed):
            plays.append(played)
            say(report.text([played], contestants))
    except (BenchError, ValueError) as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    print(report.text(plays, contestants))
    directory = _HERE if given.keep else _HERE / "out"
    directory.mkdir(exist_ok=True)
    page = report.page(plays, contestants, _facts(contestants, given.load, mix, given.seed))
    (directory / "RESULTS-faults.md").write_text(page)
    (directory / "results-faults.json").write_text(json.dumps(report.data(plays), indent=1) + "\n")
    missed = report.missed(plays)
    for line in missed:
        say(f"missed: {line}")
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults",
        description="What is lost when Tritons die, hang or lie, behind triton-lb and its peers.",
    )
    parser.add_argument(
        "scenarios", nargs="*", metavar="PATTERN", help="names or shell patterns (all)"
    )
    parser.add_argument("--list", action="store_true", help="print the scenarios and end")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument(
        "--proxies", default=",".join(MAKERS), help="who takes part, separated by commas (all)"
    )
    parser.add_argument(
        "--load", type=float, default=0.45, help="share of what three Tritons can carry (0.45)"
    )
    parser.add_argument(
        "--soak", type=float, default=0.0, metavar="MINUTES", help="all faults by chance, so long"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="of triton-lb in all rows (1)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn (1)")
    parser.add_argument(
        "--keep", action="store_true", help=f"write to {_HERE.name}/ instead of {_HERE.name}/out/"
    )
    return parser


def _chosen(patterns: list[str], *, quick: bool) -> list[Scenario]:
    every = every_scenario(quick=quick)
    for pattern in patterns:
        if not any(fnmatchcase(each.name, pattern) for each in every):
            raise ValueError(f"no scenario is called {pattern!r}; see --list")
    if not patterns:
        return list(every)
    return [each for each in every if any(fnmatchcase(each.name, one) for one in patterns)]


def _facts(contestants: list[str], share: float, mix: Mix, seed: int) -> dict[str, str]:
    others = {} if contestants == [TRITON_LB] else {"envoy": version(ENVOY)}
    return {
        "triton-lb": version(TRITON_LB),
        **others,
        "load": f"{mix.rate:.0f} requests/s, {share:.0%} of what three Tritons can carry",
        "python": platform.python_version(),
        "kernel": f"{platform.release()}, {os.cpu_count()} cores",
        "seed": str(seed),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


if __name__ == "__main__":
    sys.exit(main())
