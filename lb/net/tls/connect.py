"""Connections to backends with TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Generic, TypeVar

from lb.domain.backend import Address
from lb.net.iteration import IterationBudget
from lb.net.tls.client import ClientTls
from lb.net.tls.contexts import TlsError, describe
from lb.net.tls.transport import TlsTransport

_ProtocolT = TypeVar("_ProtocolT")


class DialledTls(TlsTransport, Generic[_ProtocolT]):
    """One connection to a backend; `secured` tells how its handshake ended."""

    __slots__ = ("_address", "_factory", "_tls", "secured")

    def __init__(
        self,
        tls: ClientTls,
        address: Address,
        factory: Callable[[], _ProtocolT],
        loop: asyncio.AbstractEventLoop,
        iteration: IterationBudget,
    ) -> None:
        super().__init__(iteration)
        self._tls = tls
        self._address = address
        self._factory = factory
        self.secured: asyncio.Future[_ProtocolT] = loop.create_future()
        """The protocol above once it has its connection, or a TlsError."""

    @property
    def heeds_cuts(self) -> bool:
        """An answer may last until its connection ends."""
        return True

    @property
    def shakes_in_turn(self) -> bool:
        """Handshakes of clients must not make a probe, or an attempt, late."""
        return False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the plain connection stands."""
        super().connection_made(transport)
        tls = self._tls
        try:
            # Not one from before it connected: files may have changed, and a session belongs to
            # one context.
            secure = self.make_object(
                tls.context,
                server_hostname=tls.server_name(self._address),
                session=tls.session_for(self._address),
            )
        except (ssl.SSLError, ValueError) as error:
            self.give_up(error)
            return
        self.start(secure)

    def greeted(self, data: bytes) -> None:
        """A backend that speaks although we could not: nothing to do with it."""

    def opened(self) -> asyncio.Protocol | None:
        """Give the connection to its protocol if both sides mean the same one."""
        chosen = self._object.selected_alpn_protocol() if self._object is not None else None
        if not self._tls.has_agreed(chosen):
            self.give_up(TlsError(f"the backend does not offer {self._tls.protocol.alpn}"))
            return None
        if self.secured.done():
            self.abort()  # whoever asked has given up
            return None
        protocol = self._factory()
        self.secured.set_result(protocol)
        return protocol  # type: ignore[return-value]  # all our protocols get data

    def not_opened(self, error: Exception | None) -> None:
        """Tell whoever asked for the connection."""
        if self.secured.done():
            return
        if isinstance(error, ssl.SSLError):
            text = describe(error)
        else:
            text = str(error or "the backend closed the connection")
        self.secured.set_exception(TlsError(text))

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: gone. Its session may serve the next one: tickets come after the handshake."""
        tls, secure = self._tls, self._object
        is_good = self._is_open and self._failure is None
        if is_good and secure is not None and secure.context is tls.context:
            tls.keep_session(self._address, secure)
        super().connection_lost(exc)
