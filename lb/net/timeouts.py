"""Time-outs that do not blame a peer for the time in which this process stood still.

A process that gets no processor for a second, or is stopped and goes on, finds its timers due
together with what came meanwhile. `asyncio.timeout` then cancels what was about to end well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

_STOOD_STILL_S: Final = 0.05
"""A timer that is later than this was kept waiting by the process, not by its resolution."""
_PARTS: Final = 4
"""A time-out is waited for in so many parts. A process that goes on just when it is due is not late
then, but in the part in which it was stopped."""


class FairTimer:
    """Acts after a time, in which the event loop did not stand still.

    A part of the time whose end comes late is waited for again, so as many parts again at most.

    Args:
        loop: the running loop.
        timeout_s: seconds.
        act: called once, unless the timer is cancelled before.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, timeout_s: float, act: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._part_s = timeout_s / _PARTS
        self._act = act
        self._left = self._again = _PARTS
        self._handle = loop.call_later(self._part_s, self._on_due)

    def cancel(self) -> None:
        """Act no more."""
        self._handle.cancel()

    def _on_due(self) -> None:
        is_late = self._loop.time() - self._handle.when() > _STOOD_STILL_S
        if is_late and self._again:
            self._again -= 1
        else:
            self._left -= 1
        if self._left:
            self._handle = self._loop.call_later(self._part_s, self._on_due)
        else:
            self._act()


@asynccontextmanager
async def fair_timeout(loop: asyncio.AbstractEventLoop, timeout_s: float) -> AsyncIterator[None]:
    """Limit a block as `asyncio.timeout` does, by a `FairTimer`.

    Args:
        loop: the running loop.
        timeout_s: seconds.

    Raises:
        TimeoutError: when the block has not ended by then.
    """
    async with asyncio.timeout(None) as limit:
        timer = FairTimer(loop, timeout_s, lambda: limit.reschedule(loop.time()))
        try:
            yield
        finally:
            timer.cancel()
