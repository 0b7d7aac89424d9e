"""Pictures of a run: CPU per request, latency at an equal rate, the cost of many backends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.load.cells import Cell
from benchmarks.load.proxies import COMPILED, ENVOY, HAPROXY, NGINX, TRITON_LB
from benchmarks.load.report import Report
from benchmarks.load.results import Result, Sample

_COLOURS = {
    TRITON_LB: "#1b7837",
    COMPILED: "#7fbf7b",
    ENVOY: "#c2519c",
    HAPROXY: "#2f6fb2",
    NGINX: "#b8b8b8",
}
_OTHER_COLOUR = "#666666"
_BACKENDS = re.compile(r"(http|grpc)-backends-(\d+)")
_LARGE_US = 150.0
"""Cells in which the cheapest proxy takes longer than this are drawn on a scale of their own."""


def draw(report: Report, directory: Path) -> dict[str, str]:
    """Draw what the report has figures for; returns file names by what they show.

    Nothing is drawn where matplotlib is not installed (`pip install 'triton-lb[bench]'`).
    """
    try:
        import matplotlib
    except ImportError:
        return {}
    matplotlib.use("Agg")
    directory.mkdir(parents=True, exist_ok=True)
    small, large = split_by_cost(report)
    drawn: dict[str, str] = {}
    for cells, file, title in (
        (small, "cpu-small.png", "CPU per request, small requests and messages"),
        (large, "cpu-large.png", "CPU per request, large bodies"),
    ):
        if cells:
            _bars(report, cells, title, directory / file)
            drawn[title] = file
    if paced := [cell for cell in report.plan.cells if cell.half_of and _has_figures(report, cell)]:
        title = f"Latency at half of {report.plan.baseline.capitalize()}'s rate"
        _latencies(report, paced, title, directory / "latency.png")
        drawn[title] = "latency.png"
    if series := backend_series(report):
        title = "CPU per request by number of backends"
        _lines(report, series, title, directory / "backends.png")
        drawn[title] = "backends.png"
    return drawn


def split_by_cost(report: Report) -> tuple[list[Cell], list[Cell]]:
    """The cells with figures, cheap and dear, but for those that have pictures of their own."""
    cheap: list[Cell] = []
    dear: list[Cell] = []
    for cell in report.plan.cells:
        if cell.half_of or _BACKENDS.fullmatch(cell.name) or not _has_figures(report, cell):
            continue
        costs = [sample.cpu_us for sample in _medians(report, cell).values()]
        (dear if min(costs) > _LARGE_US else cheap).append(cell)
    return cheap, dear


def backend_series(report: Report) -> dict[str, list[tuple[int, Cell]]]:
    """Per protocol the cells that differ in the number of backends alone, if there are several."""
    series: dict[str, list[tuple[int, Cell]]] = {}
    for cell in report.plan.cells:
        found = _BACKENDS.fullmatch(cell.name)
        if found and _has_figures(report, cell):
            series.setdefault(found[1], []).append((int(found[2]), cell))
    return {
        name: sorted(cells, key=lambda each: each[0])
        for name, cells in series.items()
        if len(cells) > 1
    }


def _medians(report: Report, cell: Cell) -> dict[str, Sample]:
    row = report.results[cell.name]
    medians = {name: row.get(name, Result()).median() for name in report.plan.proxies}
    return {name: median for name, median in medians.items() if median is not None}


def _has_figures(report: Report, cell: Cell) -> bool:
    return bool(_medians(report, cell))


def _colour(name: str) -> str:
    return _COLOURS.get(name, _OTHER_COLOUR)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(figure: Any, axes: Any, columns: int) -> None:
    """Outside of the axes, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8
    )


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def _bars(report: Report, cells: Sequence[Cell], title: str, path: Path) -> None:
    proxies = report.plan.proxies
    figure, axes = _figure(9, 1 + 0.12 * len(cells) * (len(proxies) + 0.8))
    height = 0.8 / len(proxies)
    for place, name in enumerate(proxies):
        found = [(row, _medians(report, cell).get(name)) for row, cell in enumerate(cells)]
        rows = [row + place * height for row, median in found if median is not None]
        costs = [median.cpu_us for _, median in found if median is not None]
        drawn = axes.barh(rows, costs, height=height, color=_colour(name), label=name)
        axes.bar_label(
            drawn,
            fmt="{:,.3g}" if max(costs, default=0) < 1000 else "{:,.0f}",
            padding=2,
            fontsize=5.5,
        )
    axes.set_yticks(
        [row + 0.4 - height / 2 for row in range(len(cells))],
        [cell.title for cell in cells],
        fontsize=8,
    )
    axes.set_ylim(len(cells) - 0.1, -0.2)
    axes.set_xlabel("CPU microseconds per request (shorter is better)")
    axes.set_title(title)
    _legend(figure, axes, len(proxies))
    _save(figure, path)


def _latencies(report: Report, cells: Sequence[Cell], title: str, path: Path) -> None:
    proxies = report.plan.proxies
    figure, axes = _figure(9, 4.5)
    width = 0.8 / len(proxies)
    labels = [
        f"{share}\n{cell.title.removesuffix(', half of the rate')}" if share == "p99" else share
        for cell in cells
        for share in ("p50", "p99", "p99.9")
    ]
    for place, name in enumerate(proxies):
        values = []
        for cell in cells:
            median = _medians(report, cell).get(name)
            figures = (median.p50_us, median.p99_us, median.p999_us) if median else (0, 0, 0)
            values += [each / 1000 for each in figures]
        xs = [column + column // 3 * 0.6 + place * width for column in range(len(values))]
        axes.bar(xs, values, width=width, color=_colour(name), label=name)
    ticks = [column + column // 3 * 0.6 + 0.4 - width / 2 for column in range(len(labels))]
    axes.set_xticks(ticks, labels, fontsize=7)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("milliseconds (lower is better)")
    axes.set_title(title)
    _legend(figure, axes, len(proxies))
    _save(figure, path)


def _lines(
    report: Report, series: dict[str, list[tuple[int, Cell]]], title: str, path: Path
) -> None:
    figure, axes = _figure(9, 4.5)
    for (protocol, cells), style in zip(series.items(), ("-", "--"), strict=False):
        for name in report.plan.proxies:
            points = [(number, _medians(report, cell).get(name)) for number, cell in cells]
            known = [(number, median.cpu_us) for number, median in points if median is not None]
            label = f"{name}, {'HTTP/1.1' if protocol == 'http' else 'gRPC'}"
            xs, ys = zip(*known, strict=True) if known else ((), ())
            axes.plot(xs, ys, style, marker="o", color=_colour(name), label=label)
    axes.set_xscale("log")
    ticks = sorted({number for cells in series.values() for number, _ in cells})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("backends")
    axes.set_ylabel("CPU microseconds per request")
    axes.set_title(title)
    _legend(figure, axes, (len(report.plan.proxies) + 1) // 2)
    _save(figure, path)
