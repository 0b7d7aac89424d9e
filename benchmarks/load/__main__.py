"""Command line of the side-by-side benchmark: `python -m benchmarks.load --help`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from benchmarks.load import report
from benchmarks.load.bench import Bench, Plan, say
from benchmarks.load.cells import CELLS, select
from benchmarks.load.processes import BenchError, Cores
from benchmarks.load.proxies import ENVOY, RECIPES, TRITON_LB, add_revision, remove_tree

_OUT = Path(__file__).resolve().parents[1] / "out"
_AGAINST = _OUT / "against"


def main() -> int:
    """Run the plan that the arguments ask for; 1 if a proxy failed in a cell, 2 if nothing ran."""
    parser = _parser()
    given = parser.parse_args()
    if given.list:
        print("\n".join(f"{cell.name:32} {cell.title}" for cell in CELLS))
        return 0
    try:
        plan = _plan(given)
    except (ValueError, BenchError) as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.sched_setaffinity(0, {plan.cores.load})
    try:
        facts = report.describe(plan)
        results = Bench(plan).run()
    except BenchError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        remove_tree(_AGAINST)
    print(report.as_text(plan, facts, results))
    _write(given.results, report.as_markdown(plan, facts, results))
    _write(given.json, report.as_json(plan, facts, results))
    failures = [
        f"{cell}: {name}: {result.error}"
        for cell, row in results.items()
        for name, result in row.items()
        if result.error
    ]
    for failure in failures:
        say(f"failed: {failure}")
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load",
        description="CPU per request, rate and latency of triton-lb and its peers, side by side.",
    )
    parser.add_argument("--quick", action="store_true", help="shorter: 3 rounds of 1 s")
    parser.add_argument(
        "--cells", nargs="+", default=[], metavar="PATTERN", help="names or shell patterns"
    )
    parser.add_argument("--list", action="store_true", help="print the cells and end")
    parser.add_argument(
        "--proxies", help=f"separated by commas, of {', '.join(RECIPES)} (default: all; quick: two)"
    )
    parser.add_argument("--against", metavar="REV", help="triton-lb and this commit of it, alone")
    parser.add_argument("--rounds", type=int, help="repetitions of every measurement (5)")
    parser.add_argument("--seconds", type=float, help="length of one measurement (2)")
    parser.add_argument("--backends", type=int, default=2, help="stand-in Tritons (2)")
    parser.add_argument("--cores", metavar="PROXY,LOAD[,BACKEND]", help="(the first two usable)")
    parser.add_argument("--json", type=Path, default=_OUT / "results.json", metavar="FILE")
    parser.add_argument("--results", type=Path, default=_OUT / "RESULTS.md", metavar="FILE")
    return parser


def _plan(given: argparse.Namespace) -> Plan:
    usual = [TRITON_LB, ENVOY] if given.quick else list(RECIPES)
    baseline = ENVOY
    if given.against:
        baseline = add_revision(given.against, _AGAINST)
        usual = [TRITON_LB, baseline]
    names = given.proxies.split(",") if given.proxies else usual
    unknown = [name for name in names if name not in RECIPES]
    if unknown:
        raise ValueError(f"unknown proxies: {', '.join(unknown)}; there are: {', '.join(RECIPES)}")
    return Plan(
        cells=select(given.cells),
        proxies=names,
        rounds=given.rounds or (3 if given.quick else 5),
        seconds=given.seconds or (1.0 if given.quick else 2.0),
        backends=given.backends,
        cores=Cores.parse(given.cores) if given.cores else Cores.choose(),
        baseline=baseline,
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    say(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
