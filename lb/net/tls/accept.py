"""Connections of clients with TLS: hello, context, handshake, then the protocol they agreed on."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from lb.domain.client import IpAddress
from lb.net.client import client_of
from lb.net.connection_limiter import ConnectionLimiter
from lb.net.iteration import IterationBudget
from lb.net.timers import Timer, TimerWheel
from lb.net.tls.contexts import describe
from lb.net.tls.server import ServerTls
from lb.net.tls.transport import TlsTransport
from lb.wire.tls.hello import (
    DECODE_ERROR,
    NO_APPLICATION_PROTOCOL,
    ClientHello,
    HelloError,
    HelloReader,
    alert,
)
from lb.wire.tls.identity import format_subject

_log = logging.getLogger(__name__)

ProtocolFactory = Callable[[], asyncio.Protocol]


class TlsAcceptor:
    """Makes a listener's connections; called, it is the listener's protocol factory."""

    def __init__(
        self,
        tls: ServerTls,
        factories: Mapping[str, ProtocolFactory],
        fallback: ProtocolFactory,
        timers: TimerWheel,
        iteration: IterationBudget,
        handshake_s: float,
        on_failure: Callable[[], None],
    ) -> None:
        """
        Args:
            tls: of the listener.
            factories: by ALPN protocol, see `ServerTls.protocols`.
            fallback: for clients that do not say which protocol they want.
            timers: for the limit of handshakes.
            iteration: the budget of costly work, which all connections share.
            handshake_s: seconds from the connection to the end of its handshake.
            on_failure: called for each that fails or takes too long.
        """
        self.tls = tls
        self.factories = factories
        self.fallback = fallback
        self.timers = timers
        self.iteration = iteration
        self.handshake_s = handshake_s
        self.on_failure = on_failure
        self.connection_limiter = ConnectionLimiter()
        """How many connections each client has, those under way here included."""
        self.on_crowded = on_failure
        """Called for each that is one too many."""
        self.shaking: set[AcceptedTls] = set()
        """Connections whose handshake is under way; the others belong to their protocols."""

    def __call__(self) -> AcceptedTls:
        return AcceptedTls(self)

    def __len__(self) -> int:
        return len(self.shaking)

    def close(self) -> None:
        """End the handshakes under way."""
        for connection in tuple(self.shaking):
            connection.abort()


class AcceptedTls(TlsTransport):
    """One connection of a client."""

    __slots__ = ("_acceptor", "_address", "_hello", "_peer", "_reader", "_timer")

    def __init__(self, acceptor: TlsAcceptor) -> None:
        super().__init__(acceptor.iteration)
        self._acceptor = acceptor
        self._reader: HelloReader | None = HelloReader()
        """Takes the hello; None once that is complete."""
        self._hello = ClientHello()
        self._timer: Timer | None = None
        self._peer: object = None
        self._address: IpAddress | None = None

    @property
    def heeds_cuts(self) -> bool:
        """Requests say how long they are, so one that is cut is noticed anyhow."""
        return False

    @property
    def shakes_in_turn(self) -> bool:
        """Clients may begin any number of handshakes at once."""
        return True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client connected."""
        super().connection_made(transport)
        acceptor = self._acceptor
        acceptor.shaking.add(self)
        self._peer = transport.get_extra_info("peername")
        self._address = client_of(transport).address
        if not acceptor.connection_limiter.enter(self._address):
            acceptor.on_crowded()
            self.abort()
            return
        self._timer = acceptor.timers.after(acceptor.handshake_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._failure = TimeoutError("handshake took too long")
        self.abort()

    def greeted(self, data: bytes) -> None:
        """Read the hello, and choose by it."""
        reader = self._reader
        assert reader is not None
        try:
            hello = reader.take(data)
        except HelloError as error:
            self._refuse(reader, DECODE_ERROR, error)
            return
        if hello is None:
            return
        tls = self._acceptor.tls
        self._hello = hello
        if hello.protocols and not set(hello.protocols) & set(tls.protocols):
            # RFC 7301 3.2; the library would go on without a protocol.
            self._refuse(reader, NO_APPLICATION_PROTOCOL, HelloError("no protocol in common"))
            return
        self._reader = None
        context = tls.context(hello.server_name)
        self.start(self.make_object(context, server_side=True), bytes(reader.received))

    def _refuse(self, reader: HelloReader, description: int, error: HelloError) -> None:
        if self._raw is not None and reader.received.startswith(b"\x16"):
            self._raw.write(alert(description))
        self.give_up(error)

    def opened(self) -> asyncio.Protocol | None:
        """Give the connection to the protocol that was agreed on."""
        self._settle()
        acceptor = self._acceptor
        chosen = self._object.selected_alpn_protocol() if self._object is not None else None
        return acceptor.factories.get(chosen or "", acceptor.fallback)()

    def not_opened(self, error: Exception | None) -> None:
        """Count it. A client that just goes away, as port scanners and checks of load balancers
        do, is no failure."""
        self._settle()
        if self._failure is None:
            return
        self._acceptor.on_failure()
        text = describe(error) if isinstance(error, ssl.SSLError) else str(error)
        fields = {"client": self._peer, "server_name": self._hello.shown_name, "error": text}
        _log.debug("TLS handshake failed", extra=fields)

    def _settle(self) -> None:
        acceptor = self._acceptor
        if self in acceptor.shaking:
            acceptor.shaking.remove(self)
            # The protocol counts it anew.
            acceptor.connection_limiter.leave(self._address)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`identity_field`: header name and value that tell backends who the client is."""
        if name != "identity_field":
            return super().get_extra_info(name, default)
        header = self._acceptor.tls.options.subject_header
        certificate = super().get_extra_info("peercert") if header else None
        if not certificate:
            return default
        return header.encode(), format_subject(certificate["subject"])
