"""An event loop whose time passes only where nothing is left to do, and then at once: hours take
seconds, and a process that gets no processor loses no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _VirtualSelector(selectors.DefaultSelector):
    """Where nothing is ready, the time until the next timer passes at once."""

    passed_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0.0)
        if not ready and timeout:
            # A socket of this machine may take a moment.
            ready = super().select(0.0002)
            if not ready:
                self.passed_s += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.passed_s


def run_in_virtual_time(test: Coroutine[Any, Any, None]) -> None:
    """Run a test to its end. Time that the machine takes for it does not pass."""
    loop = _VirtualLoop()
    try:
        loop.run_until_complete(test)
    finally:
        loop.close()
