"""The TLS toward backends: whom we trust, who we are, and sessions to resume."""

from __future__ import annotations

import ssl
from collections.abc import Collection, Iterator

from lb.domain.backend import Address, AppProtocol, BackendTls
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.net.tls.contexts import (
    TlsError,
    load_pair,
    make_client_context,
    read_leaf,
    trust,
)


class ClientTls:
    """One backend's TLS for one protocol. Backends with equal settings share it."""

    def __init__(self, settings: BackendTls, protocol: AppProtocol) -> None:
        """Load everything.

        Raises:
            TlsError: a file cannot be used.
        """
        self.settings = settings
        self.name = f"backends ({protocol.label})"
        self.protocol = protocol
        self.sessions: dict[tuple[Address, str], ssl.SSLSession] = {}
        """The newest session by address and the name that was verified: a resumed connection
        is not verified again, so a session must never serve for another name."""
        self.context, self.expiries = self._read()

    @property
    def files(self) -> tuple[str, ...]:
        """Everything that is read."""
        settings = self.settings
        named = (settings.ca, settings.certificate, settings.key)
        return tuple(dict.fromkeys(file for file in named if file))

    def load(self) -> None:
        """Read the files again; connections that stand are left alone.

        Raises:
            TlsError: a file cannot be used; everything stays as it was.
        """
        self.context, self.expiries = self._read()
        self.sessions = {}

    def server_name(self, address: Address) -> str:
        """The name that the backend's certificate must have."""
        return self.settings.server_name or address.host

    def has_agreed(self, protocol: str | None) -> bool:
        """Whether the protocol that was negotiated will do. gRPC insists on `h2`, as all its
        implementations do; an HTTP/1.1 server may say nothing."""
        wanted = self.protocol.alpn
        return protocol == wanted or (protocol is None and self.protocol is AppProtocol.HTTP)

    def _read(self) -> tuple[ssl.SSLContext, tuple[tuple[str, int], ...]]:
        settings = self.settings
        context = make_client_context([self.protocol.alpn])
        if settings.ca:
            trust(context, settings.ca)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if not settings.certificate:
            return context, ()
        load_pair(context, settings.certificate, settings.key)
        return context, ((settings.certificate, read_leaf(settings.certificate).not_after),)


class ClientTlsBook:
    """All TLS toward backends, by settings and protocol."""

    def __init__(self) -> None:
        self._known: dict[tuple[BackendTls, AppProtocol], ClientTls] = {}

    def __iter__(self) -> Iterator[ClientTls]:
        return iter(tuple(self._known.values()))

    def copy(self) -> ClientTlsBook:
        """A book to load more into, which `replace` takes over."""
        other = ClientTlsBook()
        other._known = dict(self._known)
        return other

    def replace(self, other: ClientTlsBook, used: Collection[BackendTls]) -> None:
        """Know what `other` knows, as far as it is used."""
        self._known = {key: tls for key, tls in other._known.items() if key[0] in used}

    def load(self, settings: BackendTls, protocol: AppProtocol) -> ClientTls:
        """The TLS of a port, loaded unless it is known.

        Raises:
            TlsError: a file cannot be used.
        """
        found = self._known.get((settings, protocol))
        if found is None:
            found = self._known[settings, protocol] = ClientTls(settings, protocol)
        return found

    def find(self, settings: BackendTls | None, protocol: AppProtocol) -> ClientTls | None:
        """The TLS to dial a port with; None where it has none.

        Raises:
            UpstreamError: CONNECT_FAILED, when it was not loaded before and cannot be.
        """
        if settings is None:
            return None
        try:
            return self.load(settings, protocol)
        except TlsError as error:
            raise UpstreamError(Outcome.CONNECT_FAILED, str(error)) from error
