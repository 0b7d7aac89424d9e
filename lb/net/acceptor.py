"""Accepting on a listening socket while there is room for more connections.

Without room, connections wait in the kernel's queue: nobody is turned away, and nothing that is
open suffers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Protocol

from lb.net.listeners import BACKLOG
from lb.net.tasks import TaskOwner

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 0.05
"""How often a paused listener looks for room."""
_WATCH_S: Final = 0.5
"""How often an open one looks whether it still accepts: that ends when accepting fails (out of
descriptors or memory)."""
_LOG_S: Final = 10.0
"""No listener says more often than this that it paused."""
_CREDIT: Final = 16
"""Connections that come between two looks for room at most."""
_BATCH: Final = 4
"""Connections accepted in one iteration of the loop, where we accept ourselves. It takes three
turns until they count."""
_TURN_S: Final = 0.001
"""How long a process that has accepted leaves further connections to others of the same socket."""
_MOST_IN_TURN: Final = 64
"""Connections accepted in one turn, however many come."""
_LEFT_TO_OTHERS: Final = 3
"""Turns that a process with more connections than others leaves to them. Then it accepts: they may
stand still."""
_KEEP_FILE: Final[dict[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""A server that pauses must leave the file of its Unix socket, which Python 3.13 removes."""

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class AcceptShare(Protocol):
    """Tells how many connections each process has, of those that accept at the same sockets."""

    def room(self) -> int:
        """Count the connections that this process may accept before it has more than its part."""

    def accepted(self, count: int) -> None:
        """This process has accepted so many more."""


