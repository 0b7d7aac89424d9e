"""Clients that leave while nothing is read from them.

A transport that is paused tells neither of the end of a connection nor of its reset. So where a
request waits for its turn, and no more of it may be held, the socket is asked now and then.

A client that only says that nothing more comes says so right behind its last byte, and waits for
the answer; one that says it later has given up. What its own kernel cannot send yet is before the
end of the connection, which so is not seen before all of the rest has room in ours; a reset is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lb.net.sockets import peer_end
from lb.net.timers import Timer, TimerWheel

if TYPE_CHECKING:
    from lb.proxy.http1.server import ServerConnection

AT_ONCE_S: Final = 0.1
"""After the end of a request: the end of the connection is part of it."""
_LOOK_S: Final = 1.0
"""Between two looks."""
_SOME: Final = 200
"""Connections that are looked at in one turn of the loop: each takes some microseconds."""


class Unread:
    """Looks after connections of clients that are not read from."""

    def __init__(self, timers: TimerWheel) -> None:
        """
        Args:
            timers: to look now and then.
        """
        self._timers = timers
        self._is_patient: dict[ServerConnection, bool] = {}
        """Whether each is known to wait for its answer though it sends nothing more."""
        self._left: list[ServerConnection] = []
        """Those that are still to be looked at this time."""
        self._timer: Timer | None = None

    def __len__(self) -> int:
        """Connections that are looked after."""
        return len(self._is_patient)

    def add(self, server: ServerConnection) -> None:
        """Nothing is read from a client from now on."""
        self._is_patient.setdefault(server, False)
        if self._timer is None:
            self._timer = self._timers.after(_LOOK_S, self._look)

    def discard(self, server: ServerConnection) -> None:
        """A connection is gone, or is read from."""
        self._is_patient.pop(server, None)
        if not self._is_patient and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._left = []

    def _look(self) -> None:
        if not self._left:
            self._left = list(self._is_patient)
        some, self._left = self._left[:_SOME], self._left[_SOME:]
        self._timer = self._timers.after(0.0 if self._left else _LOOK_S, self._look)
        for server in some:
            if server in self._is_patient:
                self._look_at(server)

    def _look_at(self, server: ServerConnection) -> None:
        if server.is_waiting:
            server.update_reading()  # there may be room for more of it
        transport = server.transport
        if transport is None or server.is_reading:
            self.discard(server)
            return
        end = peer_end(transport)
        if end is None:
            return
        if not end.is_reset and end.after_s <= AT_ONCE_S:
            self._is_patient[server] = True
        if server.is_waiting and (end.is_reset or not self._is_patient[server]):
            self.discard(server)
            server.give_up()
