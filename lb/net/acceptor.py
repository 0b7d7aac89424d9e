"""Accepting on a listening socket while there is room for more connections.

In calm a server of uvloop accepts, which takes one connection per loop iteration and is the
cheapest. When connections wait in the kernel's queue all the same, we accept ourselves: in batches,
as fast as the kernel makes them. They get their protocols a few per loop iteration, one client
after the other, so a client that floods a listener delays only itself. What a client has far beyond
its share is closed at once, before anything is made for it.

Without room for more connections at all, they wait in the kernel's queue: nobody is turned away,
and nothing that is open suffers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any, Final, Protocol

from lb.domain.client import ClientKey, IpAddress, key_of_client
from lb.net.accept_queue import AcceptQueue
from lb.net.client import address_of
from lb.net.connection_limiter import ConnectionLimiter
from lb.net.listeners import BACKLOG
from lb.net.tasks import TaskOwner

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 0.05
"""How often a paused listener looks for room."""
_WATCH_S: Final = 0.5
"""How often an open one looks whether a server still accepts, which ends when accepting fails (out
of descriptors or memory), and whether a rush is over."""
_LOG_S: Final = 10.0
"""No listener says more often than this that it paused, or that it closed connections."""
_CREDIT: Final = 16
"""Connections that a server accepts between two looks for room and for a rush at most."""
_RUSH: Final = 8
"""Connections in the kernel's queue, or in one batch, that a rush has at least."""
_BATCH: Final = 64
"""Connections that we accept in a loop iteration at most. To accept one and close it takes some 20
microseconds."""
_ADOPTED: Final = 4
"""Connections that get a protocol in a loop iteration. One takes some 100 microseconds, with what
it costs later."""
_TURN_S: Final = 0.001
"""How long a process that has accepted leaves further connections to others of the same socket."""
_LEFT_TO_OTHERS: Final = 3
"""Turns that a process with more connections than others leaves to them. Then it accepts: they may
stand still."""

