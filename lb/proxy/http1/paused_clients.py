"""Clients that leave while nothing is read from them.

A transport that is paused tells neither of the end of a connection nor of its reset. So where a
request waits for its turn, and no more of it may be held, the socket is asked now and then.

What the client's kernel cannot send yet is before the end of the connection. That end is not seen
before ours has room for all of it; a reset is seen at once.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from lb.net.sockets import PeerEnd, peer_end
from lb.proxy.http1.options import Http1Options

_INTERVAL_S: Final = 1.0
"""Between two scans."""


class PausedClient(Protocol):
    """A client's connection that is not read from."""

    options: Http1Options
    transport: asyncio.Transport | None
    is_reading: bool

    @property
    def is_waiting(self) -> bool:
        """Whether its request waits for its turn, or for a backend."""
        ...

    def update_reading(self) -> None:
        """Read exactly when what comes can go somewhere."""
        ...

    def give_up(self) -> None:
        """The client is gone."""
        ...


class PausedClients:
    """Connections of clients that are not read from. A check of the monitor."""

    def __init__(self) -> None:
        self._servers: dict[PausedClient, None] = {}
        """In the order in which that began."""

    def __len__(self) -> int:
        return len(self._servers)

    def add(self, server: PausedClient) -> None:
        """Nothing is read from a client from now on."""
        self._servers.setdefault(server)

    def discard(self, server: PausedClient) -> None:
        """A connection is gone, or is read from."""
        self._servers.pop(server, None)

    @property
    def may_rest(self) -> bool:
        """See `Check`."""
        return not self._servers

    def interval_s(self, _now: float) -> float:
        """See `Check`."""
        return _INTERVAL_S

    def begin(self, _now: float) -> tuple[PausedClient, ...]:
        """See `Check`."""
        return tuple(self._servers)

    def check(self, server: PausedClient, _now: float) -> None:
        """See `Check`."""
        if server not in self._servers:
            return  # it is gone since the scan began
        if server.is_waiting:
            server.update_reading()  # there may be room for more of it
        transport = server.transport
        if transport is None or server.is_reading:
            self.discard(server)
            return
        end = peer_end(transport)
        is_gone = end is PeerEnd.RESET or (
            end is PeerEnd.FIN and server.options.aborts_on_half_close
        )
        if is_gone and server.is_waiting:
            self.discard(server)
            server.give_up()

    def end(self) -> None:
        """See `Check`."""
