"""One timer for all that a connection waits for.

A connection's deadlines move with nearly every event, nearly always to later. So they are plain
facts that are checked when the timer expires; it is set anew only to expire earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from lb.net.timers import Timer, TimerWheel


class DeadlineTimer:
    """Expires at the earliest of the times that were asked for since it expired last."""

    __slots__ = ("_clock", "_on_expiry", "_timer", "_timers", "due")

    def __init__(
        self, timers: TimerWheel, clock: Callable[[], float], on_expiry: Callable[[], None]
    ) -> None:
        self._timers = timers
        self._clock = clock
        self._on_expiry = on_expiry
        self.due = inf
        """When it expires."""
        self._timer: Timer | None = None

    def expire_by(self, due: float) -> None:
        """Expire at `due` at the latest. It may be earlier: its owner checks what is due."""
        if due >= self.due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.due = due
        self._timer = self._timers.after(max(due - self._clock(), 0.0), self._expired)

    def cancel(self) -> None:
        """Never expire any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.due = -inf
        self._on_expiry = _noop  # the owner has the timer; leave no cycle behind

    def _expired(self) -> None:
        self._timer = None
        self.due = inf
        self._on_expiry()


def _noop() -> None:
    """Nobody waits for it any more."""
