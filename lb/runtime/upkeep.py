"""What goes on in a process beside requests: the lag of its event loop, files that may change, and
the servers of the metrics port and the admin API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from aiohttp import web

from lb.runtime.configuration_file import ConfigurationWatch
from lb.runtime.draining import Drain
from lb.runtime.wiring import RelayHost

_log = logging.getLogger(__name__)

_LAG_TICK_S: Final = 0.1
_LOOK_S: Final = 0.9
"""How often files are looked at that may be replaced; a change counts once it was seen twice."""


async def watch_lag(host: RelayHost) -> None:
    """Measure how late the event loop is, again and again."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _LAG_TICK_S
        await asyncio.sleep(_LAG_TICK_S)
        host.loop_lag.observe(loop.time() - due)


async def watch_files(host: RelayHost, watches: Sequence[ConfigurationWatch] = ()) -> None:
    """Follow certificates and tokens, and further files."""
    while True:
        await asyncio.sleep(_LOOK_S)
        for each in (*host.security.watch, host.access.tokens, *watches):
            host.parts.files.follow(each)


def own_runner(name: str, app: web.Application) -> web.AppRunner:
    """Make what serves the metrics port or the admin API."""
    return web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        # Whoever has its answer must not hold one of the few connections for more of its body.
        lingering_time=0,
        # No page is made for clients that have left. What an operator asks for is done anyway.
        handler_cancellation=name == "metrics",
    )


class OwnServers:
    """The servers of the metrics port and the admin API."""

    def __init__(self) -> None:
        self._runners: list[web.AppRunner] = []

    async def start(self, apps: Mapping[str, web.Application]) -> Mapping[str, web.Server]:
        """Make what stands behind each, whether it listens or not: a reload may open it."""
        servers = {}
        for name, app in apps.items():
            runner = own_runner(name, app)
            await runner.setup()
            self._runners.append(runner)
            if runner.server is not None:
                servers[name] = runner.server
        return servers

    async def close(self, ending: Drain) -> None:
        """Finish what they have begun to answer, within what is left of the time for requests, and
        not when there is to be no waiting. Who still sends its request then is cut."""
        closing = asyncio.gather(*(runner.cleanup() for runner in self._runners))
        await ending.until(closing.done, ending.left_s)
        closing.cancel()
        try:
            await closing
        except asyncio.CancelledError:
            _log.warning("requests of operators were cut")
