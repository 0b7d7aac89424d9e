"""The TLS toward backends: whom we trust, who we are, and sessions to resume."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection, Container, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Final

from lb.domain.backend import Address, AppProtocol, BackendTls
from lb.net.files import FilePrint, print_of
from lb.net.tls.contexts import (
    TlsError,
    load_pair,
    make_client_context,
    read_leaf,
    trust,
)

_PAUSE_S: Final = 300.0
"""After a session was kept, none is for so long; doubled each time that one was not resumed.
CPython loses 6 KB whenever a session is read (its issue 116810: 3.11, and 3.12 before 3.12.8), and
probes make a connection a second."""

_LONGEST_PAUSE_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class _Loaded:
    """One state of the files, replaced as a whole."""

    context: ssl.SSLContext
    expiries: tuple[tuple[str, int], ...]
    prints: tuple[FilePrint, ...]


class ClientTls:
    """One backend's TLS for one protocol. Backends with equal settings share it."""

    def __init__(self, settings: BackendTls, protocol: AppProtocol, *, later: bool = False) -> None:
        """
        Args:
            settings: of the backend.
            protocol: spoken over it.
            later: read no file now; `load` follows, and connections wait for that.

        Raises:
            TlsError: a file cannot be used.
        """
        self.settings = settings
        self.name = f"backends ({protocol.label})"
        self.protocol = protocol
        self._sessions: dict[tuple[Address, str], ssl.SSLSession] = {}
        """By address and the name that was verified: a resumed connection is not verified again, so
        a session must never serve for another name."""
        self._pauses: dict[tuple[Address, str], tuple[float, float]] = {}
        """When the next one may be kept, in monotonic seconds, and the pause after that."""
        self.settled = asyncio.Event()
        """It is loaded, or cannot be."""
        self.problem: TlsError | None = None
        """Why it cannot be loaded."""
        self._loaded: _Loaded | None = None
        if not later:
            self.load()()

    @property
    def is_loaded(self) -> bool:
        """Whether there is a context to connect with."""
        return self._loaded is not None

    @property
    def context(self) -> ssl.SSLContext:
        """How to connect.

        Raises:
            TlsError: it is not loaded.
        """
        if self._loaded is None:
            raise self.problem or TlsError("certificates have not been read yet")
        return self._loaded.context

    @property
    def expiries(self) -> tuple[tuple[str, int], ...]:
        """Files of certificates in use, and the Unix times at which they end."""
        return () if self._loaded is None else self._loaded.expiries

    @property
    def prints(self) -> tuple[FilePrint, ...]:
        """State of the files when they were last loaded; empty before that."""
        return () if self._loaded is None else self._loaded.prints

    @property
    def files(self) -> tuple[str, ...]:
        """Everything that is read."""
        settings = self.settings
        named = (settings.ca, settings.certificate, settings.key)
        return tuple(dict.fromkeys(file for file in named if file))

    def load(self) -> Callable[[], None]:
        """Read the files, and return what puts them in force. Open connections are left alone.

        Raises:
            TlsError: a file cannot be used.
        """
        loaded = self._read()

        def apply() -> None:
            self._loaded, self.problem = loaded, None
            self._sessions, self._pauses = {}, {}
            self.settled.set()

        return apply

    def failed(self, error: TlsError) -> None:
        """A file cannot be used, and there is no context from before."""
        self.problem = error
        self.settled.set()

    def session_for(self, address: Address) -> ssl.SSLSession | None:
        """Return a session to resume with an address, if there is one."""
        return self._sessions.get((address, self.server_name(address)))

    def keep_session(self, address: Address, connection: ssl.SSLObject) -> None:
        """Keep the session of a connection that ends, for the next ones with this address. While
        these resume the one that is kept, it stays."""
        key = (address, self.server_name(address))
        now = monotonic()
        due, pause_s = self._pauses.get(key, (now, _PAUSE_S))
        if connection.session_reused:
            self._pauses[key] = due, _PAUSE_S
        elif due <= now and (session := connection.session) is not None:
            self._sessions[key] = session
            self._pauses[key] = now + pause_s, min(2 * pause_s, _LONGEST_PAUSE_S)

    def keep_sessions(self, addresses: Container[Address]) -> None:
        """Forget the sessions with all other addresses: nobody dials them any more."""
        self._sessions = {key: each for key, each in self._sessions.items() if key[0] in addresses}
        self._pauses = {key: each for key, each in self._pauses.items() if key[0] in addresses}

    def server_name(self, address: Address) -> str:
        """The name that the backend's certificate must have."""
        return self.settings.server_name or address.host

    def has_agreed(self, protocol: str | None) -> bool:
        """Whether the protocol that was negotiated will do. gRPC insists on `h2`, as all its
        implementations do; an HTTP/1.1 server may say nothing."""
        wanted = self.protocol.alpn
        return protocol == wanted or (protocol is None and self.protocol is AppProtocol.HTTP)

    def _read(self) -> _Loaded:
        settings = self.settings
        prints = tuple(map(print_of, self.files))
        context = make_client_context([self.protocol.alpn])
        if settings.ca:
            trust(context, settings.ca)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if not settings.certificate:
            return _Loaded(context, (), prints)
        load_pair(context, settings.certificate, settings.key)
        expiry = (settings.certificate, read_leaf(settings.certificate).not_after)
        return _Loaded(context, (expiry,), prints)


def _load_now(tls: ClientTls) -> None:
    try:
        tls.load()()
    except TlsError as error:
        tls.failed(error)


class ClientTlsBook:
    """All TLS toward backends, by settings and protocol."""

    def __init__(self) -> None:
        self._known: dict[tuple[BackendTls, AppProtocol], ClientTls] = {}
        self.load_soon: Callable[[ClientTls], None] = _load_now
        """Has a `ClientTls` loaded that was not needed before. The process does that in a thread,
        since the event loop must not wait for files."""

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
        """The TLS of a port, loaded at once unless it is. May wait for files.

        Raises:
            TlsError: a file cannot be used.
        """
        found = self._known.get((settings, protocol))
        if found is None or not found.is_loaded:
            found = self._known[settings, protocol] = ClientTls(settings, protocol)
        return found

    def find(self, settings: BackendTls | None, protocol: AppProtocol) -> ClientTls | None:
        """The TLS to dial a port with, loaded or soon to be; None where it has none."""
        if settings is None:
            return None
        found = self._known.get((settings, protocol))
        if found is None:
            found = self._known[settings, protocol] = ClientTls(settings, protocol, later=True)
            self.load_soon(found)
        return found
