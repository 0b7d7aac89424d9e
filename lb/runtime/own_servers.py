"""The servers of the metrics port and the admin API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from lb.domain.client import ClientKey, key_of_client
from lb.net.client import client_of
from lb.runtime.draining import Drain
from lb.runtime.listeners import OwnServer

_log = logging.getLogger(__name__)

_OWN_CONNECTIONS: Final = 48
"""Of the metrics port and of the admin API each, so that they do not use up the descriptors. Three
times as many as may read events of the page: a browser has a few more beside that one."""


def _is_at_fault(record: logging.LogRecord) -> bool:
    """Whether an error that a server logs is its own. Clients that do not speak HTTP have got an
    answer, and would fill the log with what they sent."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


_server_log = logging.getLogger(f"{__name__}.aiohttp")
_server_log.addFilter(_is_at_fault)


def own_runner(name: str, app: web.Application) -> web.AppRunner:
    """Make what serves the metrics port or the admin API."""
    return web.AppRunner(
        app,
        access_log=None,
        logger=_server_log,
        handle_signals=False,
        # Whoever has its answer must not hold one of the few connections for more of its body.
        lingering_time=0,
        # No page is made for clients that have left. What an operator asks for is done anyway.
        handler_cancellation=name == "metrics",
    )


def own_server(server: web.Server) -> OwnServer:
    """Describe a server for `ListenerSet`."""
    return OwnServer(server, partial(_make_room, server), partial(_end_connections, server))


class OwnServers:
    """The servers of the metrics port and the admin API."""

    def __init__(self) -> None:
        self._runners: list[web.AppRunner] = []

    async def start(self, apps: Mapping[str, web.Application]) -> Mapping[str, OwnServer]:
        """Make what stands behind each, whether it listens or not: a reload may open it."""
        servers = {}
        for name, app in apps.items():
            runner = own_runner(name, app)
            await runner.setup()
            self._runners.append(runner)
            if runner.server is not None:
                servers[name] = own_server(runner.server)
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


def _end_connections(server: web.Server) -> None:
    for connection in server.connections:
        connection.close()


def _make_room(server: web.Server) -> int:
    """How many more connections the metrics port or the admin API may take. With none, the older
    half of those of one client is closed, of whom has most: so silent ones and floods keep nobody
    else from asking for our health."""
    by_client: dict[ClientKey, list[web.RequestHandler]] = {}
    for connection in server.connections:
        transport = connection.transport
        if transport is not None and not transport.is_closing():
            client = key_of_client(client_of(transport).address)
            by_client.setdefault(client, []).append(connection)
    room = _OWN_CONNECTIONS - sum(map(len, by_client.values()))
    if room > 0:
        return room
    most = max(by_client.values(), key=len)
    closed = most[: (len(most) + 1) // 2]
    for connection in closed:
        connection.force_close()
    return len(closed)
