"""Settings of the listeners: addresses, TLS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from ipaddress import ip_address
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from lb.domain.backend import Address
from lb.domain.client import IpNetwork, TrustedProxies
from lb.settings.problems import Finding
from lb.settings.section import Section, one_needed
from lb.settings.units import Duration
from lb.settings.values import (
    RELAY_HEADERS,
    AddressAlone,
    Boolean,
    FileName,
    HeaderName,
    ListenAddress,
    Proxy,
    address_as_mapping,
    is_ip_address,
)

_LISTENERS: Final = ("http", "grpc", "https", "grpcs", "metrics", "admin")
_RELAYS: Final = _LISTENERS[:4]
_PAIRS: Final = (("http", "grpc"), ("https", "grpcs"))
"""Listeners that may be at one address."""


_ANY: Final = frozenset({"0.0.0.0", "::"})


def is_loopback(address: Address) -> bool:
    """Whether only this machine can reach an address."""
    if address.path or address.host == "localhost":
        return True
    return is_ip_address(address.host) and ip_address(address.host).is_loopback


def overlap(listener: Address, other: Address) -> bool:
    """Whether a listener would also take what is meant for the other address on this machine."""
    if listener.path or other.path:
        return listener.path == other.path
    if listener.port == 0 or listener.port != other.port:
        return False
    hosts = {listener.host, other.host}
    wildcard = bool(hosts & _ANY) and all(
        each.host in _ANY or is_loopback(each) for each in (listener, other)
    )
    return wildcard or len(hosts) == 1 or hosts == {"localhost", "127.0.0.1"}


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
    """`HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`. Port 0 takes a free port, which the start-up line
    and the log name. `0.0.0.0` and `[::]` accept on every interface.

    Set this when you add a listener; otherwise that listener is off."""


class CertificateSettings(Section):
    """A certificate and its key, both PEM. Replaced files are loaded within two seconds, for new
    connections."""

    certificate: FileName
    """File with the certificate, followed by its intermediate certificates.

    Set this when a listener has `tls`; otherwise the configuration is refused."""
    key: FileName
    """File with the private key, not encrypted; may be the same file as `certificate`.

    Set this when a listener has `tls`; otherwise the configuration is refused."""


class ListenerTlsSettings(Section):
    """TLS 1.2 and 1.3 for the connections of clients."""

    certificates: Annotated[tuple[CertificateSettings, ...], Field(min_length=1)]
    """Certificates of this listener. A client gets the one whose DNS names, wildcards included,
    match the name that it asks for (SNI), or else the first.

    Set this when a listener has `tls`; otherwise the configuration is refused."""
    client_ca: FileName | None = None
    """File with the certificate authorities that sign clients' certificates.

    Set this when clients must prove who they are by a certificate; otherwise they are not asked for
    one."""
    client_certificates: ClientCertificateMode = ClientCertificateMode.REQUIRED
    """With `client_ca`: `required` refuses connections without a certificate, `optional` accepts
    them. An invalid certificate is always refused.

    Set this when only some clients have certificates yet; otherwise all of them must have one."""
    subject_header: HeaderName | None = None
    """Header that tells backends the subject of a client's certificate, such as
    `CN=client,O=Example` (RFC 4514). The same header from clients is dropped on every listener.

    Set this when models or a proxy behind us need to know the client; otherwise backends are not
    told."""

    def broken_rules(self) -> Iterator[Finding]:
        """Clients that are told of have shown certificates."""
        if self.subject_header is None:
            return
        if self.client_ca is None:
            yield ("subject_header",), "needs client_ca"
        if self.subject_header.lower() in RELAY_HEADERS:
            yield ("subject_header",), "this header has another meaning"


class RelayListenerSettings(ListenerSettings):
    """A listener for clients' requests."""

    tls: ListenerTlsSettings | None = None
    """TLS for this listener. Two listeners at one address share it; either may hold it.

    Set this when clients reach us over a network that you do not trust; otherwise the listener is
    plain."""
    proxy_protocol: Boolean = False
    """Whether connections from `trusted_proxies` begin with a PROXY protocol header, version 1 or
    2, which tells the client's address. Those connections must then send it, before any TLS
    handshake; others must not. Two listeners at one address share it.

    Set this when a TCP load balancer in front of us sends PROXY headers; otherwise its address
    counts as the client's."""
    max_connection_age: Duration = 0.0
    """How long a client may keep a connection, plus or minus 10 % at random; 0 is no limit. Then
    the client is asked to reconnect, by GOAWAY in two steps (HTTP/2) or `Connection: close` in the
    next response (HTTP/1.1). Running requests go on. Two listeners at one address share it.

    Set this when clients stay on old replicas after you add new ones (5m is usual); otherwise a
    connection lasts until it is idle."""


Listener = Annotated[ListenerSettings, BeforeValidator(address_as_mapping), AddressAlone()]
RelayListener = Annotated[
    RelayListenerSettings, BeforeValidator(address_as_mapping), AddressAlone()
]


