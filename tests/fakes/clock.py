"""A loop that has a clock and timers and nothing else; time passes when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from lb.net.timers import TimerWheel


class FakeHandle:
    """A call at a time."""

    def __init__(self, at: float, callback: Callable[[], object]) -> None:
        self.at = at
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """What `TimerWheel` asks of an event loop."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.handles: list[FakeHandle] = []
        self.errors: list[dict[str, Any]] = []
        self.wakes = 0
        """How often the loop called somebody."""

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object]) -> FakeHandle:
        handle = FakeHandle(when, callback)
        self.handles.append(handle)
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    @property
    def pending(self) -> int:
        """Calls that are still to come."""
        return sum(not handle.cancelled for handle in self.handles)

    def advance(self, seconds: float) -> None:
        """Let time pass, making every call at its time."""
        end = self.now + seconds
        while True:
            self.handles = [handle for handle in self.handles if not handle.cancelled]
            handle = min(self.handles, key=lambda each: each.at, default=None)
            if handle is None or handle.at > end:
                break
            self.handles.remove(handle)
            self.now = max(self.now, handle.at)
            self.wakes += 1
            handle.callback()
        self.now = end

    def wheel(self) -> TimerWheel:
        """A timer wheel on this loop."""
        return TimerWheel(cast("asyncio.AbstractEventLoop", self))
