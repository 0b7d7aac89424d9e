"""Settings of where backends come from beside the list in the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lb.domain.client import ip_of
from lb.settings.backends import BackendSettings
from lb.settings.kubernetes import FOUND, KubernetesSettings
from lb.settings.problems import Finding, show
from lb.settings.section import Section, one_needed
from lb.settings.units import Duration, PositiveDuration
from lb.settings.values import (
    AddressFamily,
    DnsName,
    FileName,
    PortNumber,
    PositiveCount,
    TargetAddress,
)

_SERVICES: Final = ("http_service", "grpc_service", "metrics_service")


class DnsSettings(Section):
    """Backends found by DNS: every address of `host`, or every target of SRV records (RFC 2782).
    A name is looked up again when its time to live is over. Without an answer, or with an empty
    one, the last good answer stays in force. An answer has less than 64 KiB: 4,000 IPv4 addresses.
    No more than twice `max_backends` of them become backends."""

    model_config = one_needed("http_port", "grpc_port", "http_service", "grpc_service")

    host: DnsName | None = None
    """Name whose addresses are backends, one each. `/etc/hosts` is not read; for one backend behind
    a host name use `backends`.

    Set this when a name resolves to every Triton, as a headless service does; otherwise SRV records
    are needed."""
    http_port: PortNumber | None = None
    """HTTP port of each address of `host`.

    Set this when clients use HTTP; otherwise these backends get no HTTP requests."""
    grpc_port: PortNumber | None = None
    """gRPC port of each address of `host`.

    Set this when clients use gRPC; otherwise these backends get no gRPC calls."""
    metrics_port: PortNumber | None = None
    """Metrics port of each address of `host`.

    Set this when you want the backends' metrics among ours; otherwise they are not shown."""
    family: AddressFamily = AddressFamily.AUTO
    """Which addresses of `host` to use: `ipv4`, `ipv6`, or `auto`, which is IPv6 only if there is
    no IPv4. Servers with both would count twice.

    Set this when backends listen on IPv6 but also have IPv4 addresses; otherwise IPv4 is
    preferred."""
    http_service: DnsName | None = None
    """Name of SRV records for HTTP ports, such as `_http._tcp.triton.example`, instead of `host`.
    Only targets of the lowest priority are used. Ports of one target in several services belong to
    one backend.

    Set this when your DNS (Consul, for example) publishes ports in SRV records; otherwise use
    `host`."""
    grpc_service: DnsName | None = None
    """Name of SRV records for gRPC ports.

    Set this when your DNS publishes gRPC ports in SRV records; otherwise these backends get no gRPC
    calls."""
    metrics_service: DnsName | None = None
    """Name of SRV records for metrics ports.

    Set this when your DNS publishes metrics ports in SRV records; otherwise their metrics are not
    shown."""
    servers: tuple[TargetAddress, ...] = ()
    """DNS servers to ask, as `IP:53`.

    Set this when the name is known to other DNS servers than the system's; otherwise those of
    `/etc/resolv.conf` are asked."""
    refresh_min: PositiveDuration = 1.0
    """Shortest time between two look-ups: a shorter time to live is raised to it.

    Set this when records with a time to live of 0 cost too many queries; otherwise a name is asked
    for once a second at most."""
    refresh_max: PositiveDuration = 30.0
    """Longest time between two look-ups: a longer time to live is lowered to it.

    Set this when new backends are noticed too late because records live long; otherwise they are
    found within 30 seconds."""
    backend: BackendSettings = BackendSettings()
    """Common settings of the backends found: an entry like those of `backends`, without name and
    addresses. With `tls` but no `server_name`, certificates must hold the name of `host`, or the
    target of the SRV records. Weights of SRV records multiply `weight`.

    Set this when these backends need TLS, headers, limits or another `kind`; otherwise the defaults
    of `backends` hold."""

    def broken_rules(self) -> Iterator[Finding]:
        """Either `host` with ports or services; what DNS finds is not given."""
        services = [key for key in _SERVICES if getattr(self, key) is not None]
        if self.host is not None:
            for key in services:
                yield (key,), "there is a host already: give its port instead"
            if self.http_port is None and self.grpc_port is None:
                yield (), "at least one of http_port and grpc_port is needed"
        elif self.http_service is None and self.grpc_service is None:
            yield (), "host, http_service or grpc_service is needed"
        else:
            for key in ("http_port", "grpc_port", "metrics_port", "family"):
                if key in self.model_fields_set:
                    yield (key,), "only with host"
        for key in FOUND & self.backend.model_fields_set:
            yield ("backend", key), "is found by DNS and cannot be given"
        for index, server in enumerate(self.servers):
            if ip_of(server.host) is None:
                message = "expected the IP address of a DNS server and its port, got "
                yield ("servers", index), message + show(str(server))
        if self.refresh_min > self.refresh_max:
            yield ("refresh_max",), "is less than refresh_min"

    @property
    def asked_for(self) -> str | None:
        """The name that is looked up first."""
        return self.host or self.http_service or self.grpc_service

    @property
    def name(self) -> str:
        """What it is called in logs, metrics and the admin API."""
        return f"dns:{self.asked_for}"


