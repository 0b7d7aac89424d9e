"""Settings of the listeners: addresses, TLS."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field

from lb.domain.client import IpNetwork, TrustedProxies
from lb.settings.section import Section
from lb.settings.units import Duration
from lb.settings.values import (
    FileName,
    HeaderName,
    ListenAddress,
    Proxy,
    address_as_mapping,
)


class ClientCertificateMode(StrEnum):
    """Whether clients must show a certificate."""

    REQUIRED = "required"
    OPTIONAL = "optional"


class HalfCloseMode(StrEnum):
    """What an HTTP/1.1 client wants that closes its side of the connection after its request."""

    ABORT = "abort"
    SERVE = "serve"


class ListenerSettings(Section):
    """One address to accept connections on."""

    address: ListenAddress
    """`HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`. Port 0 takes a free port, which the start-up
    line and the log name. `0.0.0.0` and `[::]` accept on every interface."""


class CertificateSettings(Section):
    """A certificate and its key, both PEM. Replaced files are loaded within two seconds, for new
    connections."""

    certificate: FileName
    """File with the certificate, then those that lead to its authority."""
    key: FileName
    """File with its key, not encrypted; may be the same file."""


class ListenerTlsSettings(Section):
    """TLS 1.2 and 1.3 for the connections of clients."""

    certificates: Annotated[tuple[CertificateSettings, ...], Field(min_length=1)]
    """Clients get the one whose DNS names, wildcards included, hold the name that they ask for,
    or else the first."""
    client_ca: FileName | None = None
    """File with the authorities of clients' certificates; given, clients are asked for one."""
    client_certificates: ClientCertificateMode = ClientCertificateMode.REQUIRED
    """With `client_ca`: `required` refuses connections without a certificate, `optional` lets
    them in; a bad one is always refused."""
    subject_header: HeaderName | None = None
    """Header that tells backends the subject of a client's certificate, such as
    `CN=client,O=Example` (RFC 4514). What clients send under that name is dropped, on every
    listener."""


class RelayListenerSettings(ListenerSettings):
    """A listener for clients' requests."""

    tls: ListenerTlsSettings | None = None
    """TLS; left out, the listener is plain. Two listeners at one address have it in common, given
    at either."""
    proxy_protocol: bool = False
    """Whether connections of `trusted_proxies` begin with a PROXY header, version 1 or 2, that
    tells the client's address. They must then; with TLS it comes before the handshake. What others
    send is not looked at for one. Two listeners at one address have it in common."""
    max_connection_age: Duration = 0.0
    """How long a client may keep a connection, give or take a tenth by chance; 0 is no limit. Then
    it is asked to connect anew and what runs goes on: with a GOAWAY in two steps (HTTP/2), with
    `Connection: close` in the next answer (HTTP/1.1). So clients spread over load balancers that
    were added; 5m does for that. Two listeners at one address have it in common."""


Listener = Annotated[ListenerSettings, BeforeValidator(address_as_mapping)]
RelayListener = Annotated[RelayListenerSettings, BeforeValidator(address_as_mapping)]


class ListenSettings(Section):
    """The listeners. Each is an address, or a mapping that holds `address`; one that is left out
    is off. `http` and `grpc` may be the same address: one port then serves both; so may `https`
    and `grpcs`."""

    http: RelayListener | None = None
    """HTTP/1.1 for clients; Triton's own port is 8000."""
    grpc: RelayListener | None = None
    """gRPC over HTTP/2 for clients; Triton's own port is 8001."""
    https: RelayListener | None = None
    """A second listener for HTTP/1.1, which needs `tls`: for TLS beside a plain `http`."""
    grpcs: RelayListener | None = None
    """A second listener for gRPC, which needs `tls`: for TLS beside a plain `grpc`."""
    metrics: Listener | None = None
    """Prometheus metrics, `/livez` and `/readyz`; Triton's own port is 8002."""
    admin: Listener | None = None
    """The admin API, with which backends are drained: keep it on loopback. Port 8003 by
    convention."""
    reuse_port: bool = False
    """Whether other processes may listen at the same addresses for requests (SO_REUSEPORT): for
    several processes on one machine, among which the kernel divides new connections. All of them
    must have it from when they open their sockets, which a reload and an upgrade leave as they
    are. What waits at the socket of one that ends is lost, so it is no way to restart;
    and a port that is taken by mistake is not noticed. `metrics` and `admin` stay each
    process's own."""
    half_close: HalfCloseMode = HalfCloseMode.ABORT
    """What happens to a request over HTTP/1.1 whose client closes its side of the connection before
    the answer is complete (a TCP FIN, or `close_notify` of TLS). `abort` cancels the request, as
    Envoy, nginx and HAProxy 3.3 do: such a client has nearly always timed out. `serve` completes
    it, for clients that only close their sending side, such as `printf ... | ncat`."""
    trusted_proxies: tuple[Proxy, ...] = ()
    """Load balancers in front of this one, whose word about their clients is taken: PROXY headers
    where `proxy_protocol` says so, and `X-Forwarded-For`, of which the last address that is not
    one of theirs is the client for logs, rules and limits. Networks or addresses, and `unix` for
    whoever connects to a Unix socket."""

    @property
    def proxies(self) -> TrustedProxies:
        """`trusted_proxies` as a value of the domain."""
        networks = tuple(entry for entry in self.trusted_proxies if isinstance(entry, IpNetwork))
        return TrustedProxies(networks, unix=len(networks) < len(self.trusted_proxies))
