"""Time under the test's control."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from lb.net.timers import TimerWheel


class FakeHandle(asyncio.TimerHandle):
    """A pending call of a `FakeLoop`."""

    def __init__(
        self, when: float, callback: Callable[..., object], args: Any, loop: FakeLoop
    ) -> None:
        super().__init__(when, callback, args, loop)


class FakeLoop(asyncio.AbstractEventLoop):
    """An event loop of which only the clock works, and only when `advance` is called."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._handles: list[FakeHandle] = []
        self.wakes = 0
        """How often a timed call was made."""
        self.errors: list[dict[str, Any]] = []
        """What reached the exception handler."""

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = FakeHandle(when, callback, args, self)
        self._handles.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args)

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return self.call_at(self._now, callback, *args)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Asyncio's handles tell their loop."""

    @property
    def pending(self) -> int:
        """Calls that are still to be made."""
        self._handles = [handle for handle in self._handles if not handle.cancelled()]
        return len(self._handles)

    def advance(self, seconds: float) -> None:
        """Let time pass and make the calls that fall due, in order."""
        until = self._now + seconds
        while self.pending:
            handle = min(self._handles, key=lambda each: each.when())
            if handle.when() > until:
                break
            self._now = max(self._now, handle.when())
            self._handles.remove(handle)
            self.wakes += 1
            handle._run()
        self._now = until

    def turn(self) -> None:
        """Make the calls that are due, but none that they ask for."""
        due = [each for each in self._handles if each.when() <= self._now]
        for handle in sorted(due, key=lambda each: each.when()):
            self._handles.remove(handle)
            if not handle.cancelled():
                handle._run()

    def stall(self, seconds: float) -> None:
        """Let time pass without making any call, as a blocked loop does."""
        self._now += seconds

    def wheel(self) -> TimerWheel:
        """A timer wheel on this clock."""
        return TimerWheel(self)
