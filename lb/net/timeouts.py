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


class FairTimer:
    """Acts after a time, and gives back once the time by which the event loop itself was late.

    Args:
        loop: the running loop.
        timeout_s: seconds; at most as many again are given back.
        act: called once, unless the timer is cancelled before.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, timeout_s: float, act: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._act = act
        self._handle = loop.call_later(timeout_s, self._on_due)

    def cancel(self) -> None:
        """Act no more."""
        self._handle.cancel()

    def _on_due(self) -> None:
        late_s = self._loop.time() - self._handle.when()
        if late_s > _STOOD_STILL_S:
            self._handle = self._loop.call_later(min(late_s, self._timeout_s), self._act)
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
