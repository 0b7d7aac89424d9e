"""How late the event loop runs its callbacks: the one sign of a blocked process."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

LAG_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds in seconds: 1 ms is a busy loop, anything above 50 ms is a bug of ours."""


class LoopLag:
    """Counts ticks by how late they came. The runtime ticks, this only remembers."""

    __slots__ = ("counts", "last", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(LAG_BOUNDS_S) + 1)
        """Ticks per bucket, not cumulative; the last one is everything above."""
        self.sum = 0.0
        """Sum of all lags in seconds."""
        self.last = 0.0
        """Lag of the latest tick in seconds."""

    def observe(self, lag_s: float) -> None:
        """Count one tick that came `lag_s` seconds after its time; early ones count as 0."""
        lag = max(lag_s, 0.0)
        self.counts[bisect_left(LAG_BOUNDS_S, lag)] += 1
        self.sum += lag
        self.last = lag
