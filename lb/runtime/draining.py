"""The end of the requests of a process: those that run may finish, within limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from lb.domain.errors import RequestRefused
from lb.domain.outcome import Reason
from lb.kserve.health import EXITING
from lb.proxy.role import RelayRole

_log = logging.getLogger(__name__)

STEP_S: Final = 0.02
"""How often the shutdown looks whether everything has ended."""
FLUSH_TURNS: Final = 3
"""Iterations of the event loop until what was written last is on its way."""
GOODBYE_S: Final = 1.0
"""How long clients without requests may take to close after they were told to."""


class Drain:
    """Ends what a relay has under way."""

    def __init__(self, relay: RelayRole, force: asyncio.Event) -> None:
        """
        Args:
            relay: serves nobody anew.
            force: set when there is to be no waiting any more.
        """
        self._relay = relay
        self._force = force
        self._cut_at: float | None = None
        """Loop time at which requests are cut; None before the end begins."""

    @property
    def left_s(self) -> float:
        """Seconds until requests are cut."""
        if self._cut_at is None:
            return GOODBYE_S
        return max(0.0, self._cut_at - asyncio.get_running_loop().time())

    async def finish(self, limit_s: float) -> None:
        """Answer what runs, close the other connections, and cut what is left after the limit."""
        relay = self._relay
        relay.begin_drain()
        self._cut_at = asyncio.get_running_loop().time() + limit_s
        await self.until(lambda: relay.idle, limit_s)
        if not relay.idle:
            await self.cut()
        else:
            await self.until(lambda: not relay.connections, GOODBYE_S)

    async def cut(self) -> None:
        """Leave no time to what is left; what has not begun is told so."""
        dispatcher = self._relay.dispatcher
        fields = {"requests": dispatcher.open_exchanges, "waited": len(dispatcher.queue)}
        _log.warning("requests were cut", extra=fields)
        dispatcher.queue.refuse_all(RequestRefused(Reason.DRAINING, EXITING))
        # Frames of HTTP/2 are written at the end of a turn.
        for _ in range(FLUSH_TURNS):
            await asyncio.sleep(0)

    async def until(self, is_over: Callable[[], bool], limit_s: float) -> None:
        """Wait until `is_over`, until there is to be no waiting, or for the limit."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while not is_over() and not self._force.is_set() and loop.time() < deadline:
            try:
                async with asyncio.timeout(min(STEP_S, limit_s)):
                    await self._force.wait()
            except TimeoutError:
                continue


async def unless(stopped: asyncio.Event, work: Coroutine[Any, Any, Any]) -> None:
    """Wait for `work`, but not longer than until the process is told to stop. Raises what it
    raises."""
    try:
        async with asyncio.TaskGroup() as group:
            done = group.create_task(work)
            told = group.create_task(stopped.wait())
            await asyncio.wait((done, told), return_when=asyncio.FIRST_COMPLETED)
            done.cancel()
            told.cancel()
    except ExceptionGroup as raised:
        raise raised.exceptions[0] from None
