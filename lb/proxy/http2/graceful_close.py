"""The end of a connection on which we have said all: what the peer still sends is thrown away.

Closing a socket with unread bytes resets it, and a reset takes from the peer what it has not read
yet: the GOAWAY that tells what was wrong, or the end of the last answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from lb.net.timers import Timer, TimerWheel

LINGER_S: Final = 2.0
"""How long the peer may take to close its side when all is written."""
STALL_S: Final = 30.0
"""How long it may leave what we wrote where it is; as for the body of an HTTP/1.1 answer."""


class GracefulClose(asyncio.Protocol):
    """Takes over a transport; closes it with the peer, or when the peer takes too long."""

    def __init__(
        self,
        transport: asyncio.Transport,
        timers: TimerWheel,
        on_lost: Callable[[Exception | None], None],
    ) -> None:
        self._transport = transport
        self._timers = timers
        self._on_lost = on_lost
        self._unsent = transport.get_write_buffer_size()
        self._stalled_s = 0.0
        self._timer: Timer = timers.after(LINGER_S, self._look)

    def begin(self) -> None:
        """Send what is left and then the end of our side."""
        self._transport.set_protocol(self)
        self._transport.resume_reading()
        try:
            if self._transport.can_write_eof():
                self._transport.write_eof()
        except OSError:  # reset meanwhile
            self._transport.abort()

    def _look(self) -> None:
        unsent = self._transport.get_write_buffer_size()
        self._stalled_s = 0.0 if unsent < self._unsent else self._stalled_s + LINGER_S
        self._unsent = unsent
        if not unsent:
            self._transport.close()
        elif self._stalled_s >= STALL_S:
            self._transport.abort()
        else:
            self._timer = self._timers.after(LINGER_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: it is over."""
        self._timer.cancel()
        self._on_lost(exc)