class ListenSettings(Section):
    """The listeners. Each is an address, or a mapping that holds `address`; one that is left out
    is off. `http` and `grpc` may share an address: one port then serves both; so may `https` and
    `grpcs`. At least one of these four is needed."""

    model_config = one_needed("http", "grpc", "https", "grpcs")

    http: RelayListener | None = None
    """HTTP/1.1 for clients; Triton's own port is 8000.

    Set this when clients use HTTP; otherwise there is no such listener."""
    grpc: RelayListener | None = None
    """gRPC over HTTP/2 for clients; Triton's own port is 8001.

    Set this when clients use gRPC; otherwise there is no such listener."""
    https: RelayListener | None = None
    """A second listener for HTTP/1.1, which needs `tls`.

    Set this when some clients use TLS and others the plain `http`; otherwise give `http` the
    `tls`."""
    grpcs: RelayListener | None = None
    """A second listener for gRPC, which needs `tls`.

    Set this when some clients use TLS and others the plain `grpc`; otherwise give `grpc` the
    `tls`."""
    metrics: Listener | None = None
    """Prometheus metrics, `/livez` and `/readyz`; Triton's own port is 8002.

    Set this when Prometheus, Kubernetes or another load balancer watches us; otherwise nothing is
    exposed."""
    admin: Listener | None = None
    """The admin API and `triton-lb status`, `drain` and `reload`; port 8003 by convention. Keep it
    on loopback.

    Set this when you want to inspect or drain backends while the process runs; otherwise only
    signals control it."""
    reuse_port: Boolean = False
    """Whether other processes may listen at the same addresses (SO_REUSEPORT); the kernel then
    divides new connections among them. All of them need this from their start: a reload or an
    upgrade does not change open sockets. Connections that wait at the socket of a process that ends
    are lost. `metrics` and `admin` are never shared.

    Set this when you run several processes on one machine at the same ports; otherwise a port that
    is taken stops the start."""
    half_close: HalfCloseMode = HalfCloseMode.ABORT
    """What happens to an HTTP/1.1 request whose client closes its side of the connection (a TCP
    FIN, or `close_notify` of TLS) before the response is complete. `abort` cancels the request, as
    Envoy, nginx and HAProxy 3.3 do. `serve` completes it.

    Set this when clients only close their sending side, as `printf ... | ncat` does; otherwise such
    clients count as gone."""
    trusted_proxies: tuple[Proxy, ...] = ()
    """Load balancers in front of us whose word about their clients is trusted: networks, addresses,
    or `unix` for every peer on a Unix socket. Their PROXY headers and `X-Forwarded-For` name the
    client for logs, rules and limits: the last address that is not one of theirs.

    Set this when an ingress or load balancer is in front of us; otherwise its address counts as the
    client's."""

    @property
    def addresses(self) -> dict[str, Address]:
        """Where we listen, by the name of the listener."""
        given = ((name, getattr(self, name)) for name in _LISTENERS)
        return {name: each.address for name, each in given if each is not None}

    @property
    def subject_headers(self) -> frozenset[str]:
        """Headers that tell backends the subject of a client's certificate."""
        listeners = (self.http, self.grpc, self.https, self.grpcs)
        return frozenset(
            each.tls.subject_header
            for each in listeners
            if each is not None and each.tls is not None and each.tls.subject_header is not None
        )

    def broken_rules(self) -> Iterator[Finding]:
        """Listeners share addresses in pairs only, and have what they need."""
        found = self.addresses
        if not found.keys() & set(_RELAYS):
            yield (), "at least one of http and grpc is needed"
        for index, name in enumerate(found):
            for earlier in list(found)[:index]:
                shared = (earlier, name) in _PAIRS and found[name] == found[earlier]
                if not shared and overlap(found[name], found[earlier]):
                    yield (name,), f"{found[name]} is already taken by listen.{earlier}"
        yield from self._broken_tls_rules(found)

    def _broken_tls_rules(self, found: Mapping[str, Address]) -> Iterator[Finding]:
        listeners: dict[str, RelayListenerSettings | None] = {
            name: getattr(self, name) for name in _RELAYS
        }
        tls = {name: each.tls if each else None for name, each in listeners.items()}
        for http, grpc in _PAIRS:
            if http in found and found[http] == found.get(grpc):
                if tls[http] and tls[grpc] and tls[http] != tls[grpc]:
                    yield (grpc, "tls"), f"differs from listen.{http}.tls at the same address"
                tls[http] = tls[grpc] = tls[http] or tls[grpc]
        for name, listener in listeners.items():
            if listener is None:
                continue
            # A listener that cannot be read may be the one that holds it for both.
            if name in _PAIRS[1] and tls[name] is None and self.unreadable.isdisjoint(_PAIRS[1]):
                yield (name,), "needs tls"
            if listener.proxy_protocol and not self.trusted_proxies:
                yield (name, "proxy_protocol"), "needs listen.trusted_proxies"

    @property
    def proxies(self) -> TrustedProxies:
        """`trusted_proxies` as a value of the domain."""
        networks = tuple(entry for entry in self.trusted_proxies if isinstance(entry, IpNetwork))
        return TrustedProxies(networks, unix=len(networks) < len(self.trusted_proxies))
