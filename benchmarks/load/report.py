"""What a run says: a text table, the same as Markdown, and JSON for machines."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from benchmarks.load.bench import Plan, Result, Results
from benchmarks.load.cells import Cell
from benchmarks.load.processes import REPOSITORY
from benchmarks.load.proxies import DIRECT, version

MIB = 1 << 20
_DETAIL_HEAD = (
    *("cell", "proxy", "CPU us", "ratio", "req/s", "p50 ms", "p99 ms", "p99.9 ms"),
    *("RSS MiB", "busy", "others", "load core"),
)
_NOTES = """\
CPU: microseconds of CPU per request of the whole process tree of the proxy, user + system; for
streams, per message and its echo. In brackets: the ratio to {baseline}, median of the ratios of the
rounds; under 1 is cheaper. All other figures are medians of the rounds. `busy`: share of
its core that the proxy used; where it is well under 100 %, the load core was the limit (backends
and load generator share it): then the CPU figure still holds, the rate says little about the proxy.
`others`: share of the proxy's core that went to other programs; well above a few percent, repeat
the run on a quiet machine. `direct` is one backend without a proxy. A request counts only if it was
answered without an error."""


def describe(plan: Plan) -> dict[str, str]:
    """Versions and machine, for the head of the report.

    Raises:
        BenchError: a proxy is not installed.
    """
    facts = {name: version(name) for name in plan.proxies}
    facts["python"] = platform.python_version()
    try:
        facts["uvloop"] = metadata.version("uvloop")
    except metadata.PackageNotFoundError:
        facts["uvloop"] = "none"
    facts["commit"] = _commit()
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    facts["kernel"] = f"{platform.release()}, TCP {congestion}"
    facts["cpu"] = _cpu_model()
    facts["cores"] = (
        f"{os.cpu_count()} in all; proxy on {plan.cores.proxy}, load on {plan.cores.load},"
        f" backends on {plan.cores.backend}"
    )
    facts["backends"] = str(plan.backends)
    facts["rounds"] = f"{plan.rounds} of {plan.seconds:g} s, interleaved"
    facts["date"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return facts


def as_text(plan: Plan, facts: dict[str, str], results: Results) -> str:
    """The tables for a terminal."""
    head = "\n".join(f"{key:>10}: {value}" for key, value in facts.items())
    rows = [_summary_head(plan), *_summary_rows(plan, results)]
    parts = [head, _aligned(rows), _notes(plan), _aligned(_detail_rows(plan, results))]
    return "\n\n".join(parts) + "\n"


def as_markdown(plan: Plan, facts: dict[str, str], results: Results) -> str:
    """The same tables as a page."""
    lines = ["# Side-by-side load results", ""]
    lines += [f"Made by `{' '.join(['python -m benchmarks.load', *sys.argv[1:]])}`.", ""]
    lines += [_piped([("", ""), *facts.items()]), "", "## CPU per request, microseconds", ""]
    lines += [_piped([_summary_head(plan), *_summary_rows(plan, results)]), "", _notes(plan), ""]
    lines += ["## All figures", "", _piped(_detail_rows(plan, results)), ""]
    return "\n".join(lines)


def as_json(plan: Plan, facts: dict[str, str], results: Results) -> str:
    """Facts, and per cell and proxy the median and every sample."""

    def entry(result: Result) -> dict[str, object]:
        median = result.median()
        return {
            "error": result.error,
            "median": asdict(median) if median else None,
            "samples": [asdict(sample) for sample in result.samples],
        }

    cells = {
        cell.name: {
            "title": cell.title,
            "proxies": {name: entry(result) for name, result in results[cell.name].items()},
        }
        for cell in plan.cells
    }
    return json.dumps({"facts": facts, "cells": cells}, indent=1) + "\n"


def _notes(plan: Plan) -> str:
    return _NOTES.format(baseline=plan.baseline)


def _summary_head(plan: Plan) -> tuple[str, ...]:
    return ("CPU us per request", *plan.proxies)


def _summary_rows(plan: Plan, results: Results) -> list[tuple[str, ...]]:
    return [
        (
            cell.title,
            *(_cpu_and_ratio(plan, results[cell.name], name) for name in plan.proxies),
        )
        for cell in plan.cells
    ]


def _cpu_and_ratio(plan: Plan, row: dict[str, Result], name: str) -> str:
    sample = row[name].median()
    if sample is None:
        return "failed"
    text = _number(sample.cpu_us)
    ratio = _ratio(plan, row, name)
    return text if name == plan.baseline or not ratio else f"{text} ({ratio})"


def _ratio(plan: Plan, row: dict[str, Result], name: str) -> str:
    """Median of the rounds' ratios: what slows a whole round down cancels out."""
    baseline = row.get(plan.baseline)
    if baseline is None or baseline.median() is None:
        return ""
    ratios = [
        ours.cpu_us / theirs.cpu_us
        for ours, theirs in zip(row[name].samples, baseline.samples, strict=True)
        if theirs.cpu_us
    ]
    return f"{statistics.median(ratios):.2f}" if ratios else ""


def _detail_rows(plan: Plan, results: Results) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [_DETAIL_HEAD]
    for cell in plan.cells:
        row = results[cell.name]
        rows += [_detail_row(plan, cell, row, name) for name in (DIRECT, *plan.proxies)]
    return rows


def _detail_row(plan: Plan, cell: Cell, row: dict[str, Result], name: str) -> tuple[str, ...]:
    sample = row[name].median()
    if sample is None:
        return (cell.title, name, "failed", *[""] * (len(_DETAIL_HEAD) - 3))
    is_proxy = name != DIRECT
    return (
        cell.title,
        name,
        _number(sample.cpu_us) if is_proxy else "",
        _ratio(plan, row, name) if is_proxy else "",
        f"{sample.rate:,.0f}",
        f"{sample.p50_us / 1000:.2f}",
        f"{sample.p99_us / 1000:.2f}",
        f"{sample.p999_us / 1000:.2f}",
        f"{sample.rss_bytes / MIB:.0f}" if is_proxy else "",
        f"{min(1.0, sample.busy):.0%}" if is_proxy else "",
        f"{min(1.0, sample.others):.0%}",
        f"{min(1.0, sample.load_busy):.0%}",
    )


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    previous = ""
    for row in rows:
        first = row[0] if row[0] != previous else ""
        previous = row[0]
        cells = [first.ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _piped(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, f"|---|{'---:|' * (len(rows[0]) - 1)}")
    return "\n".join(lines)


def _commit() -> str:
    argv = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
