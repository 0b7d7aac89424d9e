"""Figures of a whole run in docs/comparison.md and docs/operations.md, between named marks.

`<!-- bench:NAME -->` and `<!-- /bench -->` stand on lines of their own; what is between them is
written anew by `make bench BENCH=--keep`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from benchmarks.load.idle import bytes_each
from benchmarks.load.processes import REPOSITORY
from benchmarks.load.proxies import COMPILED, TRITON_LB
from benchmarks.load.report import Report
from benchmarks.load.results import Result
from benchmarks.load.tables import number, piped

PAGES = (REPOSITORY / "docs" / "comparison.md", REPOSITORY / "docs" / "operations.md")
_SHOWN = (
    *("http-small-16", "http-small-64", "grpc-small-8x1", "grpc-small-8x8"),
    *("grpc-never-repeating-headers-8x8", "http-tls-small-64", "grpc-tls-small-8x8"),
    *("http-image-16", "grpc-image-4x4", "http-4-mib-response-16"),
    *("grpc-stream-messages-8x8", "http-events-16"),
)
_RATED = (
    *("http-small-1", "http-small-64", "http-tls-small-64", "grpc-small-1x1", "grpc-small-8x1"),
    *("grpc-small-8x8", "grpc-never-repeating-headers-8x8", "grpc-tls-small-8x8"),
    *("http-image-16", "grpc-image-4x4", "http-4-mib-request-16", "grpc-4-mib-request-4x4"),
    *("http-4-mib-response-16", "grpc-4-mib-response-4x4", "mixed-32"),
    *("grpc-stream-messages-8x8", "http-events-16"),
)


def refresh(report: Report) -> None:
    """Write the tables of this run into all pages."""
    tables = {name: make(report) for name, make in _TABLES.items()}
    for page in PAGES:
        page.write_text(replaced(page.read_text(), tables))


def replaced(text: str, tables: Mapping[str, str]) -> str:
    """A page with its marked tables written anew; a mark with another name stays as it is."""

    def one(found: re.Match[str]) -> str:
        table = tables.get(found[2])
        return found[0] if table is None else f"{found[1]}\n\n{table}\n\n{found[4]}"

    marked = r"(<!-- bench:([\w-]+) -->)\n(.*?)(<!-- /bench -->)"
    return re.sub(marked, one, text, flags=re.DOTALL)


def cost(report: Report) -> str:
    """CPU per request of every proxy, with the machine and the score."""
    proxies = report.plan.proxies
    rows = [["CPU per request, microseconds", *proxies]]
    for cell in report.plan.cells:
        if cell.name in _SHOWN:
            row = report.results[cell.name]
            rows.append([cell.title, *(_cpu(row.get(name, Result())) for name in proxies)])
    facts = report.facts
    made = f"{facts.get('cpu', '')}, Python {facts.get('python', '').partition(',')[0]}"
    return "\n\n".join((piped(rows), f"{made}."))


def rates(report: Report) -> str:
    """Requests that one core carries, triton-lb as it is and compiled: what its CPU comes to."""
    ours = [name for name in (TRITON_LB, COMPILED) if name in report.plan.proxies]
    rows = [["requests (messages, events) a second and core", *ours]]
    for cell in report.plan.cells:
        if cell.name in _RATED:
            row = report.results[cell.name]
            rows.append([cell.title, *(_rate(row.get(name, Result())) for name in ours)])
    return piped(rows)


def memory(report: Report) -> str:
    """Resident memory that an idle connection takes."""
    found = next((each.data for each in report.sections if each.name == "idle"), None)
    rows = [["KiB of memory per idle connection", *report.plan.proxies]]
    for protocol, label in (("http", "HTTP/1.1"), ("grpc", "HTTP/2")):
        each = [bytes_each(found, protocol, name) for name in report.plan.proxies]
        rows.append([label, *("" if size is None else f"{size / 1024:.1f}" for size in each)])
    return piped(rows)


_TABLES: Mapping[str, Callable[[Report], str]] = {"cost": cost, "rates": rates, "memory": memory}


def _cpu(result: Result) -> str:
    median = result.median()
    return "" if median is None else number(median.cpu_us)


def _rate(result: Result) -> str:
    """To two digits: more would be noise."""
    median = result.median()
    if median is None or not median.cpu_us:
        return ""
    return f"{float(f'{1e6 / median.cpu_us:.2g}'):,.0f}"
