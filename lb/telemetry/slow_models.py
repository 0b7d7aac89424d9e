"""Which requests are slow: longer than 99 of 100 of their model took lately."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from operator import attrgetter, sub
from typing import Final

from lb.domain.backend import LATENCY_BOUNDS_S, Histogram
from lb.telemetry.meter import Meter, ModelUsage

QUANTILE: Final = 0.99
PERIOD_S: Final = 60.0
"""Requests of so long are counted for a limit, which then stands for as long."""
LEAST: Final = 200
"""Requests in that time; of fewer, the slowest hundredth is one or two."""
_durations: Callable[[ModelUsage], Histogram] = attrgetter("durations")


class SlowModels:
    """How long requests take at most that are not slow, by model."""

    def __init__(self, meter: Meter, clock: Callable[[], float]) -> None:
        """
        Args:
            meter: counts requests.
            clock: monotonic seconds.
        """
        self._meter = meter
        self._clock = clock
        self._before: dict[bytes, tuple[int, ...]] = {}
        """Counts by bucket when the period began."""
        self._due = 0.0
        self.limits: dict[bytes, float] = {}
        """Seconds by model: the upper bound of the bucket that the quantile lies in. Models with
        few requests have none."""

    def update(self) -> None:
        """Find the limits anew, if the period is over."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + PERIOD_S
        found = {}
        for model, total in self._meter.model_durations(_durations):
            counts = tuple(total.counts)
            before = self._before.get(model, (0,) * len(counts))
            self._before[model] = counts
            limit = _limit(tuple(map(sub, counts, before)))
            if limit is not None:
                found[model] = limit
        self.limits.clear()  # the same one for good: others look into it
        self.limits.update(found)


def _limit(counts: tuple[int, ...]) -> float | None:
    """The bound below which 99 of 100 lie; None where there is none, or they are too few."""
    total = sum(counts)
    if total < LEAST:
        return None
    sums = accumulate(counts)
    number = next(index for index, below in enumerate(sums) if below >= QUANTILE * total)
    return LATENCY_BOUNDS_S[number] if number < len(LATENCY_BOUNDS_S) else None