class Acceptor:
    """One listener. Between `open` and `close` it accepts, or waits for room."""

    def __init__(
        self,
        name: str,
        listener: socket.socket,
        factory: ProtocolFactory,
        room: Callable[[], int],
        tasks: TaskOwner,
        *,
        share: AcceptShare | None = None,
    ) -> None:
        """
        Args:
            name: of the listener, for logs.
            listener: bound and listening; closed by `close`.
            factory: makes the protocol of each connection.
            room: how many more connections may be accepted. Asked now and then; a few more may
                come before accepting stops.
            tasks: owns the tasks that accept.
            share: of this process, where others accept at the same socket and should have their
                part of the connections.
        """
        self._name = name
        self._listener = listener
        self.factory = factory
        """May be replaced: for connections that come later."""
        self._room = room
        self._tasks = tasks
        self._loop = loop = asyncio.get_running_loop()
        is_asyncio = isinstance(loop, asyncio.BaseEventLoop)
        self._door: _Door
        if share is not None:
            self._door = _TurnDoor(listener, self._make, tasks, share)
        else:
            self._door = (_ReadDoor if is_asyncio else _ServerDoor)(listener, self._make, tasks)
        self._credit = 0
        """Connections to accept before there is a look for room."""
        self._is_full = False
        """A pause is due."""
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._said_at = -_LOG_S
        self.pauses = 0
        """How often accepting stopped for want of room."""

    @property
    def is_accepting(self) -> bool:
        """Whether new connections are accepted now."""
        return self._door.is_open

    async def open(self) -> None:
        """Begin to accept.

        Raises:
            OSError: there is no descriptor left for it.
        """
        await self._door.open()
        if self._closed:
            self._door.close()
        elif self._is_full:
            self._pause()
        else:
            self._look_in(_WATCH_S)

    def begin(self) -> None:
        """As `open`, soon, and again later when there is no descriptor left for it."""
        self._tasks.spawn(self._reopen(), name=f"accept:{self._name}")

    def close(self) -> None:
        """Stop for good; later connections are refused. Idempotent."""
        self._closed = True
        self._door.close()
        if self._timer is not None:
            self._timer.cancel()
        self._listener.close()

    def _make(self) -> asyncio.BaseProtocol:
        if self._credit:
            self._credit -= 1
        elif not self._is_full:
            room = self._room()
            self._credit = max(min(room, _CREDIT) - 1, 0)
            if room <= 0:
                self._is_full = True
                # Not at once: the loop is about to use the server for the connection in hand.
                self._loop.call_soon(self._pause)
        return self.factory()

    def _pause(self) -> None:
        if self._closed or not self._door.is_open:
            return  # it has only begun to open, and will look
        self._is_full = False
        self._door.close()
        self.pauses += 1
        now = self._loop.time()
        if now - self._said_at >= _LOG_S:
            self._said_at = now
            _log.warning(
                "no room for more connections, new ones wait",
                extra={"listener": self._name, "pauses": self.pauses},
            )
        self._look_in(_PAUSE_S)

    def _look_in(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        if self._door.is_open:
            self._look_in(_WATCH_S)
        elif self._room() > 0:
            self.begin()
        else:
            self._look_in(_PAUSE_S)

    async def _reopen(self) -> None:
        try:
            await self.open()
        except OSError as error:
            _log.debug("cannot accept yet", extra={"listener": self._name, "error": str(error)})
            self._look_in(_WATCH_S)


class _Door(ABC):
    """What accepts on a listening socket; it can be opened and closed again and again."""

    def __init__(self, listener: socket.socket, make: ProtocolFactory, tasks: TaskOwner) -> None:
        self.listener = listener
        self.make = make
        self.tasks = tasks
        self.loop = asyncio.get_running_loop()

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether it accepts; that also ends when the loop fails to."""

    @abstractmethod
    async def open(self) -> None:
        """Accept."""

    @abstractmethod
    def close(self) -> None:
        """Accept no more. Idempotent."""


class _ServerDoor(_Door):
    """A server of the event loop, on a duplicate of the socket.

    Servers cannot pause, but the queue of connections belongs to the socket, not to the descriptor
    that is closed with a server. With uvloop, accepting ourselves as below costs 10 microseconds
    more per connection. asyncio has no such advantage, and loses what it has accepted meanwhile
    when a server is closed.
    """

    def __init__(self, listener: socket.socket, make: ProtocolFactory, tasks: TaskOwner) -> None:
        super().__init__(listener, make, tasks)
        self._server: asyncio.AbstractServer | None = None
        self._socket: socket.socket | None = None

    @property
    def is_open(self) -> bool:
        return self._server is not None and self._socket is not None and self._socket.fileno() >= 0

    async def open(self) -> None:
        sock = self.listener.dup()
        try:
            if sock.family == socket.AF_UNIX:
                self._server = await self.loop.create_unix_server(
                    self.make, sock=sock, backlog=BACKLOG, **_KEEP_FILE
                )
            else:
                self._server = await self.loop.create_server(self.make, sock=sock, backlog=BACKLOG)
        except BaseException:
            sock.close()
            raise
        self._socket = sock

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()


class _ReadDoor(_Door):
    """Accepts when the socket is readable."""

    def __init__(self, listener: socket.socket, make: ProtocolFactory, tasks: TaskOwner) -> None:
        super().__init__(listener, make, tasks)
        self._is_open = False

    @property
    def is_open(self) -> bool:
        return self._is_open

    async def open(self) -> None:
        self._is_open = True
        self.loop.add_reader(self.listener, self._accept)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self.loop.remove_reader(self.listener)

    def _accept(self) -> None:
        self.take(_BATCH)

    def take(self, most: int) -> int:
        """Accept what waits, up to a number of connections. Returns how many there were."""
        for count in range(most):
            try:
                sock, _address = self.listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return count
            except OSError as error:
                _log.error("cannot accept", extra={"error": os.strerror(error.errno or 0)})
                self.close()
                return count
            sock.setblocking(False)
            self.tasks.spawn(self._adopt(sock), name="accept")
        return most

    async def _adopt(self, sock: socket.socket) -> None:
        await self.loop.connect_accepted_socket(self.make, sock)


class _TurnDoor(_ReadDoor):
    """Accepts one connection, and leaves the next ones to other processes for a moment. While more
    connections come than all of them take so, each takes twice as many in its next turn. A process
    that has more connections than its part leaves some turns to the others."""

    def __init__(
        self,
        listener: socket.socket,
        make: ProtocolFactory,
        tasks: TaskOwner,
        share: AcceptShare,
    ) -> None:
        super().__init__(listener, make, tasks)
        self._share = share
        self._most = 1
        self._left = 0
        """Turns in a row that were left to others."""

    def _accept(self) -> None:
        room = self._share.room()
        if room <= 0 and self._left < _LEFT_TO_OTHERS:
            self._left += 1
            self._wait()
            return
        self._left = 0
        most = max(1, min(self._most, room))
        count = self.take(most)
        self._share.accepted(count)
        if not count or not self.is_open:
            return  # another process was quicker
        self._most = min(2 * self._most, _MOST_IN_TURN) if count == most else 1
        self._wait()

    def _wait(self) -> None:
        self.loop.remove_reader(self.listener)
        self.loop.call_later(_TURN_S, self._go_on)

    def _go_on(self) -> None:
        if self.is_open:
            self.loop.add_reader(self.listener, self._accept)
