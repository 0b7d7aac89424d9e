"""The day of `benchmarks.standby` as a picture: docs/pictures/standby.svg.

    python -m benchmarks.standby_plot

Latency, load and slices that serve over a simulated day: two of seven slices always serve, five
stand by, and the budget is 50 ms. Beside it the same traffic on seven slices and on two that
always serve, in turn: with equal slices and equal requests that waits as one queue for all does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log10
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.standby import ALWAYS, SLICES, Outcome, day
from benchmarks.svg import COLOURS, GRID, INK, document, line, polyline, text

BUDGET_S: Final = 0.05
SEED: Final = 3
PICTURE: Final = Path("docs/pictures/standby.svg")
_MINUTE: Final = 12
"""Ticks."""
_WIDTH: Final = 960
_LEFT, _RIGHT, _TOP = 70, 20, 30
_PANEL, _GAP = 170, 40
_BUDGET: Final = "#c0392b"


class Minute(NamedTuple):
    """Means of a minute."""

    hour: float
    rate: float
    latency_ms: float
    slices: float


def minutes(outcome: Outcome) -> list[Minute]:
    """Sum a day up by the minute; times are weighted by requests."""
    found = []
    for start in range(0, len(outcome.history), _MINUTE):
        part = outcome.history[start : start + _MINUTE]
        rates = sum(rate for _, rate, _, _ in part)
        found.append(
            Minute(
                part[0][0] / 3600,
                rates / len(part),
                1e3 * sum(rate * time_s for _, rate, time_s, _ in part) / rates,
                sum(slices for *_, slices in part) / len(part),
            )
        )
    return found


class Panel:
    """One diagram over the hours of the day."""

    def __init__(self, number: int, title: str, ticks: Sequence[float], *, is_log: bool) -> None:
        self._top = _TOP + number * (_PANEL + _GAP)
        self._ticks = ticks
        self._is_log = is_log
        self.parts = [text(_LEFT, self._top - 8, title, weight="bold")]
        for tick in ticks:
            y = self.y(tick)
            self.parts.append(line(_LEFT, y, _WIDTH - _RIGHT, y, GRID))
            self.parts.append(text(_LEFT - 8, y + 4, f"{tick:g}", anchor="end"))
        for hour in range(0, 25, 3):
            x, bottom = _x(hour), self._top + _PANEL
            self.parts.append(text(x, bottom + 15, f"{hour}:00", anchor="middle"))

    def y(self, value: float) -> float:
        """Where a value is."""
        low, high = self._ticks[0], self._ticks[-1]
        value = min(max(value, low), high)
        if self._is_log:
            part = (log10(value) - log10(low)) / (log10(high) - log10(low))
        else:
            part = (value - low) / (high - low)
        return self._top + _PANEL * (1 - part)

    def draw(self, points: Iterable[tuple[float, float]], colour: str) -> None:
        """Add a line."""
        places = ((_x(hour), self.y(value)) for hour, value in points)
        self.parts.append(polyline(places, colour, width=1.2))

    def mark(self, value: float, colour: str, name: str) -> None:
        """Add a level."""
        y = self.y(value)
        self.parts.append(line(_LEFT, y, _WIDTH - _RIGHT, y, colour, dashes="6 4"))
        self.parts.append(text(_WIDTH - _RIGHT, y - 4, name, anchor="end", colour=colour))


def _x(hour: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * hour / 24


def picture() -> str:
    """Play the days and draw them."""
    ours = day(SEED, budget_s=BUDGET_S)
    seven = day(SEED, SLICES, 0, budget_s=BUDGET_S)
    two = day(SEED, ALWAYS, 0, budget_s=BUDGET_S)
    latency = Panel(0, "Mean latency in ms", (10, 100, 1000, 10_000, 100_000), is_log=True)
    load = Panel(1, "Requests per second", (0, 100, 200, 300, 400, 500), is_log=False)
    serving = Panel(2, "Slices that serve", range(SLICES + 1), is_log=False)
    names = (
        ("two, and five that stand by", ours),
        ("round robin over seven", seven),
        ("round robin over two", two),
    )
    legend = []
    for (_, outcome), colour in reversed([*zip(names, COLOURS, strict=True)]):
        by_minute = minutes(outcome)
        latency.draw(((each.hour, each.latency_ms) for each in by_minute), colour)
        serving.draw(((each.hour, each.slices) for each in by_minute), colour)
    for at, ((name, outcome), colour) in enumerate(zip(names, COLOURS, strict=True)):
        said = f"{name}: {100 * outcome.late:.1f} % beyond the budget"
        x, y = _LEFT, _TOP + 3 * (_PANEL + _GAP) + 5 + 18 * at
        legend += [line(x, y, x + 20, y, colour), text(x + 26, y + 4, said)]
    load.draw(((each.hour, each.rate) for each in minutes(ours)), INK)
    latency.mark(1e3 * BUDGET_S, _BUDGET, "budget: 50 ms")
    height = _TOP + 3 * (_PANEL + _GAP) + 20 + 18 * (len(names) - 1)
    parts = [*latency.parts, *load.parts, *serving.parts, *legend]
    return document(_WIDTH, height, parts)


def main() -> None:
    """Write the picture."""
    PICTURE.writetext(picture())


if __name__ == "__main__":
    main()
