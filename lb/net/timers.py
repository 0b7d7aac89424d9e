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

    It ticks only while it holds timers, so an idle process does not wake up for it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: list[list[Timer]] = [[] for _ in range(SLOTS)]
        self._position = 0
        self._base = 0.0
        """Loop time that belongs to `_position`."""
        self._count = 0
        self._handle: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Timers held, cancelled ones included until their slot comes round."""
        return self._count

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, `delay_s` seconds from now or up to a tick later."""
        now = self._loop.time()
        if self._handle is None:
            self._base = now
            self._handle = self._loop.call_later(TICK_S, self._tick)
        timer = Timer(now + delay_s, callback)
        self._insert(timer)
        self._count += 1
        return timer

    def _insert(self, timer: Timer) -> None:
        ticks = int((timer.due - self._base) / TICK_S) + 1
        # Further away than one turn: park it in the last slot before us and look again then.
        ticks = min(max(ticks, 1), SLOTS - 1)
        self._slots[(self._position + ticks) % SLOTS].append(timer)

    def _tick(self) -> None:
        now = self._loop.time()
        while self._base + TICK_S <= now:
            self._base += TICK_S
            self._position = (self._position + 1) % SLOTS
            self._expire(now)
        self._handle = self._loop.call_later(TICK_S, self._tick) if self._count else None

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
