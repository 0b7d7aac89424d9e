"""Command line of the side-by-side benchmark: `python -m benchmarks.load --help`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from pathlib import Path

from benchmarks.load import idle, plots, publish, real_clients, report, stalls
from benchmarks.load.bench import Bench, Plan, passed, say
from benchmarks.load.cells import CELLS, select
from benchmarks.load.machine import describe
from benchmarks.load.processes import BenchError, Cores
from benchmarks.load.proxies import (
    COMPILED,
    ENVOY,
    RECIPES,
    TRITON_LB,
    add_compiled,
    add_revision,
    remove_tree,
    there_are,
)
from benchmarks.load.report import Report
from benchmarks.load.results import Results
from benchmarks.load.sections import Section, Verdict
from benchmarks.load.targets import judge

_HERE = Path(__file__).resolve().parents[1]
_OUT = _HERE / "out"
_AGAINST = _OUT / "against"
_CELLS_S, _QUICK_S = 15.5 * 60, 190.0
"""What all cells, and the core cells of a quick run of two proxies, may take."""

SECTIONS: dict[str, Callable[[Plan], Section]] = {
    "stalls": stalls.run,
    "idle": idle.run,
    "real-clients": real_clients.run,
}
"""What a whole run does after the cells, by name."""
PARTS: dict[str, Callable[[Plan], Section]] = {
    f"stalls:{scenario.kind}": partial(stalls.run, scenarios=[scenario])
    for scenario in stalls.SCENARIOS
}
"""Parts of them that can be run alone."""


def main() -> int:
    """Run the plan that the arguments ask for; 1 if a proxy failed in a cell, 2 if nothing ran."""
    parser = _parser()
    given = parser.parse_args()
    if given.list:
        print("\n".join(f"{cell.name:36} {cell.title}" for cell in CELLS))
        print("\n".join(f"{name:36} (section)" for name in SECTIONS | PARTS))
        return 0
    try:
        plan, sections = _plan(given)
    except (ValueError, BenchError) as error:
        parser.error(str(error))
    place = _HERE if given.keep else _OUT
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.sched_setaffinity(0, {plan.cores.load})
    try:
        facts = describe(plan)
        bench = Bench(plan)
        results = bench.run()
        made = [report.resting_section(plan.proxies, bench.resting)] if bench.resting else []
        if sections and results:
            # What is known by now is kept even if somebody ends the rest.
            _write(_report(plan, facts, results, made), place)
        made += [_section(name, plan) for name in sections]
    except BenchError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        remove_tree(_AGAINST)
    done = _report(plan, facts, results, made)
    print(report.as_text(done))
    _write(done, place)
    if given.keep and results and set(sections) == set(SECTIONS):
        publish.refresh(done)
    for failure in done.failures():
        say(f"failed: {failure}")
    return 1 if done.failures() else 0


def _report(
    plan: Plan, facts: dict[str, str], results: Results, made: Sequence[Section]
) -> report.Report:
    verdicts: list[Verdict] = []
    if plan.peers and not plan.against:
        verdicts += judge(results, {cell.name: cell.title for cell in CELLS})
    verdicts += [verdict for section in made for verdict in section.verdicts]
    return Report(plan, {**facts, "took": passed()}, results, verdicts, list(made))


def _section(name: str, plan: Plan) -> Section:
    """Run one; if it cannot, the report says so and keeps all else."""
    say(f"{name}:")
    try:
        return (SECTIONS | PARTS)[name](plan)
    except BenchError as error:
        say(f"  {error}")
        reason = f"{name}: {error}"
        return Section(name, name, [("", ""), ("not measured", "")], failures=[reason])


def _write(done: Report, directory: Path) -> None:
    """The page, the figures and the pictures."""
    pictures = plots.draw(done, directory / "plots")
    inside = {title: f"plots/{file}" for title, file in pictures.items()}
    report.write(directory / "RESULTS.md", report.as_markdown(done, inside))
    report.write(directory / "results.json", report.as_json(done))
    say(f"wrote RESULTS.md, results.json and {len(pictures)} plots to {directory}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load",
        description="CPU per request, rate and latency of triton-lb and its peers, side by side.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="core cells, triton-lb and Envoy, 3 rounds"
    )
    parser.add_argument(
        "--cells", nargs="+", default=[], metavar="PATTERN", help="names or shell patterns"
    )
    parser.add_argument("--list", action="store_true", help="print the cells and end")
    parser.add_argument(
        "--proxies", help=f"separated by commas, of {', '.join(RECIPES)} (default: all; quick: two)"
    )
    parser.add_argument(
        "--against",
        metavar="REV",
        help="triton-lb and this commit of it, alone, each also compiled if ours is",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        help="repetitions of every measurement (4, and 2 in cells that are not core)",
    )
    parser.add_argument("--seconds", type=float, help="length of one measurement (1)")
    parser.add_argument("--backends", type=int, default=2, help="stand-in Tritons (2)")
    parser.add_argument("--cores", metavar="PROXY,LOAD[,BACKEND]", help="(the first two usable)")
    parser.add_argument(
        "--keep",
        action="store_true",
        help=f"write page, figures and plots to {_HERE.name}/ instead of {_HERE.name}/out/",
    )
    return parser


def _plan(given: argparse.Namespace) -> tuple[Plan, list[str]]:
    """What to run: the cells, and the names of the sections."""
    usual = [TRITON_LB, ENVOY] if given.quick else there_are()
    against = _add_commit(given.against) if given.against else {}
    if against:
        # The paced cells go by the last one: a rate that the sources can carry as well.
        usual = [*against, *reversed(against.values())]
    names = given.proxies.split(",") if given.proxies else usual
    unknown = [name for name in names if name not in RECIPES]
    if unknown:
        raise ValueError(f"unknown proxies: {', '.join(unknown)}; there are: {', '.join(RECIPES)}")
    sections = [name for name in SECTIONS | PARTS if name in given.cells]
    patterns = [each for each in given.cells if each not in sections]
    if not given.cells and not given.quick and not against:
        sections = list(SECTIONS)
    plan = Plan(
        cells=[] if sections and given.cells and not patterns else select(patterns, given.quick),
        proxies=names,
        rounds=given.rounds or (3 if given.quick else 4),
        other_rounds=given.rounds or 2,
        cells_s=_cells_s(names, given.quick) if given.rounds is None else inf,
        seconds=given.seconds or 1.0,
        backends=given.backends,
        cores=Cores.parse(given.cores) if given.cores else Cores.choose(),
        quick=given.quick,
        against=against,
    )
    return plan, sections


def _cells_s(names: Sequence[str], is_quick: bool) -> float:
    """What the cells may take; a comparison of four builds needs twice the time of two proxies."""
    return _QUICK_S * max(1.0, len(names) / 2) if is_quick else _CELLS_S


def _add_commit(revision: str) -> dict[str, str]:
    """Make another commit's builds proxies: its names by those of ours that they are compared with.

    Compiled builds take part where ours was made and the commit can be compiled.

    Raises:
        BenchError: there is no such commit.
    """
    added = {TRITON_LB: add_revision(revision, _AGAINST)}
    if COMPILED in there_are():
        say(f"compiling {revision}, unless that was done before")
        try:
            added[COMPILED] = add_compiled(revision, _AGAINST)
        except BenchError as error:
            say(f"left out: {error}")
    return added


if __name__ == "__main__":
    sys.exit(main())
