"""The day of `benchmarks.standby` as a picture: docs/pictures/standby.svg.

    python -m benchmarks.standby_plot

Latency, load and slices that serve over a simulated day: two of seven slices always serve, five
stand by, and the budget is 50 ms. `benchmarks.standby` plays the day in ticks and decides which
slices serve. Here each request of it is played: with triton-lb it waits in one queue for the slices
that serve. Beside it are seven slices and two that always serve behind Envoy's policy LEAST_REQUEST
with its defaults: of two slices by chance, the one with fewer requests under way gets it. Envoy
itself is not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, log10
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from benchmarks.scaling import SERVICE_S
from benchmarks.standby import ALWAYS, SLICES, day
from benchmarks.svg import COLOURS, GRID, INK, document, line, polyline, text
from lb.control.scaling import TICK_S

BUDGET_S: Final = 0.05
SEED: Final = 3
PICTURE: Final = Path("docs/pictures/standby.svg")
_MINUTE: Final = 12
"""Ticks."""
_WIDTH: Final = 960
_LEFT, _RIGHT, _TOP = 70, 20, 30
_PANEL, _GAP = 170, 40
_BUDGET: Final = "#c0392b"


class Tick(NamedTuple):
    """What the requests were like that came in a tick."""

    at: float
    count: int
    time_s: float
    """On average."""
    slices: int


class Minute(NamedTuple):
    """Means of a minute."""

    hour: float
    rate: float
    latency_ms: float
    slices: float


def replay(loads: Iterable[tuple[float, float, int]], *, is_shared: bool) -> list[Tick]:
    """Play a day request by request.

    Args:
        loads: by tick: seconds, requests a second, slices that serve.
        is_shared: requests wait in one queue; otherwise at their slice, as behind Envoy.
    """
    rng = Random(SEED)
    free_at = [0.0] * SLICES
    """When each slice has done all that it has got."""
    ticks = []
    for start, rate, slices in loads:
        count, total_s, arrival = 0, 0.0, start
        while (arrival := arrival + rng.expovariate(rate)) < start + TICK_S:
            if is_shared:
                which = free_at.index(min(free_at[:slices]))
            else:
                which = int(rng.random() * slices)
                other = int(rng.random() * (slices - 1))
                other += other >= which
                if _under_way(free_at[other], arrival) < _under_way(free_at[which], arrival):
                    which = other
            done_at = free_at[which] = max(free_at[which], arrival) + SERVICE_S
            total_s += done_at - arrival
            count += 1
        ticks.append(Tick(start, count, total_s / max(1, count), slices))
    return ticks


def _under_way(free_at: float, now: float) -> int:
    """Requests that a slice has, since each takes as long."""
    return ceil((free_at - now) / SERVICE_S) if free_at > now else 0


def late(ticks: Iterable[Tick]) -> float:
    """Share of the requests in ticks whose mean time was beyond the budget."""
    counts = [(each.count, each.time_s > BUDGET_S) for each in ticks]
    return sum(count for count, is_late in counts if is_late) / sum(count for count, _ in counts)


def minutes(ticks: Sequence[Tick]) -> list[Minute]:
    """Sum a day up by the minute; times are weighted by requests."""
    found = []
    for start in range(0, len(ticks), _MINUTE):
        part = ticks[start : start + _MINUTE]
        count = sum(each.count for each in part)
        found.append(
            Minute(
                part[0].at / 3600,
                count / (len(part) * TICK_S),
                1e3 * sum(each.count * each.time_s for each in part) / max(1, count),
                sum(each.slices for each in part) / len(part),
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
    decided = day(SEED, budget_s=BUDGET_S)
    loads = [(at, rate, slices) for at, rate, _, slices in decided.history]
    ours = replay(loads, is_shared=True)
    seven = replay([(at, rate, SLICES) for at, rate, _ in loads], is_shared=False)
    two = replay([(at, rate, ALWAYS) for at, rate, _ in loads], is_shared=False)
    latency = Panel(0, "Mean latency in ms", (10, 100, 1000, 10_000, 100_000), is_log=True)
    load = Panel(1, "Requests per second", (0, 100, 200, 300, 400, 500), is_log=False)
    serving = Panel(2, "Slices that serve", range(SLICES + 1), is_log=False)
    names = (
        (f"triton-lb, two and five that stand by (on for {100 * decided.active:.0f} %)", ours),
        ("least request, as Envoy, over seven", seven),
        ("least request, as Envoy, over two", two),
    )
    legend = []
    for (_, ticks), colour in reversed([*zip(names, COLOURS, strict=True)]):
        by_minute = minutes(ticks)
        latency.draw(((each.hour, each.latency_ms) for each in by_minute), colour)
        serving.draw(((each.hour, each.slices) for each in by_minute), colour)
    for at, ((name, ticks), colour) in enumerate(zip(names, COLOURS, strict=True)):
        said = f"{name}: {100 * late(ticks):.1f} % beyond the budget"
        x, y = _LEFT, _TOP + 3 * (_PANEL + _GAP) + 5 + 18 * at
        legend += [line(x, y, x + 20, y, colour), text(x + 26, y + 4, said)]
    load.draw(((each.hour, each.rate) for each in minutes(ours)), INK)
    latency.mark(1e3 * BUDGET_S, _BUDGET, "budget: 50 ms")
    height = _TOP + 3 * (_PANEL + _GAP) + 20 + 18 * (len(names) - 1)
    parts = [*latency.parts, *load.parts, *serving.parts, *legend]
    return document(_WIDTH, height, parts)


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(picture())


if __name__ == "__main__":
    main()
