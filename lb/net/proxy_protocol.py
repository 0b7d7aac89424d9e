"""Connections that begin with a PROXY header: read it, then hand the connection on.

Only of trusted proxies: theirs must begin so, and what anyone else sends goes on untouched, where
a PROXY header is nothing but a malformed request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, cast

from lb.domain.client import TrustedProxies
from lb.net.client import ANNOUNCED, client_of
from lb.net.timers import Timer, TimerWheel
from lb.wire.proxy_protocol import ProxyHeader, ProxyHeaderError, read_proxy_header

_log = logging.getLogger(__name__)

ProtocolFactory = Callable[[], asyncio.Protocol]

_PASSED_ON: Final = (
    "abort", "can_write_eof", "close", "get_protocol", "get_write_buffer_limits",
    "get_write_buffer_size", "is_closing", "is_reading", "pause_reading", "resume_reading",
    "set_protocol", "set_write_buffer_limits", "write", "write_eof", "writelines",
)  # fmt: skip


class ProxyAcceptor:
    """Makes a listener's connections; called, it is the listener's protocol factory."""

    def __init__(
        self,
        factory: ProtocolFactory,
        trusted: TrustedProxies,
        timers: TimerWheel,
        limit_s: float,
        on_failure: Callable[[], None],
    ) -> None:
        """
        Args:
            factory: of what comes after the header: TLS, or the protocols of the listener.
            trusted: whose headers are read.
            timers: for the limit.
            limit_s: seconds from the connection to the end of its header.
            on_failure: called for each that is broken or takes too long.
        """
        self.factory = factory
        self.trusted = trusted
        self.timers = timers
        self.limit_s = limit_s
        self.on_failure = on_failure
        self.waiting: set[ProxiedConnection] = set()
        """Connections whose header is still to come."""

    def __call__(self) -> ProxiedConnection:
        return ProxiedConnection(self)

    def __len__(self) -> int:
        return len(self.waiting)

    def close(self) -> None:
        """End the connections whose header is still to come."""
        for connection in tuple(self.waiting):
            connection.abort()


class ProxiedConnection(asyncio.Protocol):
    """One connection until its header has been read."""

    __slots__ = ("_acceptor", "_data", "_name", "_timer", "_transport")

    def __init__(self, acceptor: ProxyAcceptor) -> None:
        self._acceptor = acceptor
        self._transport: asyncio.Transport | None = None
        self._timer: Timer | None = None
        self._data = b""
        self._name = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client or a load balancer connected."""
        self._transport = cast("asyncio.Transport", transport)
        acceptor = self._acceptor
        peer = client_of(transport, acceptor.trusted)
        if not peer.is_trusted_proxy:
            self._hand_over(self._transport)
            return
        self._name = peer.name
        acceptor.waiting.add(self)
        self._timer = acceptor.timers.after(acceptor.limit_s, self._expire)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: gone before its header was complete. Health checks just connect and close."""
        self._settle()
        if self._data and self._transport is not None:
            self._fail("connection closed within the PROXY header")
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        transport = self._transport
        if transport is None:
            return
        self._data += data
        try:
            header = read_proxy_header(self._data)
        except ProxyHeaderError as error:
            self._refuse(str(error))
            return
        if header is None:
            return
        self._settle()
        rest = self._data[header.size :]
        self._hand_over(
            transport if header.is_local else AnnouncedTransport(transport, header), rest
        )

    def abort(self) -> None:
        """Close now."""
        transport, self._transport = self._transport, None
        self._settle()
        if transport is not None:
            transport.abort()

    def _hand_over(self, transport: asyncio.Transport, rest: bytes = b"") -> None:
        protocol = self._acceptor.factory()
        self._transport = None
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if rest and not transport.is_closing():
            protocol.data_received(rest)

    def _expire(self) -> None:
        self._timer = None
        self._refuse("no PROXY header in time")

    def _refuse(self, text: str) -> None:
        self._fail(text)
        self.abort()

    def _fail(self, text: str) -> None:
        self._acceptor.on_failure()
        _log.info("PROXY header refused", extra={"client": self._name, "error": text})

    def _settle(self) -> None:
        self._acceptor.waiting.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class AnnouncedTransport(asyncio.Transport):
    """A transport that also knows what its PROXY header said (`ANNOUNCED`).

    All else is the plain transport's: these are its methods, so that writing costs nothing more.
    """

    __slots__ = ("_header", "_plain", *_PASSED_ON)

    def __init__(self, plain: asyncio.Transport, header: ProxyHeader) -> None:
        super().__init__()
        self._plain = plain
        self._header = header
        for name in _PASSED_ON:
            setattr(self, name, getattr(plain, name))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As asyncio, and `ANNOUNCED`: a `ProxyHeader`."""
        return self._header if name == ANNOUNCED else self._plain.get_extra_info(name, default)
