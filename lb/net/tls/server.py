"""The TLS of one listener: certificates by server name, client certificates, reload.

Every certificate has a context of its own, and a context its own keys for session tickets: a
session that began under one certificate or one set of client authorities is unknown to the
others, so resuming it can never get round what they ask for.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from lb.net.files import FilePrint, print_of
from lb.net.tls.contexts import TlsError, load_pair, make_server_context, read_leaf, trust


class ClientCertificates(Enum):
    """Whether clients show a certificate."""

    OFF = ssl.CERT_NONE
    OPTIONAL = ssl.CERT_OPTIONAL
    """A client may have none; a bad one is refused."""
    REQUIRED = ssl.CERT_REQUIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTlsOptions:
    """What the settings say about one listener's TLS. All files are PEM."""

    pairs: tuple[tuple[str, str], ...]
    """Files of certificates, each with its chain, and of their keys; the first is the default."""
    client_ca: str = ""
    client_certificates: ClientCertificates = ClientCertificates.OFF
    subject_header: str = ""
    """Tells backends whose certificate a client showed; empty: nothing does."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """One state of the files, replaced as a whole."""

    default: ssl.SSLContext
    exact: dict[str, ssl.SSLContext]
    wildcard: dict[str, ssl.SSLContext]
    """By what follows the star's label."""
    expiries: tuple[tuple[str, int], ...]
    prints: tuple[FilePrint, ...]


class ServerTls:
    """Contexts for the connections of clients."""

    def __init__(self, name: str, options: ServerTlsOptions, protocols: Sequence[str]) -> None:
        """Load everything.

        Args:
            name: of the listener, for the log.
            options: of the listener.
            protocols: spoken behind it, our favourite first.

        Raises:
            TlsError: a file cannot be used.
        """
        self.name = name
        self.options = options
        self.protocols = tuple(protocol.encode() for protocol in protocols)
        self.alpn = tuple(protocols)
        self._loaded = self._read()

    @property
    def files(self) -> tuple[str, ...]:
        """Everything that is read, without repetitions."""
        ca = (self.options.client_ca,) if self.options.client_ca else ()
        return tuple(dict.fromkeys([*(f for pair in self.options.pairs for f in pair), *ca]))

    @property
    def expiries(self) -> tuple[tuple[str, int], ...]:
        """Files of certificates in use, and the Unix times at which they end."""
        return self._loaded.expiries

    @property
    def prints(self) -> tuple[FilePrint, ...]:
        """State of the files when they were last loaded."""
        return self._loaded.prints

    @property
    def is_loaded(self) -> bool:
        """Always: a listener does not begin without its certificates."""
        return True

    def failed(self, error: TlsError) -> None:
        """Never called: it was loaded before."""

    def load(self) -> Callable[[], None]:
        """Read the files again, and return what puts them in force. Open connections are left
        alone.

        Raises:
            TlsError: a file cannot be used.
        """
        loaded = self._read()

        def apply() -> None:
            self._loaded = loaded

        return apply

    def context(self, server_name: str) -> ssl.SSLContext:
        """The context for a server name in lower case: of the certificate with that very name,
        of one with a wildcard for its first label (RFC 9525 6.3), or the default."""
        loaded = self._loaded
        found = loaded.exact.get(server_name)
        if found is None:
            found = loaded.wildcard.get(server_name.partition(".")[2])
        return found or loaded.default

    def _read(self) -> _Loaded:
        prints = tuple(map(print_of, self.files))
        contexts = []
        exact: dict[str, ssl.SSLContext] = {}
        wildcard: dict[str, ssl.SSLContext] = {}
        expiries = []
        for certificate, key in self.options.pairs:
            context = self._make(certificate, key)
            leaf = read_leaf(certificate)
            contexts.append(context)
            expiries.append((certificate, leaf.not_after))
            for name in leaf.names:
                if name.startswith("*."):
                    wildcard.setdefault(name[2:], context)
                else:
                    exact.setdefault(name, context)
        return _Loaded(contexts[0], exact, wildcard, tuple(expiries), prints)

    def _make(self, certificate: str, key: str) -> ssl.SSLContext:
        context = make_server_context(self.alpn)
        load_pair(context, certificate, key)
        if self.options.client_ca:
            trust(context, self.options.client_ca)
            context.verify_mode = ssl.VerifyMode(self.options.client_certificates.value)
        return context
