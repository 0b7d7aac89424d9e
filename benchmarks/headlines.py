"""The figure and the small table of README.md, from the pages of results beside this file.

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


def refreshed(text: str) -> str:
    """Return a page with the figure and the table of the kept results."""
    return replaced(text, {"p99": _chart(_p99()), "headlines": _table(_p99())})


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
    kills, death = (
        next(row for row in _rows("RESULTS-faults.md", fault) if row[1] == "failed requests")
        for fault in (_KILLS, _DEATH)
    )
    names = ("triton-lb", "envoy-least", "haproxy-leastconn")
    return piped(
        [
            ["", "triton-lb", "Envoy", "HAProxy"],
            ["CPU per gRPC request of 200 B, microseconds", cpu[2], cpu[3], cpu[4]],
            ["Failed requests, one Triton killed (`kill -9`) ten times", *_failed(kills)],
            [f"p99 on unequal Tritons, {_RATE}, ms", *(f"{p99[name]:.0f}" for name in names)],
            ["Failed requests while one bad input kills its Tritons", *_failed(death)],
        ]
    )


def _failed(row: list[str]) -> tuple[str, str, str]:
    return row[3].split()[0], f"{row[4].split()[0]} (tuned)", _NOT_MEASURED


def _p99() -> dict[str, float]:
    """Return the 99th percentile of each contestant before unequal Tritons, in ms."""
    unequal = (_FOLDER / "RESULTS-scheduling.md").read_text().split("\n## ")
    section = next(part for part in unequal if part.startswith("Unequal Tritons"))
    return {row[1]: float(row[6].replace(",", "")) for row in _cells(section, _RATE)}


def _rows(page: str, first: str) -> Iterator[list[str]]:
    return _cells((_FOLDER / page).read_text(), first)


def _cells(text: str, first: str) -> Iterator[list[str]]:
    """Yield the cells of the rows of tables whose first cell is this."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] == first:
            yield cells


if __name__ == "__main__":
    README.write_text(refreshed(README.read_text()))
