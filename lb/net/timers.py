"""One timer wheel for all deadlines of the data plane.

A deadline per request on the event loop's heap costs a handle, a heap push and a cancelled
entry that stays until its time. Here a deadline is one append, and cancelling is one attribute.
Resolution is one tick: good for time-outs, not for pacing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

TICK_S: Final = 0.02
"""20 ms: a gRPC deadline may be enforced this much late, since the client enforces it as well."""
SLOTS: Final = 512
"""One turn is about ten seconds; longer timers go round."""
_EARLY_S: Final = 0.001
"""Event loops fire up to their clock's resolution early; that must not cost another round."""


class Timer:
    """A pending call. `cancel` is idempotent and never raises."""

    __slots__ = ("callback", "due")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Forget the call."""
        self.callback = None


class TimerWheel:
    """Hashed timing wheel (Varghese and Lauck, 1987) with lazy cancellation.

    It wakes up for the next slot that holds a timer, so an idle process hardly ticks.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: list[list[Timer]] = [[] for _ in range(SLOTS)]
        self._position = 0
        self._base = loop.time()
        """Loop time that belongs to `_position`."""
        self._count = 0
        self._handle: asyncio.TimerHandle | None = None
        self._wake_at = 0.0
        """Loop time of `_handle`."""

    def __len__(self) -> int:
        """Timers held, cancelled ones included until their slot comes round."""
        return self._count

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, `delay_s` seconds from now or up to a tick later."""
        now = self._loop.time()
        if not self._count:
            self._base = now
        timer = Timer(now + delay_s, callback)
        self._count += 1
        wake_at = self._insert(timer)
        if self._handle is None or wake_at < self._wake_at:
            self._wake(wake_at)
        return timer

    def _wake(self, at: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._wake_at = at
        self._handle = self._loop.call_at(at, self._tick)

    def _insert(self, timer: Timer) -> float:
        """File a timer; returns the loop time at which its slot comes round."""
        ticks = int((timer.due - self._base) / TICK_S) + 1
        # Further away than one turn: park it in the last slot before us and look again then.
        ticks = min(max(ticks, 1), SLOTS - 1)
        self._slots[(self._position + ticks) % SLOTS].append(timer)
        return self._base + ticks * TICK_S

    def _tick(self) -> None:
        self._handle = None
        now = self._loop.time()
        while self._base + TICK_S <= now + _EARLY_S:
            self._base += TICK_S
            self._position = (self._position + 1) % SLOTS
            self._expire(now + _EARLY_S)
        for ticks in range(1, SLOTS if self._count else 0):
            if self._slots[(self._position + ticks) % SLOTS]:
                self._wake(self._base + ticks * TICK_S)
                return

    def _expire(self, now: float) -> None:
        slot = self._slots[self._position]
        if not slot:
            return
        self._slots[self._position] = []
        for timer in slot:
            callback = timer.callback
            if callback is None:
                self._count -= 1
            elif timer.due > now:
                self._insert(timer)
            else:
                self._count -= 1
                timer.callback = None
                self._call(callback)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:  # one bad deadline must not stop the others
            self._loop.call_exception_handler(
                {"message": "deadline callback failed", "exception": error}
            )

    def close(self) -> None:
        """Drop all timers."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        for slot in self._slots:
            slot.clear()
        self._count = 0
