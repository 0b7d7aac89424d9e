"""Shares of a sample with confidence intervals (Wilson 1927; Newcombe 1998, method 10)."""

from __future__ import annotations

from math import sqrt
from typing import Final

Z: Final = 2.5758293035489004
"""Standard deviations of an interval of 99 percent."""


def interval(times: int, seen: int) -> tuple[float, float]:
    """Return the interval in which a share is with 99 percent confidence, 0 to 1.

    Args:
        times: how often it happened.
        seen: in how many cases; 0 knows nothing.
    """
    if not seen:
        return 0.0, 1.0
    share = times / seen
    z2 = Z * Z
    middle = share + z2 / (2 * seen)
    spread = Z * sqrt(share * (1.0 - share) / seen + z2 / (4 * seen * seen))
    below = 1.0 + z2 / seen
    return max(0.0, (middle - spread) / below), min(1.0, (middle + spread) / below)


def is_certainly_higher(times: int, seen: int, other_times: int, other_seen: int) -> bool:
    """Whether a share is higher than another one, with 99 percent confidence on either side.
    Without both samples it is not."""
    if not (seen and other_seen):
        return False
    share, other = times / seen, other_times / other_seen
    lowest = interval(times, seen)[0]
    highest = interval(other_times, other_seen)[1]
    return share - other > sqrt((share - lowest) ** 2 + (highest - other) ** 2)
