"""Accepted connections that have no protocol yet, in turn by client."""

from __future__ import annotations

import socket
from collections import deque
from typing import Final

from lb.domain.client import ClientKey
from lb.net.listeners import BACKLOG

_ROOM: Final = 2 * BACKLOG
"""Connections that wait at most. A client alone may have half of it, which is what the kernel's
queue would hold for it."""


class AcceptQueue:
    """Connections in the order in which they get a protocol: one of each client in turn.

    A client that opens connections faster than they can be served makes only itself wait.
    """

    __slots__ = ("_by_client", "_size", "_turns")

    def __init__(self) -> None:
        self._by_client: dict[ClientKey, deque[socket.socket]] = {}
        self._turns: deque[ClientKey] = deque()
        """Clients with connections, the next one first."""
        self._size = 0

    def __len__(self) -> int:
        """Connections that wait."""
        return self._size

    def count(self, client: ClientKey) -> int:
        """Count those of a client."""
        own = self._by_client.get(client)
        return len(own) if own is not None else 0

    def room(self, client: ClientKey) -> int:
        """How many more a client may have: none once it has as many as are left for others."""
        return _ROOM - self._size - self.count(client)

    def put(self, client: ClientKey, connection: socket.socket) -> None:
        """A connection waits from now on."""
        own = self._by_client.get(client)
        if own is None:
            own = self._by_client[client] = deque()
            self._turns.append(client)
        own.append(connection)
        self._size += 1

    def take(self) -> socket.socket:
        """Remove the next connection: the oldest one of the client whose turn it is."""
        client = self._turns.popleft()
        own = self._by_client[client]
        connection = own.popleft()
        self._size -= 1
        if own:
            self._turns.append(client)
        else:
            del self._by_client[client]
        return connection
