"""Command line of the study: `python -m benchmarks.study --help`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from zlib import crc32

from benchmarks.load.bench import passed, passed_s, say
from benchmarks.load.interpreter import serving
from benchmarks.load.processes import REPOSITORY, BenchError, Cores
from benchmarks.load.proxies import ENVOY, HAPROXY, NGINX, TRITON_LB, version
from benchmarks.study import plots, report, scaling
from benchmarks.study.contestants import CONTESTANTS, contestant
from benchmarks.study.journal import Journal
from benchmarks.study.parts import Part, chosen, duration_s, limited_to, parts
from benchmarks.study.session import Played, known, play

_HERE = Path(__file__).resolve().parents[1]
_OUT = _HERE / "out"
_RUNS = 5
_SCALING_S, _SCALING_SHORT_S = 540.0, 120.0


def main() -> int:
    """Play what the arguments ask for; 1 if triton-lb missed a goal, 2 if something did not run."""
    parser = _parser()
    given = parser.parse_args()
    if given.list:
        _list(given.runs)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    journal = Journal(_OUT / "study.jsonl")
    if given.fresh:
        journal.clear()
    commit = given.commit or _commit()
    names = [name for name in given.contestants.split(",") if name]
    is_scaled = scaling.NAME in given.parts or given.all
    played: list[Played] = []
    try:
        for name in names:
            contestant(name)
        wanted = [each for each in given.parts if each != scaling.NAME]
        todo = chosen(wanted, everything=given.all) if wanted or not given.parts else []
        todo = [limited_to(part, names) for part in todo]
        _tell_time(todo, given.runs, is_scaled)
    except (BenchError, ValueError) as error:
        parser.error(str(error))
    failed = False
    try:
        for place, part in enumerate(todo):
            until = _until(todo[place:], given)
            try:
                done = play(
                    part,
                    journal,
                    runs=given.runs,
                    commit=commit,
                    scale=given.scale,
                    until=until,
                )
            except BenchError as error:  # the others are still worth it
                say(f"error: {part.name}: {error}")
                failed = True
                continue
            played.append(done)
            one = report.chapter(done, journal, commit=commit, scale=given.scale)
            say(report.text([one]))
        if is_scaled:
            scaling.play(journal, commit=commit, short=given.short)
    except BenchError as error:
        say(f"error: {error}")
        failed = True
    except KeyboardInterrupt:
        return 130
    return max(_publish(given, journal, played, commit), 2 * failed)


def _commit() -> str:
    """The last commit of what is measured and of what measures, and what differs from it."""
    measured = ["--", "lb", "benchmarks/study"]
    name = _git("log", "-1", "--format=%h", *measured)
    changes = _git("diff", "HEAD", *measured)
    return f"{name}-dirty-{crc32(changes.encode()):08x}" if changes else name


def _git(*words: str) -> str:
    argv = ["git", "-C", str(REPOSITORY), *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout.strip() or ("unknown" if done.returncode else "")


def _until(left: Sequence[Part], given: argparse.Namespace) -> float:
    """When the first of these parts is to be over: its share of the time that is left."""
    if not given.minutes:
        return inf
    wanted = [duration_s(part, given.runs) for part in left]
    seconds = max(0.0, 60.0 * given.minutes - passed_s())
    until: float = time.monotonic() + seconds * wanted[0] / sum(wanted)
    return until


def _publish(
    given: argparse.Namespace, journal: Journal, played: Sequence[Played], commit: str
) -> int:
    """Write all that the journal has of this commit; print it, too."""
    everything = [*_others(journal, played, commit), *played]
    order = {part.name: place for place, part in enumerate(parts())}
    everything.sort(key=lambda each: order.get(each.part.name, len(order)))
    chapters = [
        report.chapter(each, journal, commit=commit, scale=given.scale) for each in everything
    ]
    place = _HERE if given.keep else _OUT
    levels = scaling.known(journal, commit=commit)
    facts = _facts(commit)
    pictures = plots.draw(chapters, place / "plots")
    picture = ""
    if levels:
        scaling.write_csv(levels, place / scaling.CSV)
        if scaling.draw(levels, place / "plots" / scaling.PICTURE):
            picture = f"plots/{scaling.PICTURE}"
    inside = {name: f"plots/{file}" for name, file in pictures.items()}
    more = scaling.section(levels, picture, scaling.CSV)
    page = report.page(chapters, facts, inside, more)
    (place / "RESULTS-scheduling.md").write_text(page)
    found = report.data(chapters, facts)
    (place / "results-scheduling.json").write_text(json.dumps(found, indent=1) + "\n")
    print(report.text(chapters))
    say(f"wrote RESULTS-scheduling.md, results-scheduling.json and plots to {place}")
    missed = report.missed(chapters)
    for line in missed:
        say(f"missed: {line}")
    return 1 if missed else 0


def _others(journal: Journal, played: Sequence[Played], commit: str) -> list[Played]:
    """Parts that an earlier run has measured of the same commit."""
    done = {each.part.name for each in played}
    found = []
    for part in parts():
        if part.name not in done and journal.times(part.name, commit) is not None:
            names = journal.contestants(part.name)
            own = [name for name in part.contestants if name in names]
            own += [name for name in names if name not in own]
            found.append(known(replace(part, contestants=tuple(own)), journal, commit))
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.study",
        description="Latency, throughput and goodput before Tritons that are not alike.",
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="see --list (the core ones)")
    parser.add_argument("--all", action="store_true", help="every part: about two hours")
    parser.add_argument("--list", action="store_true", help="print parts and contestants, and end")
    parser.add_argument("--runs", type=int, default=_RUNS, help=f"of each load ({_RUNS})")
    parser.add_argument(
        "--contestants", default="", help="who takes part, separated by commas (by part)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the seconds that a load lasts (1)"
    )
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="fewer runs, if it would take longer (no limit)"
    )
    parser.add_argument("--short", action="store_true", help="few levels of `scaling`")
    parser.add_argument(
        "--fresh", action="store_true", help="forget what was measured; else it is gone on with"
    )
    parser.add_argument(
        "--commit", default="", help="what is measured goes by this name (that of git)"
    )
    parser.add_argument(
        "--keep", action="store_true", help=f"write to {_HERE.name}/ instead of {_HERE.name}/out/"
    )
    return parser


def _list(runs: int) -> None:
    for part in parts():
        minutes = duration_s(part, runs) / 60
        core = "core" if part.is_core else ""
        print(f"{part.name:16} {core:5} {minutes:4.1f} min  {part.title}")
    print(
        f"{scaling.NAME:16}       {_SCALING_S / 60:4.1f} min  One to seven Tritons, perf_analyzer"
    )
    core_s = sum(duration_s(part, runs) for part in parts() if part.is_core)
    whole = sum(duration_s(part, runs) for part in parts()) + _SCALING_S
    print(f"core {core_s / 60:.0f} min, everything {whole / 60:.0f} min; contestants:")
    print("  " + "\n  ".join(CONTESTANTS))


def _tell_time(todo: Sequence[Part], runs: int, is_scaled: bool) -> None:
    seconds = sum(duration_s(part, runs) for part in todo)
    seconds += _SCALING_S if is_scaled else 0.0
    say(f"about {seconds / 60:.0f} minutes")


def _facts(commit: str) -> dict[str, str]:
    cores = Cores.choose()
    facts = {}
    for name in (TRITON_LB, ENVOY, HAPROXY, NGINX):
        try:
            facts[name] = version(name)
        except BenchError as error:
            facts[name] = str(error)
    facts["commit"] = commit
    facts["python"] = str(serving())
    facts["kernel"] = f"{platform.release()}, {os.cpu_count()} cores"
    facts["cores"] = f"balancers on {cores.proxy}, load on {cores.load}, Tritons on all"
    facts["took"] = passed()
    facts["date"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return facts


if __name__ == "__main__":
    sys.exit(main())
