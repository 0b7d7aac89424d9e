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
from lb.net.timers import Timer, TimerWheel
from lb.proxy.http1.options import Http1Options

_LOOK_S: Final = 1.0
"""Between two looks."""
_SOME: Final = 200
"""Connections that are looked at in one turn of the loop: each takes some microseconds."""


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


class Unread:
    """Looks after connections of clients that are not read from."""

    def __init__(self, timers: TimerWheel) -> None:
        """
        Args:
            timers: to look now and then.
        """
        self._timers = timers
        self._servers: dict[PausedClient, None] = {}
        """Connections that are not read from, in the order in which that began."""
        self._left: list[PausedClient] = []
        """Those that are still to be looked at this time."""
        self._timer: Timer | None = None

    def __len__(self) -> int:
        """Connections that are looked after."""
        return len(self._servers)

    def add(self, server: PausedClient) -> None:
        """Nothing is read from a client from now on."""
        self._servers.setdefault(server)
        if self._timer is None:
            self._timer = self._timers.after(_LOOK_S, self._look)

    def discard(self, server: PausedClient) -> None:
        """A connection is gone, or is read from."""
        self._servers.pop(server, None)
        if not self._servers and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._left = []

    def _look(self) -> None:
        if not self._left:
            self._left = list(self._servers)
        some, self._left = self._left[:_SOME], self._left[_SOME:]
        self._timer = self._timers.after(0.0 if self._left else _LOOK_S, self._look)
        for server in some:
            if server in self._servers:
                self._look_at(server)

    def _look_at(self, server: PausedClient) -> None:
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
