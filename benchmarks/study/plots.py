"""Pictures of a study: latency of everybody by load, one for each part with several loads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.load.proxies import TRITON_LB
from benchmarks.study.bound import PERFECT
from benchmarks.study.contestants import (
    DIRECT,
    ENVOY_LEAST,
    ENVOY_ROUND,
    ENVOY_WEIGHTED,
    HAPROXY_LEAST,
    HAPROXY_LIMITS,
    HAPROXY_TUNED,
    NGINX_LEAST,
)
from benchmarks.study.report import Chapter

_COLOURS = {
    TRITON_LB: "#1b7837",
    PERFECT: "#222222",
    ENVOY_LEAST: "#c2519c",
    ENVOY_WEIGHTED: "#e3a4cd",
    ENVOY_ROUND: "#7a2f61",
    HAPROXY_LEAST: "#9ecae1",
    HAPROXY_LIMITS: "#4a90c9",
    HAPROXY_TUNED: "#08519c",
    NGINX_LEAST: "#b8b8b8",
    DIRECT: "#d9a520",
}
_OTHERS = ("#7fbf7b", "#a6761d", "#e6ab02", "#66a61e")


def draw(chapters: Sequence[Chapter], directory: Path) -> dict[str, str]:
    """Draw what there is; returns file names by part.

    Nothing is drawn where matplotlib is not installed (`pip install 'triton-lb[bench]'`).
    """
    try:
        import matplotlib
    except ImportError:
        return {}
    matplotlib.use("Agg")
    directory.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for made in chapters:
        if len(made.medians) > 1:
            name = f"scheduling-{made.played.part.name}.png"
            _latencies(made, directory / name)
            drawn[made.played.part.name] = name
    return drawn


def _latencies(made: Chapter, path: Path) -> None:
    from matplotlib import pyplot

    part = made.played.part
    steps = [step for step in part.steps if made.medians.get(step.name)]
    names = [*part.contestants, PERFECT]
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained", sharey=True)
    for axes, share in zip(panels, ("p50", "p99"), strict=True):
        for place, name in enumerate(names):
            _line(axes, made, name, share, _colour(name, place))
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xticks(range(len(steps)), [step.name for step in steps], fontsize=8)
        axes.set_title(f"{share}, milliseconds")
        axes.grid(axis="y", which="both", alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.suptitle(part.title)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def _line(axes: Any, made: Chapter, name: str, share: str, colour: str) -> None:
    steps = [step for step in made.played.part.steps if made.medians.get(step.name)]
    points = [
        (place, getattr(made.medians[step.name][name].figures, share))
        for place, step in enumerate(steps)
        if name in made.medians[step.name]
    ]
    if points:
        style = {"linestyle": "--"} if name == PERFECT else {"marker": "o", "markersize": 4}
        width = 2.4 if name == TRITON_LB else 1.4
        axes.plot(*zip(*points, strict=True), color=colour, label=name, linewidth=width, **style)


def _colour(name: str, place: int) -> str:
    return _COLOURS.get(name, _OTHERS[place % len(_OTHERS)])
