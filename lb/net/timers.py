"""One timer wheel for all deadlines of the data plane.

A deadline per request on the event loop's heap costs a handle, a heap push and a cancelled entry
that stays until its time. Here a deadline is one entry of a dictionary, and cancelling deletes it.
Resolution is one tick: good for time-outs, not for pacing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Final

TICK_S: Final = 0.02
"""20 ms: a gRPC deadline may be enforced this much late, since the client enforces it as well."""
SLOTS: Final = 512
"""One turn is about ten seconds; longer timers go round."""
_AT_ONCE: Final = 64
"""Timers that are called in one iteration of the loop: a millisecond or two of ended requests. A
client chooses its deadlines, so thousands may be due together."""
_EARLY_S: Final = 0.001
"""Event loops fire up to their clock's resolution early; that must not cost another round."""


class Timer:
    """A pending call. `cancel` is idempotent and never raises."""

    __slots__ = ("callback", "due", "slot")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback = callback
        self.slot: dict[Timer, None] | None = None
        """The wheel's slot that holds this timer; None when it has fired or was cancelled."""

    def cancel(self) -> None:
        """Forget the call; nothing is left behind. The callback is often a method of whoever
        holds this timer: kept, it would make a cycle of the two."""
        self.leave()
        self.callback = _nothing

    def leave(self) -> None:
        """Go out of the slot; for the wheel alone."""
        if self.slot is not None:
            del self.slot[self]
            self.slot = None


def _nothing() -> None:
    """In place of the callback of a timer that was cancelled."""


class TimerWheel:
    """Hashed timing wheel (Varghese and Lauck, 1987).

    It wakes up for the next slot that holds a timer, so an idle process hardly ticks.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: list[dict[Timer, None]] = [{} for _ in range(SLOTS)]
        self._position = 0
        self._base = loop.time()
        """Loop time that belongs to `_position`."""
        self._handle: asyncio.TimerHandle | None = None
        self._wake_at = 0.0
        """Loop time of `_handle`."""
        self._ticking = False

    def __len__(self) -> int:
        """Timers that are pending."""
        return sum(map(len, self._slots))

    def after(
        self, delay_s: float, callback: Callable[[], None], now: float | None = None
    ) -> Timer:
        """Call `callback` once, `delay_s` seconds from now or up to a tick later. Where very many
        are due together, the last of them are called some iterations of the loop later.

        Args:
            delay_s: seconds.
            callback: called without arguments; what it raises goes to the loop's handler.
            now: the loop's time, where the caller has just read it.
        """
        if now is None:
            now = self._loop.time()
        if self._handle is None and not self._ticking:
            self._base = now  # nothing is pending: the wheel may start anywhere
        timer = Timer(now + delay_s, callback)
        wake_at = self._insert(timer)
        if self._handle is None or wake_at < self._wake_at:
            self._wake(wake_at)
        return timer

    def every(self, interval_s: float, callback: Callable[[], None]) -> None:
        """Call `callback` now, and again after each interval until the wheel is closed. What it
        raises goes to the loop's handler, and ends nothing.

        Args:
            interval_s: seconds.
            callback: called without arguments.
        """
        self.after(interval_s, lambda: self.every(interval_s, callback))
        self._call(callback)

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
        slot = self._slots[(self._position + ticks) % SLOTS]
        slot[timer] = None
        timer.slot = slot
        return self._base + ticks * TICK_S

    def _tick(self) -> None:
        self._handle = None
        self._ticking = True
        now = self._loop.time() + _EARLY_S
        left = self._expire(now, _AT_ONCE)  # what the tick before this one had no room for
        while left and self._base + TICK_S <= now:
            self._base += TICK_S
            self._position = (self._position + 1) % SLOTS
            left = self._expire(now, left)
        self._ticking = False
        for ticks in range(SLOTS):
            if self._slots[(self._position + ticks) % SLOTS]:
                wake_at = self._base + ticks * TICK_S
                if not self._will_wake() or wake_at < self._wake_at:
                    self._wake(wake_at)
                return

    def _will_wake(self) -> bool:
        # A call, since callbacks may have set what `_tick` has cleared: a reader who takes it for
        # still cleared, as type checkers and compilers do, is wrong.
        return self._handle is not None

    def _expire(self, now: float, left: int) -> int:
        """Call timers of the present slot, `left` at most; gives how many more might have been.

        Nothing is filed in the present slot, so what stays there is what is still to be called.
        """
        slot = self._slots[self._position]
        if not slot:
            return left
        due = tuple(islice(slot, left))
        for timer in due:
            if timer.slot is not slot:
                continue  # cancelled by a callback before it
            timer.leave()
            if timer.due > now:
                self._insert(timer)
            else:
                self._call(timer.callback)
        return left - len(due)

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
            for timer in tuple(slot):
                timer.cancel()
