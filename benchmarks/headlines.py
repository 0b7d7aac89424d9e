"""Figures of README.md and docs/comparison.md, from the pages of results beside this file.

    python -m benchmarks.headlines

writes them anew between their marks. `make docs` calls it; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from benchmarks.load.publish import replaced
from benchmarks.load.tables import piped

_FOLDER: Final = Path(__file__).parent
README: Final = _FOLDER.parent / "README.md"
PAGES: Final = (README, _FOLDER.parent / "docs" / "comparison.md")
_RATE: Final = "240/s"
_CONTESTANTS: Final = (
    ("triton-lb, nothing tuned", "triton-lb"),
    ("HAProxy, tuned by hand", "haproxy-tuned"),
    ("Envoy, right weights", "envoy-least-weighted"),
    ("HAProxy leastconn", "haproxy-leastconn"),
    ("Envoy LEAST_REQUEST", "envoy-least"),
)
_MS_PER_BLOCK: Final = 20.0
_CELL: Final = "gRPC small, 200 B, 8 x 8"
_KILLS: Final = "kill -9 of one, restarted after 5 s, 10 times in turn"
_DEATH: Final = "a request that kills the server that runs it"
_NOT_MEASURED: Final = "not measured"
_COMPARED: Final = (
    ("triton-lb", "triton-lb"),
    ("Envoy LEAST_REQUEST", "envoy-least"),
    ("Envoy LEAST_REQUEST, right weights", "envoy-least-weighted"),
    ("HAProxy leastconn", "haproxy-leastconn"),
    ("HAProxy leastconn, `maxconn 1`", "haproxy-limits"),
    ("HAProxy, weights and `maxconn` tuned by hand", "haproxy-tuned"),
    ("perfect dispatcher, simulated", "perfect (simulated)"),
)
_RATES: Final = ("150/s", "240/s", "280/s")
_FAULTS: Final = (
    ("`kill -9` of one, ten times", _KILLS),
    ("SIGTERM and restart of each in turn", "SIGTERM and restart of each in turn"),
    ("SIGSTOP of one for 20 s", "SIGSTOP of one for 20 s"),
    (
        "one answers every inference with an error (HTTP 400, gRPC UNKNOWN)",
        "one answers every inference with an error at once: HTTP 400, gRPC UNKNOWN",
    ),
    ("a request that kills each server that runs it", _DEATH),
    ("one becomes 20 times slower", "one becomes 20 times slower"),
    (
        "a model is unloaded on one while others serve it",
        "unload of a model on one while the others serve it",
    ),
    ("packets to and from one go nowhere for 10 s", "bytes to and from one go nowhere for 10 s"),
)


def refreshed(text: str) -> str:
    """Return a page with the figures of the kept results."""
    p99 = {name: float(row[6].replace(",", "")) for name, row in _unequal(_RATE).items()}
    tables = {
        "p99": _chart(p99),
        "headlines": _table(p99),
        "unequal": _latencies(),
        "faults": _faults(),
    }
    return replaced(text, tables)


def _chart(p99: Mapping[str, float]) -> str:
    """Draw the figure with characters: every renderer of Markdown shows it, without a host."""
    width = max(len(label) for label, _ in _CONTESTANTS)
    bars = [
        f"{label:{width}}  {'█' * max(1, round(p99[name] / _MS_PER_BLOCK))} {p99[name]:.0f}"
        for label, name in _CONTESTANTS
    ]
    title = (
        f"p99 in ms: Tritons of 5, 10 and 40 ms per request, {_RATE.replace('/s', '')} requests/s"
    )
    return "\n".join(("```text", title, "", *bars, "```"))


def _table(p99: Mapping[str, float]) -> str:
    cpu = next(row for row in _rows("RESULTS.md", _CELL) if len(row) > 8)
    names = ("triton-lb", "envoy-least", "haproxy-leastconn")
    return piped(
        [
            ["", "triton-lb", "Envoy", "HAProxy"],
            ["CPU per gRPC request of 200 B, microseconds", cpu[2], cpu[3], cpu[4]],
            [
                "Failed requests, one Triton killed (`kill -9`) ten times",
                *_failed(_failures(_KILLS)),
            ],
            [f"p99 on unequal Tritons, {_RATE}, ms", *(f"{p99[name]:.0f}" for name in names)],
            ["Failed requests while one bad input kills its Tritons", *_failed(_failures(_DEATH))],
        ]
    )


def _latencies() -> str:
    found = [_unequal(rate) for rate in _RATES]
    rows = [["p50 / p99 in ms", *_RATES]]
    for label, name in _COMPARED:
        rows.append([label, *(f"{each[name][4]} / {each[name][6]}" for each in found)])
    return piped(rows)


def _faults() -> str:
    rows = [["fault", "failed requests: triton-lb", "failed requests: tuned Envoy"]]
    for label, fault in _FAULTS:
        row = _failures(fault)
        rows.append([label, row[3].split()[0], row[4].split()[0]])
    return piped(rows)


def _failures(fault: str) -> list[str]:
    """Return the row that counts the failed requests of a fault."""
    return next(
        row for row in _rows("RESULTS-faults.md", fault) if row[1].startswith("failed requests")
    )


def _failed(row: list[str]) -> tuple[str, str, str]:
    return row[3].split()[0], f"{row[4].split()[0]} (tuned)", _NOT_MEASURED


def _unequal(rate: str) -> dict[str, list[str]]:
    """Return the row of each contestant before unequal Tritons at a rate, by its name."""
    parts = (_FOLDER / "RESULTS-scheduling.md").read_text().split("\n## ")
    section = next(part for part in parts if part.startswith("Unequal Tritons"))
    return {row[1]: row for row in _cells(section, rate)}


def _rows(page: str, first: str) -> Iterator[list[str]]:
    return _cells((_FOLDER / page).read_text(), first)


def _cells(text: str, first: str) -> Iterator[list[str]]:
    """Yield the cells of the rows of tables whose first cell is this."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] == first:
            yield cells


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(refreshed(page.read_text()))
