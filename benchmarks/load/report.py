"""What a run says: a page for a terminal, the same as Markdown, and JSON for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.load.bench import Plan
from benchmarks.load.cells import Cell
from benchmarks.load.proxies import COMPILED, DIRECT, TRITON_LB
from benchmarks.load.results import Result, Results, Row, ratio
from benchmarks.load.sections import Section, Verdict
from benchmarks.load.tables import Rows, aligned, number, piped, quotient

MIB = 1 << 20
_READING = """\
Every proxy gets the same requests, in turns. One at a time has a core of its own; load generator
and backends have another. CPU is that of all processes of the proxy, user and system, in
microseconds per request (per message and its echo, per event): what a request costs, and so how
many a core can carry. A ratio is triton-lb's figure divided by the other proxy's in the same round,
and the median of the rounds: below 1.00 triton-lb is better. All else are medians of the rounds."""
_COMPILED = "`triton-lb-compiled` is the same with its hot modules compiled (`make compile`)."
_TARGETS = """\
A target is a ratio, unless it says ms. `+9%` is that much above the limit, `-9%` below it. Without
a limit the ratio stands alone. What is not a ratio to another proxy is measured with triton-lb as
it is, which is the slower one."""
_DETAILS = """\
`ratio`: CPU of triton-lb divided by CPU of this proxy; that of triton-lb compiled by another
commit's compiled build. `busy`: share of its core that the proxy used; well under 100 % the load
core was the limit (generator and backends share it), or the rate was given: the CPU figure holds,
the rate says little about the proxy. `others`: share of the proxy's core that went to other
programs; well above a few percent, repeat the run on a quiet machine.
`direct`: the same load on one backend without a proxy (not in a quick run). Cells at half of the
rate offer {baseline}'s requests per second of the cell above, halved, to every proxy; latencies
there count from when a request was due. A request counts only if it was answered without an error.
"""
_DETAIL_HEAD = (
    *("cell", "proxy", "CPU us", "ratio", "req/s", "p50 ms", "p99 ms", "p99.9 ms"),
    *("RSS MiB", "busy", "others", "load core"),
)


@dataclass(frozen=True)
class Report:
    """Everything that the page says."""

    plan: Plan
    facts: dict[str, str]
    results: Results
    verdicts: Sequence[Verdict] = ()
    sections: Sequence[Section] = ()

    def failures(self) -> list[str]:
        """One line for every proxy that failed in a cell, and for what other parts say."""
        lines = [
            f"{cell}: {name}: {result.error}"
            for cell, row in self.results.items()
            for name, result in row.items()
            if result.error
        ]
        return lines + [line for section in self.sections for line in section.failures]

    def left_out(self) -> list[str]:
        """One line for every peer that was not tried in a cell."""
        return [
            f"{cell}: {name}: {result.left_out}"
            for cell, row in self.results.items()
            for name, result in row.items()
            if result.left_out and name not in (DIRECT, COMPILED)
        ]


def resting_section(proxies: Sequence[str], resting: dict[int, dict[str, float]]) -> Section:
    """What the proxies cost without load, by number of backends."""
    rows = [
        ["backends", *proxies],
        *(
            [f"{count}", *(f"{shares[name]:.1%}" if name in shares else "" for name in proxies)]
            for count, shares in sorted(resting.items())
        ),
    ]
    notes = "Share of one core. triton-lb probes every backend each second; the peers do not probe."
    return Section("resting", "CPU without load", rows, notes, resting)


def as_text(report: Report) -> str:
    """The page for a terminal."""
    plan = report.plan
    parts = [_heading(plan), _reading(plan)]
    width = max(map(len, report.facts), default=0)
    parts.append("\n".join(f"{key:>{width}}: {value}" for key, value in report.facts.items()))
    if report.verdicts:
        parts += ["TARGETS", scores(report.verdicts), aligned(_verdict_rows(report)), _TARGETS]
    if plan.cells:
        parts += ["CPU PER REQUEST, MICROSECONDS", aligned(_summary_rows(report))]
        parts += ["ALL FIGURES", aligned(_detail_rows(report)), _details(plan)]
    for section in report.sections:
        parts += [section.title.upper(), aligned(section.rows), section.notes]
    parts += _lines("LEFT OUT", report.left_out()) + _lines("FAILED", report.failures())
    return "\n\n".join(part for part in parts if part) + "\n"


def as_markdown(report: Report, plots: dict[str, str]) -> str:
    """The same as a page of Markdown.

    Args:
        report: what it says.
        plots: paths of pictures, relative to the page, by what they show.
    """
    plan = report.plan
    command = " ".join(["python -m benchmarks.load", *sys.argv[1:]])
    parts = ["# Side-by-side load results", f"Made by `{command}`.", _reading(plan)]
    parts.append(piped([("", ""), *report.facts.items()]))
    if report.verdicts:
        parts += ["## Targets", scores(report.verdicts), piped(_verdict_rows(report)), _TARGETS]
    if plan.cells:
        parts += ["## CPU per request, microseconds", piped(_summary_rows(report))]
    parts += [f"![{title}]({path})" for title, path in plots.items()]
    if plan.cells:
        parts += ["## All figures", piped(_detail_rows(report)), _details(plan)]
    for section in report.sections:
        parts += [f"## {section.title}", piped(section.rows), section.notes]
    if missing := [*report.left_out(), *report.failures()]:
        parts += ["## Left out or failed", "\n".join(f"- {line}" for line in missing)]
    return "\n\n".join(part for part in parts if part) + "\n"


def as_json(report: Report) -> str:
    """Facts, verdicts, and per cell and proxy the median and every sample."""

    def entry(row: Row, name: str) -> dict[str, object]:
        result = row[name]
        median = result.median()
        return {
            "error": result.error,
            "left_out": result.left_out,
            "triton_lb_to_it": _ratio(report.plan, row, name) if name != DIRECT else None,
            "median": asdict(median) if median else None,
            "samples": [asdict(sample) for sample in result.samples],
        }

    cells = {
        cell.name: {
            "title": cell.title,
            "proxies": {
                name: entry(report.results[cell.name], name) for name in report.results[cell.name]
            },
        }
        for cell in report.plan.cells
    }
    verdicts = [{**asdict(each), "verdict": each.word} for each in report.verdicts]
    whole = {"facts": report.facts, "targets": verdicts, "cells": cells}
    whole |= {"sections": {section.name: section.data for section in report.sections}}
    return json.dumps(whole, indent=1) + "\n"


def write(path: Path, text: str) -> None:
    """Write a file of the report, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _heading(plan: Plan) -> str:
    return f"triton-lb side by side with {', '.join(plan.peers) or 'nobody'}"


