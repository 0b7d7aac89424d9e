"""TLS for tests: a world of certificates, listeners over relays, and clients that look closely."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from lb.net.iteration import IterationBudget
from lb.net.timers import TimerWheel
from lb.net.tls.accept import TlsAcceptor
from lb.net.tls.server import ClientCertificates, ServerTls, ServerTlsOptions
from lb.net.tls.watch import FileWatch
from tests.fakes.certificates import CLIENT, Authority

Factory = Callable[[], asyncio.Protocol]


class World:
    """An authority with some certificates in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        self.ca = self.authority.write(folder)
        self.server = self.pair("server", "localhost", "127.0.0.1")

    def pair(self, name: str, *hosts: str) -> tuple[str, str]:
        """Files of a server's certificate and key."""
        return self.authority.issue(*hosts).write(self.folder, name)

    def client_pair(self, name: str = "client") -> tuple[str, str]:
        """Files of a client's certificate and key."""
        return self.authority.issue(usage=CLIENT, subject=name).write(self.folder, name)

    def options(
        self,
        *more: tuple[str, str],
        clients: ClientCertificates = ClientCertificates.OFF,
        subject_header: str = "",
    ) -> ServerTlsOptions:
        """Of a listener with the certificate for localhost, and `more`."""
        return ServerTlsOptions(
            pairs=(self.server, *more),
            client_ca="" if clients is ClientCertificates.OFF else self.ca,
            client_certificates=clients,
            subject_header=subject_header,
        )

    def server_context(self, protocol: str = "http/1.1") -> ssl.SSLContext:
        """For a backend in the test, by the standard library."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.server)
        context.set_alpn_protocols([protocol])
        return context

    def client_context(
        self, *protocols: str, pair: tuple[str, str] | None = None
    ) -> ssl.SSLContext:
        """For a client that trusts the authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.ca)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        if pair is not None:
            context.load_cert_chain(*pair)
        return context


def poll(watch: FileWatch) -> None:
    """Have everything that is watched look at its files, and put the news in force."""
    for watched in watch:
        apply = watched.poll()
        if apply is not None:
            apply()


class Listening(NamedTuple):
    """A running listener with TLS."""

    port: int
    tls: ServerTls
    acceptor: TlsAcceptor
    failures: list[None]


@asynccontextmanager
async def tls_listener(
    options: ServerTlsOptions,
    factories: dict[str, Factory],
    *,
    handshake_s: float = 10.0,
    iteration: IterationBudget | None = None,
) -> AsyncIterator[Listening]:
    """Accept on a free port; the first of `factories` serves clients without ALPN."""
    loop = asyncio.get_running_loop()
    timers = TimerWheel(loop)
    tls = ServerTls("test", options, tuple(factories))
    failures: list[None] = []
    acceptor = TlsAcceptor(
        tls,
        factories,
        next(iter(factories.values())),
        timers,
        iteration or IterationBudget(loop),
        handshake_s,
        lambda: failures.append(None),
    )
    server = await loop.create_server(acceptor, "127.0.0.1", 0)
    try:
        yield Listening(server.sockets[0].getsockname()[1], tls, acceptor, failures)
    finally:
        server.close()
        acceptor.close()
        timers.close()


class Shaken(NamedTuple):
    """What a client saw of a handshake, and of what followed."""

    version: str | None
    cipher: str
    protocol: str | None
    names: tuple[str, ...]
    reused: bool
    session: ssl.SSLSession | None
    answer: bytes


def shake(
    port: int,
    context: ssl.SSLContext,
    name: str = "localhost",
    *,
    send: bytes = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    session: ssl.SSLSession | None = None,
) -> Shaken:
    """Connect, send, and read to the end. Blocks: for a thread.

    Raises:
        ssl.SSLError, OSError: either side refused, or the connection was cut.
    """
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(
            plain, server_hostname=name, session=session, suppress_ragged_eofs=False
        ) as secure,
    ):
        if send:
            secure.sendall(send)
        parts = []
        while part := secure.recv(65536):
            parts.append(part)
        certificate = secure.getpeercert() or {}
        cipher = secure.cipher()
        return Shaken(
            secure.version(),
            cipher[0] if cipher else "",
            secure.selected_alpn_protocol(),
            tuple(str(value) for _, value in certificate.get("subjectAltName", ())),
            bool(secure.session_reused),
            secure.session,
            b"".join(parts),
        )