_KEEP_FILE: Final[dict[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""A server that pauses must leave the file of its Unix socket, which Python 3.13 removes."""
_TCP_INFO_QUEUED: Final = struct.Struct("=24xI")
"""The start of Linux's `struct tcp_info`. Of a socket that listens, `tcpi_unacked` is the number of
connections in its queue."""

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
        limiter: ConnectionLimiter | None = None,
        on_refused: Callable[[], None] | None = None,
    ) -> None:
        """
        Args:
            name: of the listener, for logs.
            listener: bound and listening; closed by `close`.
            factory: makes the protocol of each connection.
            room: how many more connections may be accepted, beside those that this acceptor has
                accepted and that have no protocol yet.
            tasks: owns the tasks that give connections their protocols.
            share: of this process, where others accept at the same socket and should have their
                part of the connections.
            limiter: knows how many connections each client has, where the other end of a
                connection is the client.
            on_refused: is told of each connection that is closed at once.
        """
        self._name = name
        self._listener = listener
        self.factory = factory
        """May be replaced: for connections that come later."""
        self.limiter = limiter
        """May be replaced, likewise."""
        self._room = room
        self._tasks = tasks
        self._on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self._turns = None if share is None else _Turns(share)
        has_server = share is None and not isinstance(self._loop, asyncio.BaseEventLoop)
        self._server = _Server(listener, self._make) if has_server else None
        """What accepts in calm. asyncio's own server is no cheaper than we are, and loses what it
        has accepted when it is closed."""
        self._is_reading = False
        """We accept ourselves."""
        self._is_rush = False
        """Many connections came since the last look."""
        self._credit = 0
        """Connections that the server accepts before there is a look for room."""
        self._is_changing = False
        """The server has to be closed."""
        self._queue = AcceptQueue()
        self._adopting = 0
        """Connections whose protocols have not been told yet."""
        self._is_adopting = False
        """`_adopt_some` is due in the next loop iteration."""
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._paused_log_at = self._refused_log_at = -_LOG_S
        self.pauses = 0
        """How often accepting stopped for want of room."""
        self.refused = 0
        """Connections that were closed at once."""

    def __len__(self) -> int:
        """Connections that we have accepted and that have no protocol yet."""
        return len(self._queue) + self._adopting

    @property
    def is_accepting(self) -> bool:
        """Whether new connections are accepted now."""
        return self._is_reading or (self._server is not None and self._server.is_open)

    async def open(self) -> None:
        """Begin to accept.

        Raises:
            OSError: there is no descriptor left for it.
        """
        if self._server is not None:
            await self._server.open()
        elif not self._closed:
            self._read()
        if self._closed:
            self._stop()
        else:
            self._look_in(_WATCH_S)

    def begin(self) -> None:
        """As `open`, soon, and again later when there is no descriptor left for it."""
        self._tasks.spawn(self._reopen(), name=f"accept:{self._name}")

    async def _reopen(self) -> None:
        try:
            await self.open()
        except OSError as error:
            _log.debug("cannot accept yet", extra={"listener": self._name, "error": str(error)})
            self._look_in(_WATCH_S)

    def close(self) -> None:
        """Stop for good; later connections are refused, and those that are accepted get their
        protocols. Idempotent."""
        self._closed = True
        self._stop()
        if self._timer is not None:
            self._timer.cancel()
        self._listener.close()

    def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._listener)

    def _look_in(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        if not self.is_accepting:
            if self._room() > len(self):
                self.begin()
            else:
                self._look_in(_PAUSE_S)
            return
        if self._is_reading and self._server is not None and not self._is_rush:
            self._stop()
            self.begin()
            return
        self._is_rush = False
        self._look_in(_WATCH_S)

    # A server accepts

    def _make(self) -> asyncio.BaseProtocol:
        """A server has accepted a connection."""
        if self._credit:
            self._credit -= 1
        elif not self._is_changing:
            room = self._room() - len(self)
            self._credit = max(min(room, _CREDIT) - 1, 0)
            if room <= 0 or _queued(self._listener) >= _RUSH:
                self._is_changing = True
                # Not at once: the loop is about to use the server for the connection in hand.
                self._loop.call_soon(self._change)
        return self.factory()

    def _change(self) -> None:
        """We accept ourselves from now on, or nobody does without room."""
        self._is_changing = False
        if self._closed or not self.is_accepting:
            return  # it has only begun to open, and will look
        self._stop()
        self._is_rush = True
        self._read()

    # We accept

    def _read(self) -> None:
        self._is_reading = True
        self._loop.add_reader(self._listener, self._on_readable)

    def _on_readable(self) -> None:
        """Connections wait in the kernel's queue, or did: another process may be quicker."""
        room = min(self._room() - len(self), _BATCH)
        if room <= 0:
            if not len(self):
                self._pause()
            return
        turns = self._turns
        if turns is None:
            self._is_rush |= self._accept(room) >= _RUSH
            return
        most = min(turns.next(), room)
        count = self._accept(most)
        turns.accepted(count, most)
        if self._is_reading and (count or not most):
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_TURN_S, self._go_on)

    def _go_on(self) -> None:
        if self._is_reading:
            self._read()

    def _accept(self, most: int) -> int:
        """Accept what waits, up to a number of connections. Returns how many there were."""
        listener = self._listener
        count = 0
        while count < most:
            try:
                connection, name = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                _log.error("cannot accept", extra={"error": os.strerror(error.errno or 0)})
                self._stop()
                break
            count += 1
            # The name of a client of a Unix socket is a string.
            address = address_of(name[0]) if isinstance(name, tuple) else None
            client = key_of_client(address)
            if self._has_room(address, client):
                connection.setblocking(False)
                self._queue.put(client, connection)
            else:
                connection.close()
                self._refused(address)
        if not self._is_adopting:
            self._adopt_some()
        return count

    def _has_room(self, address: IpAddress | None, client: ClientKey) -> bool:
        """Whether a client may have one more connection."""
        queue, limiter = self._queue, self.limiter
        if limiter is not None and not limiter.has_room(address, queue.count(client)):
            return False
        return queue.room(client) > 0

    def _refused(self, address: IpAddress | None) -> None:
        self.refused += 1
        if self._on_refused is not None:
            self._on_refused()
        now = self._loop.time()
        if now - self._refused_log_at >= _LOG_S:
            self._refused_log_at = now
            _log.warning(
                "a client opens too many connections, new ones of it are closed",
                extra={"listener": self._name, "client": str(address), "refused": self.refused},
            )

    def _adopt_some(self) -> None:
        """Give those whose turn it is their protocols."""
        self._is_adopting = False
        for _ in range(min(len(self._queue), _ADOPTED)):
            self._adopting += 1
            self._tasks.spawn(self._adopt(self._queue.take()), name="accept")
        if self._queue:
            self._is_adopting = True
            self._loop.call_soon(self._adopt_some)

    async def _adopt(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self.factory, connection)
        finally:
            self._adopting -= 1

    def _pause(self) -> None:
        self._stop()
        self.pauses += 1
        now = self._loop.time()
        if now - self._paused_log_at >= _LOG_S:
            self._paused_log_at = now
            _log.warning(
                "no room for more connections, new ones wait",
                extra={"listener": self._name, "pauses": self.pauses},
            )
        self._look_in(_PAUSE_S)


class _Server:
    """A server of uvloop, on a duplicate of the socket.

    Servers cannot pause, but the queue of connections belongs to the socket, not to the descriptor
    that is closed with a server.
    """

    def __init__(self, listener: socket.socket, make: ProtocolFactory) -> None:
        self._listener = listener
        self._make = make
        self._server: asyncio.AbstractServer | None = None
        self._socket: socket.socket | None = None

    @property
    def is_open(self) -> bool:
        """Whether it accepts; that also ends when the loop fails to."""
        return self._server is not None and self._socket is not None and self._socket.fileno() >= 0

    async def open(self) -> None:
        """Accept."""
        loop = asyncio.get_running_loop()
        sock = self._listener.dup()
        try:
            if sock.family == socket.AF_UNIX:
                self._server = await loop.create_unix_server(
                    self._make, sock=sock, backlog=BACKLOG, **_KEEP_FILE
                )
            else:
                self._server = await loop.create_server(self._make, sock=sock, backlog=BACKLOG)
        except BaseException:
            sock.close()
            raise
        self._socket = sock

    def close(self) -> None:
        """Accept no more. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()


def _queued(listener: socket.socket) -> int:
    """Count the connections in the kernel's queue; 0 for a Unix socket, which does not tell."""
    if listener.family == socket.AF_UNIX:
        return 0
    size = _TCP_INFO_QUEUED.size
    info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    return int(_TCP_INFO_QUEUED.unpack(info)[0]) if len(info) == size else 0


class _Turns:
    """How many connections a process accepts that others accept beside.

    It accepts one, and leaves the next ones to the others for a moment. While more connections come
    than all of them take so, each takes twice as many in its next turn. A process that has more
    connections than its part leaves some turns to the others.
    """

    def __init__(self, share: AcceptShare) -> None:
        self._share = share
        self._most = 1
        self._left = 0
        """Turns in a row that were left to others."""

    def next(self) -> int:
        """How many may be accepted in this turn; 0 where it is left to others."""
        room = self._share.room()
        if room <= 0 and self._left < _LEFT_TO_OTHERS:
            self._left += 1
            return 0
        self._left = 0
        return max(1, min(self._most, room))

    def accepted(self, count: int, most: int) -> None:
        """Tell how many were accepted of those that might have been."""
        self._share.accepted(count)
        if count:
            self._most = min(2 * self._most, _BATCH) if count == most else 1