def _reading(plan: Plan) -> str:
    return f"{_READING}\n{_COMPILED}" if COMPILED in plan.ours else _READING


def _details(plan: Plan) -> str:
    return _DETAILS.format(baseline=plan.baseline).strip()


def _lines(heading: str, lines: list[str]) -> list[str]:
    return [heading, "\n".join(lines)] if lines else []


def scores(verdicts: Sequence[Verdict]) -> str:
    """How many targets each triton-lb meets, in one sentence; empty without verdicts."""
    parts = []
    for ours in _judged(verdicts):
        words = [each.word for each in verdicts if each.of == ours]
        text = f"{ours} meets {words.count('met')} of {words.count('met') + words.count('missed')}"
        if unknown := words.count("not measured"):
            text += f" ({unknown} not measured)"
        parts.append(text)
    return f"Targets: {'; '.join(parts)}." if parts else ""


def _judged(verdicts: Sequence[Verdict]) -> list[str]:
    return list(dict.fromkeys(each.of for each in verdicts))


def _verdict_rows(report: Report) -> Rows:
    """A line for every target, cell and peer; what each triton-lb reached in columns."""
    judged = _judged(report.verdicts)
    lines: dict[tuple[str, str, str, str], dict[str, str]] = {}
    for each in report.verdicts:
        limit = "-" if each.limit is None else f"{each.limit:.2f}"
        lines.setdefault((each.target, each.cell, each.to, limit), {})[each.of] = each.text
    head = ("target", "cell", "to", "at most", *judged)
    return [
        head,
        *((*line, *(found.get(ours, "") for ours in judged)) for line, found in lines.items()),
    ]


def _summary_rows(report: Report) -> Rows:
    plan = report.plan
    head = ["cell", *plan.proxies, *(_ratio_heading(plan, name) for name in plan.peers)]
    rows = [head]
    for cell in plan.cells:
        row = report.results[cell.name]
        rows.append(
            [
                cell.title,
                *(_cpu(row[name]) for name in plan.proxies),
                *(_ratios(plan, row, name) for name in plan.peers),
            ]
        )
    return rows


def _ratio_heading(plan: Plan, peer: str) -> str:
    _, *others = plan.compared_with(peer)
    return " ".join([f"to {peer}", *(f"({each.removeprefix(f'{TRITON_LB}-')})" for each in others)])


def _ratios(plan: Plan, row: Row, peer: str) -> str:
    """Ours to a peer's, and in brackets that of ours compiled where the peer has no build of it."""
    first, *others = (quotient(ratio(row, ours, peer)) for ours in plan.compared_with(peer))
    return " ".join([first, *(f"({each})" for each in others if each)])


def _ratio(plan: Plan, row: Row, name: str) -> float | None:
    """The first of our builds that a proxy is compared with, to that proxy."""
    return ratio(row, plan.compared_with(name)[0], name)


def _cpu(result: Result) -> str:
    median = result.median()
    if median is None:
        return "-" if result.left_out else "failed"
    return number(median.cpu_us)


def _detail_rows(report: Report) -> Rows:
    rows: list[Sequence[str]] = [_DETAIL_HEAD]
    for cell in report.plan.cells:
        row = report.results[cell.name]
        names = [name for name in (DIRECT, *report.plan.proxies) if name in row]
        rows += [_detail_row(report.plan, cell, row, name) for name in names]
    return rows


def _detail_row(plan: Plan, cell: Cell, row: Row, name: str) -> Sequence[str]:
    sample = row[name].median()
    if sample is None:
        return (cell.title, name, _cpu(row[name]), *[""] * (len(_DETAIL_HEAD) - 3))
    is_proxy = name != DIRECT
    return (
        cell.title,
        name,
        number(sample.cpu_us) if is_proxy else "",
        quotient(_ratio(plan, row, name)) if is_proxy else "",
        f"{sample.rate:,.0f}",
        f"{sample.p50_us / 1000:.2f}",
        f"{sample.p99_us / 1000:.2f}",
        f"{sample.p999_us / 1000:.2f}",
        f"{sample.rss_bytes / MIB:.0f}" if is_proxy else "",
        f"{min(1.0, sample.busy):.0%}" if is_proxy else "",
        f"{min(1.0, sample.others):.0%}",
        f"{min(1.0, sample.load_busy):.0%}",
    )
