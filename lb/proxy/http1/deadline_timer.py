"""One timer for all that a connection waits for.

A connection's deadlines move with nearly every event, nearly always to later. So they are plain
facts that are looked at when the alarm rings; it is set anew only to ring earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from lb.net.timers import Timer, TimerWheel


class DeadlineTimer:
    """Rings at the earliest of the times that were asked for since it rang last."""

    __slots__ = ("_clock", "_ring", "_timer", "_timers", "due")

    def __init__(
        self, timers: TimerWheel, clock: Callable[[], float], ring: Callable[[], None]
    ) -> None:
        self._timers = timers
        self._clock = clock
        self._ring = ring
        self.due = inf
        """When it rings."""
        self._timer: Timer | None = None

    def ring_by(self, due: float) -> None:
        """Ring at `due` at the latest. It may ring earlier: the listener looks what is due."""
        if due >= self.due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.due = due
        self._timer = self._timers.after(max(due - self._clock(), 0.0), self._rang)

    def cancel(self) -> None:
        """Be silent for good."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.due = -inf
        self._ring = _ignore  # the listener holds the alarm; leave no cycle behind

    def _rang(self) -> None:
        self._timer = None
        self.due = inf
        self._ring()


def _ignore() -> None:
    """Nobody listens any more."""
