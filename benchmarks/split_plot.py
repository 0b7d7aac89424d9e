"""What cutting a batch gains as a picture: docs/pictures/split.svg.

    python -m benchmarks.split_plot

Time of a batch of 64 rows by the number of equal idle backends: whole, cut by the product's
scheduler (`models.NAME.split: auto`), and divided as well as it can be. Simulated as in
`benchmarks.split_study`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.split_study import BASE_S, ROW_S, ROWS, alone, best_s, gpu
from benchmarks.svg import COLOURS, GRID, INK, document, line, polyline, text

BACKENDS: Final = range(1, 9)
PICTURE: Final = Path("docs/pictures/split.svg")
_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 40, 60
_MOST_MS, _TICK_MS = 140, 20


def _x(backends: int) -> float:
    share = (backends - BACKENDS[0]) / (BACKENDS[-1] - BACKENDS[0])
    return _LEFT + 20 + (_WIDTH - _LEFT - _RIGHT - 40) * share


def _y(ms: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - ms / _MOST_MS)


def _axes() -> list[str]:
    title = f"Time of a batch of {ROWS} rows in ms; an execution takes {1e3 * BASE_S:g} ms, and "
    parts = [text(_LEFT, _TOP - 16, f"{title}{1e3 * ROW_S:g} ms for each row", weight="bold")]
    for ms in range(0, _MOST_MS + 1, _TICK_MS):
        parts.append(line(_LEFT, _y(ms), _WIDTH - _RIGHT, _y(ms), GRID))
        parts.append(text(_LEFT - 8, _y(ms) + 4, str(ms), anchor="end"))
    bottom = _HEIGHT - _BOTTOM + 18
    parts += [text(_x(each), bottom, str(each), anchor="middle") for each in BACKENDS]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    return [*parts, text(middle, bottom + 18, "idle backends", anchor="middle")]


def _curve(times_s: Sequence[float], colour: str, name: str, place: int) -> list[str]:
    """A line with its values, and its name in the legend."""
    points = [(_x(count), _y(1e3 * each)) for count, each in zip(BACKENDS, times_s, strict=True)]
    x, y = _LEFT + 20 + 190 * place, _HEIGHT - 10
    return [
        polyline(points, colour, width=2),
        line(x, y - 4, x + 20, y - 4, colour),
        text(x + 26, y, name),
    ]


def picture() -> str:
    """Play the batches and draw them."""
    whole, auto, best = [], [], []
    for count in BACKENDS:
        gpus = [gpu()] * count
        whole.append(alone(gpus, is_on=False))
        auto.append(alone(gpus, is_on=True))
        best.append(best_s(gpus, ROWS))
    values = [
        text(_x(count) + 5, _y(1e3 * each) - 7, f"{1e3 * each:.0f}", colour=INK)
        for count, each in zip(BACKENDS, auto, strict=True)
    ]
    parts = [
        *_axes(),
        *_curve(whole, COLOURS[2], "whole (split: off)", 0),
        *_curve(best, COLOURS[1], "best division", 1),
        *_curve(auto, COLOURS[0], "split: auto", 2),
        *values,
    ]
    return document(_WIDTH, _HEIGHT, parts)


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(picture())


if __name__ == "__main__":
    main()
