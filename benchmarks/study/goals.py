"""What triton-lb is to reach, judged by medians of the runs of one study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.load.proxies import TRITON_LB
from benchmarks.study.bound import PERFECT
from benchmarks.study.contestants import (
    DIRECT,
    ENVOY_LEAST,
    HAPROXY_TUNED,
    ONE_BACKEND,
    PRIORITIES,
    TENANTS,
    peers,
)
from benchmarks.study.figures import Run

Medians = Mapping[str, Mapping[str, Run]]
"""By step, then by contestant."""

NO_WORSE = 1.05


@dataclass(frozen=True)
class Goal:
    """A ratio and its limit."""

    what: str
    step: str
    measured: float
    limit: float
    is_floor: bool = False
    """Whether the figure is to be at least the limit instead of at most."""

    @property
    def is_met(self) -> bool:
        """Compares what is printed."""
        shown = round(self.measured, 2)
        return shown >= self.limit if self.is_floor else shown <= self.limit

    @property
    def text(self) -> str:
        """The figure and the verdict."""
        return f"{self.measured:.2f} {'met' if self.is_met else 'missed'}"

    @property
    def limit_text(self) -> str:
        """`at most 1.40`."""
        return f"{'at least' if self.is_floor else 'at most'} {self.limit:.2f}"


def judge(part: str, medians: Medians, capacities: Mapping[str, float]) -> list[Goal]:
    """Every goal that a part has figures for; `capacities` are requests a second, by step."""
    if part == "priorities":
        return list(_priorities(medians))
    if part not in _RULES:
        return []
    goals = []
    for step, row in medians.items():
        if TRITON_LB in row or TENANTS in row:
            goals += list(_RULES[part](step, row, capacities.get(step, 0.0)))
    return goals


def _unequal(step: str, row: Mapping[str, Run], _capacity: float) -> Iterator[Goal]:
    ours = row[TRITON_LB].figures
    if tuned := row.get(HAPROXY_TUNED):
        yield Goal("p99 to that of the tuned HAProxy", step, ours.p99 / tuned.figures.p99, 1.0)
    if perfect := row.get(PERFECT):
        yield Goal("p99 to the simulated bound", step, ours.p99 / perfect.figures.p99, 1.4)
    if best := _best(row, "p50"):
        yield Goal("p50 to the best peer's", step, ours.p50 / best, NO_WORSE)


def _equal(step: str, row: Mapping[str, Run], _capacity: float) -> Iterator[Goal]:
    if best := _best(row, "p99"):
        ratio = row[TRITON_LB].figures.p99 / best
        yield Goal("p99 to the best peer's", step, ratio, NO_WORSE)


def _rows(step: str, row: Mapping[str, Run], _capacity: float) -> Iterator[Goal]:
    small = next(iter(row[TRITON_LB].kinds), None)
    if small is not None and (envoy := row.get(ENVOY_LEAST)):
        ratio = row[TRITON_LB].kinds[small].p99 / envoy.kinds[small].p99
        yield Goal(f"p99 of {small} to Envoy's (LEAST_REQUEST)", step, ratio, 0.5)


def _overload(step: str, row: Mapping[str, Run], capacity: float) -> Iterator[Goal]:
    if capacity:
        ratio = row[TRITON_LB].figures.goodput / capacity
        yield Goal("goodput to capacity", step, ratio, 0.95, is_floor=True)


def _batching(step: str, row: Mapping[str, Run], _capacity: float) -> Iterator[Goal]:
    if (direct := row.get(DIRECT)) and direct.batch:
        ratio = row[TRITON_LB].batch / direct.batch
        yield Goal("mean batch to that of one Triton", step, ratio, 0.9, is_floor=True)


def _seven(step: str, row: Mapping[str, Run], _capacity: float) -> Iterator[Goal]:
    if one := row.get(ONE_BACKEND):
        ratio = row[TRITON_LB].figures.rate / one.figures.rate
        yield Goal("throughput to that of one", step, ratio, 6.8, is_floor=True)


def _priorities(medians: Medians) -> Iterator[Goal]:
    """The first step has high priority alone, the others have it among others."""
    rows = [(step, row[PRIORITIES]) for step, row in medians.items() if PRIORITIES in row]
    for step, run in rows[1:]:
        ratio = run.kinds["high"].p99 / rows[0][1].figures.p99
        yield Goal("p99 of high priority to that without load", step, ratio, 1.5)


def _tenants(step: str, row: Mapping[str, Run], capacity: float) -> Iterator[Goal]:
    rates = [each.rate for each in row[TENANTS].kinds.values()]
    if rates and capacity:
        ratio = min(rates) * len(rates) / capacity
        yield Goal("least of a tenant to its fair share", step, ratio, 0.9, is_floor=True)


def _best(row: Mapping[str, Run], figure: str) -> float | None:
    found = [getattr(row[name].figures, figure) for name in peers() if name in row]
    return min(found, default=None)


_RULES = {
    "unequal": _unequal,
    "equal": _equal,
    "rows": _rows,
    "overload": _overload,
    "batching": _batching,
    "seven": _seven,
    "tenants": _tenants,
}
