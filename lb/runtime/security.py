"""TLS as the settings ask for it: of the listeners, toward the backends, and its watch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from lb.domain.backend import AppProtocol, BackendSpec
from lb.net.file_thread import FileThread
from lb.net.tls.client import ClientTls, ClientTlsBook
from lb.net.tls.server import ClientCertificates, ServerTls, ServerTlsOptions
from lb.net.tls.watch import FileWatch, Watched
from lb.runtime.sockets import ListeningSocket, endpoints
from lb.settings.listening import ClientCertificateMode, ListenerTlsSettings
from lb.settings.model import Settings

_MODES: Final = {
    ClientCertificateMode.REQUIRED: ClientCertificates.REQUIRED,
    ClientCertificateMode.OPTIONAL: ClientCertificates.OPTIONAL,
}


def poll_now(watched: Watched) -> None:
    """Read changed files at once, before there is a thread for that."""
    apply = watched.poll()
    if apply is not None:
        apply()


@dataclass(slots=True)
class Security:
    """All TLS of a process."""

    servers: dict[str, ServerTls]
    """By name of the endpoint; plain ones are missing."""
    clients: ClientTlsBook
    watch: FileWatch
    look_soon: Callable[[Watched], None] = poll_now
    """Has files read that are needed from now on: in a thread, once the process has one."""

    def __post_init__(self) -> None:
        self.clients.load_soon = self._load_soon

    def use(self, files: FileThread) -> None:
        """Read files in a thread from now on."""
        self.look_soon = files.follow

    def replace(self, other: Security) -> None:
        """Take over what `make_security` made for other settings; `follow` then forgets what no
        backend needs any more."""
        self.servers = other.servers
        self.clients.replace(other.clients, {each.settings for each in other.clients})
        self._watch_all()

    def follow(self, specs: Collection[BackendSpec]) -> None:
        """Load and watch what these backends need, wherever they come from; forget all else.

        Connections wait until it is loaded, and what cannot be loaded now is tried again.
        """
        used = {spec.tls for spec in specs if spec.tls is not None}
        self.clients.replace(self.clients, used)
        for settings in used:
            for protocol in AppProtocol:
                self.clients.find(settings, protocol)
        addresses = {at for spec in specs for at in (spec.http, spec.grpc, spec.metrics) if at}
        for tls in self.clients:
            tls.keep_sessions(addresses)
        self._watch_all()

    def _load_soon(self, tls: ClientTls) -> None:
        self.look_soon(self.watch.add(tls))

    def _watch_all(self) -> None:
        self.watch.replace([*self.servers.values(), *self.clients])


def make_security(settings: Settings, before: Security | None = None) -> Security:
    """Load all certificates, keys and authorities.

    Args:
        settings: say which.
        before: what is loaded already and used again where the settings ask for the same.

    Raises:
        TlsError: a file cannot be used.
    """
    known = {} if before is None else before.servers
    servers = {
        endpoint.name: _server(endpoint, endpoint.tls, known.get(endpoint.name))
        for endpoint in endpoints(settings)
        if endpoint.tls is not None
    }
    clients = ClientTlsBook() if before is None else before.clients.copy()
    for spec in settings.specs():
        _load(clients, spec)
    watch = FileWatch()
    watch.replace([*servers.values(), *clients])
    return Security(servers, clients, watch)


def _server(
    endpoint: ListeningSocket, tls: ListenerTlsSettings, known: ServerTls | None
) -> ServerTls:
    options, protocols = _options(tls), _protocols(endpoint)
    if known is not None and (known.options, known.alpn) == (options, protocols):
        return known
    return ServerTls(endpoint.name, options, protocols)


def _load(clients: ClientTlsBook, spec: BackendSpec) -> None:
    """Load both protocols: a probe may use the other one than its port."""
    if spec.tls is not None:
        for protocol in AppProtocol:
            clients.load(spec.tls, protocol)


def _options(tls: ListenerTlsSettings) -> ServerTlsOptions:
    mode = _MODES[tls.client_certificates] if tls.client_ca else ClientCertificates.OFF
    return ServerTlsOptions(
        pairs=tuple((pair.certificate, pair.key) for pair in tls.certificates),
        client_ca=tls.client_ca or "",
        client_certificates=mode,
        subject_header=tls.subject_header or "",
    )


def _protocols(endpoint: ListeningSocket) -> tuple[str, ...]:
    """HTTP/1.1 comes first: curl and browsers can speak both, but only gRPC is spoken over `h2`
    here, and gRPC clients offer nothing else."""
    return tuple(protocol.alpn for protocol in endpoint.protocols)
