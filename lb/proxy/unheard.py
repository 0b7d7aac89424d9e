"""Connections to backends that are dead although nobody said so.

A firewall that forgot a connection drops what comes over it, and TCP goes on sending for a quarter
of an hour. Probes find nothing, since new connections work. So those that owe an answer are looked
at now and then: where nothing that was sent is acknowledged although it was sent again, even after
the same port was heard from otherwise, the connection is given up.

Not TCP_USER_TIMEOUT: that would also end connections to a server that acknowledges and does not
read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from lb.domain.backend import Port
from lb.net.sockets import unacknowledged
from lb.net.timers import TimerWheel

_LOOK_S: Final = 1.0
"""Between two looks."""
_DOUBT_S: Final = 0.5
"""Without an acknowledgement: from then on it is noted when the port is heard from."""
_SILENT_S: Final = 2.0
"""Without one, after which it may be given up."""
_WAY_S: Final = 0.1
"""What an acknowledgement may take."""
_AT_ONCE: Final = 200
"""Connections that are looked at in one turn of the loop: each takes some microseconds."""


class Owing(Protocol):
    """A connection over which an answer is to come."""

    transport: asyncio.Transport | None
    """None once it is closed."""

    @property
    def port(self) -> Port:
        """Of the backend."""
        ...

    @property
    def owes_since(self) -> float:
        """When the oldest request under way was sent, or so."""
        ...

    def unheard(self) -> None:
        """Nothing that is sent over it arrives."""
        ...


class Unheard:
    """Looks after the connections of both relays."""

    def __init__(
        self,
        timers: TimerWheel,
        clock: Callable[[], float],
        owing: Callable[[], Iterable[Owing]],
    ) -> None:
        """
        Args:
            timers: to look now and then.
            clock: monotonic seconds.
            owing: gives the connections over which answers are to come.
        """
        self._timers = timers
        self._clock = clock
        self._owing = owing
        self._left: list[Owing] = []
        """Connections that are still to be looked at this time."""
        self._heard: dict[Owing, float] = {}
        """When the port was heard from after its connection had gone silent."""
        self.count = 0
        """Connections that were given up."""

    def keep(self) -> None:
        """Look from now on, until the timers are closed."""
        self._timers.after(_LOOK_S, self._look)

    def _look(self) -> None:
        now = self._clock()
        if not self._left:
            self._left = list(self._owing())
            self._heard = {each: at for each, at in self._heard.items() if each.transport}
        some, self._left = self._left[:_AT_ONCE], self._left[_AT_ONCE:]
        try:
            for each in some:
                if self._is_lost(each, now):
                    self.count += 1
                    each.unheard()
        finally:
            self._timers.after(0.0 if self._left else _LOOK_S, self._look)

    def _is_lost(self, connection: Owing, now: float) -> bool:
        """Whether nothing that is sent over a connection arrives, while its port answers otherwise:
        something was sent again after the port was heard from, and still is not acknowledged."""
        heard_at = self._heard.pop(connection, 0.0)
        transport = connection.transport
        since = connection.owes_since
        sent = None if transport is None or now - since < _DOUBT_S else unacknowledged(transport)
        if sent is None or sent.silent_s < _DOUBT_S:
            return False
        since = max(since, now - sent.silent_s)
        if heard_at <= since:
            port = connection.port
            heard_at = max(port.last_byte_at, port.probed_at)
        if heard_at > since:
            self._heard[connection] = heard_at
        return (
            now - since >= _SILENT_S
            and sent.resent_s >= _WAY_S
            and since < heard_at <= now - sent.resent_s
        )
