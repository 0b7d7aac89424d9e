"""How late we are ourselves: a time-out that passed while nothing could be read proves nothing."""

from __future__ import annotations

from typing import Final

EXCUSE: Final = 0.25
"""Share of a probe's time-out that may be lost to our own lateness before it does not count."""


class Lateness:
    """Adds up by how much something that is due at intervals comes late. Times in seconds."""

    __slots__ = ("_due", "_interval_s", "_sum")

    def __init__(self, interval_s: float, now: float) -> None:
        self._interval_s = interval_s
        self._due = now + interval_s
        self._sum = 0.0

    def measure(self, now: float) -> float:
        """It came, and is due again after the interval. Returns by how much it was late."""
        late_s = max(now - self._due, 0.0)
        self._sum += late_s
        self._due = now + self._interval_s
        return late_s

    def total(self, now: float) -> float:
        """All lateness so far, with that of what should have come by now."""
        return self._sum + max(now - self._due, 0.0)


def is_excused(lateness_s: float, timeout_s: float) -> bool:
    """Whether a probe that timed out may have been answered in time.

    Args:
        lateness_s: ours while it waited.
        timeout_s: how long it could wait.
    """
    return lateness_s > timeout_s * EXCUSE
