"""One port for both protocols: the first bytes decide (RFC 9113 3.3, prior knowledge).

No HTTP/1.1 request starts like the HTTP/2 preface for longer than its first bytes, and a client
that speaks HTTP/2 sends the preface at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from lb.domain.client import IpAddress
from lb.net.client import client_of
from lb.net.connection_limiter import ConnectionLimiter
from lb.net.timers import Timer, TimerWheel
from lb.wire.http2.frames import PREFACE

_DECISIVE: Final = 14
"""Bytes up to "PRI * HTTP/2.0", which is no valid HTTP/1.1 request line."""


class Sniffer:
    """Makes a listener's connections; called, it is the listener's protocol factory."""

    def __init__(
        self,
        make_http1: Callable[[], Any],
        make_http2: Callable[[], Any],
        timers: TimerWheel,
        head_timeout_s: float,
    ) -> None:
        """
        Args:
            make_http1: makes the protocol of a connection that speaks HTTP/1.1.
            make_http2: of one that speaks HTTP/2.
            timers: for the limit.
            head_timeout_s: seconds that a client may take to say which.
        """
        self.make_http1 = make_http1
        self.make_http2 = make_http2
        self.timers = timers
        self.head_timeout_s = head_timeout_s
        self.connection_limiter = ConnectionLimiter()
        """How many connections each client has, those that wait here included."""
        self.on_crowded: Callable[[], None] = _ignore
        """Called for each that is one too many."""
        self.waiting: set[SniffProtocol] = set()
        """Connections that have not said yet what they speak."""

    def __call__(self) -> SniffProtocol:
        return SniffProtocol(self)

    def __len__(self) -> int:
        return len(self.waiting)


def _ignore() -> None:
    """Nobody counts."""


class SniffProtocol(asyncio.Protocol):
    """Waits for the decisive bytes, then hands the connection over and is gone."""

    def __init__(self, sniffer: Sniffer) -> None:
        self._sniffer = sniffer
        self._transport: asyncio.Transport | None = None
        self._timer: Timer | None = None
        self._data = b""
        self._address: IpAddress | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client connected."""
        self._transport = cast("asyncio.Transport", transport)
        sniffer = self._sniffer
        sniffer.waiting.add(self)
        self._address = client_of(transport).address
        if not sniffer.connection_limiter.enter(self._address):
            sniffer.on_crowded()
            self._transport.abort()
            return
        self._timer = sniffer.timers.after(sniffer.head_timeout_s, self._expire)

    def _expire(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the client went without saying anything decisive."""
        self._end()

    def _end(self) -> None:
        self._transport = None
        sniffer = self._sniffer
        if self in sniffer.waiting:
            sniffer.waiting.remove(self)
            # The protocol counts it anew.
            sniffer.connection_limiter.leave(self._address)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        self._data += data
        size = min(len(self._data), _DECISIVE)
        is_http2 = self._data[:size] == PREFACE[:size]
        if is_http2 and size < _DECISIVE:
            return
        transport = self._transport
        if transport is None:
            return
        self._end()
        protocol = self._sniffer.make_http2() if is_http2 else self._sniffer.make_http1()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if not transport.is_closing():
            protocol.data_received(self._data)