class DiscoverySettings(Section):
    """Sources of backends beside the list `backends`, and the end of removed backends. All sources
    are followed while the process runs. A new backend gets requests once its probes succeed; a
    removed one gets no new requests and finishes the old ones. If several sources use one name,
    the first wins: `backends`, then `dns`, `kubernetes`, `files`, then the admin API."""

    files: tuple[FileName, ...] = ()
    """Files with backends, in YAML or JSON: a list like `backends`, or a mapping with that key.
    They are checked every second. A file with errors is refused with its reasons, and its last
    good content stays in force. A file has at most 1 MiB and 50,000 values and keys. Entries beyond
    twice `max_backends` are not read.

    Set this when a script or orchestrator writes the list of Tritons; otherwise no file is
    followed."""
    dns: tuple[DnsSettings, ...] = ()
    """DNS names to look up.

    Set this when DNS knows the addresses of your Tritons; otherwise no name is looked up."""
    kubernetes: tuple[KubernetesSettings, ...] = ()
    """Kubernetes services whose endpoints are backends.

    Set this when Tritons run in Kubernetes and come and go; otherwise its API is not asked."""
    resolve: Duration = 10.0
    """How often host names of backends are looked up again, so that connections to old addresses
    are closed. New connections always look them up. 0 is never.

    Set this when name servers complain of too many queries; otherwise a changed address is noticed
    within ten seconds."""
    drain: Duration = 300.0
    """How long requests, streams and sequences on a removed backend may still take; then they are
    cut.

    Set this when streams or sequences run longer than five minutes; otherwise they are cut when
    their backend is removed."""
    max_backends: PositiveCount = 1000
    """Backends in all. More are left out, with a warning in the log.

    Set this when the log says that backends were left out; otherwise a faulty source cannot fill
    the memory."""

    @property
    def max_entries(self) -> int:
        """Most entries that are taken from one source: twice as many as backends in all, since some
        may be removed by the operator, or be named elsewhere as well."""
        return 2 * self.max_backends

    def broken_rules(self) -> Iterator[Finding]:
        """Nothing is followed twice."""
        for index, file in enumerate(self.files):
            if file in self.files[:index]:
                yield ("files", index), f"{show(file)} is given twice"
        names = [each.asked_for for each in self.dns]
        for index, name in enumerate(names):
            if (first := names.index(name)) != index:
                message = f"{show(name)} is already looked up by discovery.dns[{first}]"
                yield ("dns", index), message
        services = [each.identity for each in self.kubernetes]
        for index, identity in enumerate(services):
            if (first := services.index(identity)) != index:
                message = f"the same endpoints are already found by discovery.kubernetes[{first}]"
                yield ("kubernetes", index), message
