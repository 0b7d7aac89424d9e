"""Settings of where backends come from beside the list in the configuration."""

from __future__ import annotations

from lb.settings.backends import BackendSettings
from lb.settings.kubernetes import KubernetesSettings
from lb.settings.section import Section
from lb.settings.units import Duration, PositiveDuration
from lb.settings.values import (
    AddressFamily,
    DnsName,
    FileName,
    PortNumber,
    PositiveCount,
    TargetAddress,
)


class DnsSettings(Section):
    """Backends found by DNS: every address of `host`, or every target of SRV records (RFC 2782).
    The name is asked for again when its time to live is over. As long as there is no answer, or an
    empty one, the last good one stays in force."""

    host: DnsName | None = None
    """Name whose addresses are backends, one each. `/etc/hosts` is not looked at; for one backend
    behind a host name use `backends`."""
    http_port: PortNumber | None = None
    """HTTP port of each address of `host`."""
    grpc_port: PortNumber | None = None
    """gRPC port of each address of `host`."""
    metrics_port: PortNumber | None = None
    """Metrics port of each address of `host`."""
    family: AddressFamily = AddressFamily.AUTO
    """Which addresses of `host` to use: `ipv4`, `ipv6` or `auto`, which is IPv6 where there is no
    IPv4: servers with both would count twice."""
    http_service: DnsName | None = None
    """Name of SRV records that name HTTP ports, such as `_http._tcp.triton.example`, instead of
    `host`. Only targets of the lowest priority are used. Ports of the same target in several
    services belong to one backend."""
    grpc_service: DnsName | None = None
    """Name of SRV records that name gRPC ports."""
    metrics_service: DnsName | None = None
    """Name of SRV records that name metrics ports."""
    servers: tuple[TargetAddress, ...] = ()
    """DNS servers to ask, `IP:53`; left out, those of `/etc/resolv.conf`."""
    refresh_min: PositiveDuration = 1.0
    """A shorter time to live than this counts as this."""
    refresh_max: PositiveDuration = 30.0
    """A longer time to live than this counts as this."""
    timeout: PositiveDuration = 5.0
    """How long one look-up may take, all servers and repetitions together."""
    backend: BackendSettings = BackendSettings()
    """What is the same for all of them: an entry like those of `backends`, without name and
    addresses. Where it has `tls` without a `server_name`, certificates must hold the name of
    `host`, or the target of the SRV records. Different weights of SRV records multiply its
    `weight`."""

    @property
    def name(self) -> str:
        """What it is called in logs, metrics and the admin API."""
        return f"dns:{self.host or self.http_service or self.grpc_service}"


class DiscoverySettings(Section):
    """Where backends come from beside `backends`, and what becomes of those that are removed. All
    sources are followed while we run: who is new gets requests once its probes say so, who is not
    named any more gets nothing new and finishes what it has. A name that several give means the
    backend of the first: `backends`, then `dns`, `kubernetes`, `files`, then the admin API."""

    files: tuple[FileName, ...] = ()
    """Files with backends, in YAML or JSON: a list like `backends`, or a mapping with that key.
    They are looked at every second; a file that cannot be used is refused with every reason, and
    what it said before stays in force."""
    dns: tuple[DnsSettings, ...] = ()
    """Names to look up."""
    kubernetes: tuple[KubernetesSettings, ...] = ()
    """Services whose endpoints to follow."""
    wait: Duration = 5.0
    """How long the start waits for sources to say something for the first time."""
    resolve: Duration = 10.0
    """How often host names of backends are looked up again, to close connections when their
    addresses have changed; new connections look them up anyway. 0 is never."""
    drain: Duration = 300.0
    """How long requests, streams and sequences on a backend that was removed may take; what is left
    is cut."""
    max_backends: PositiveCount = 1000
    """Backends in all; more are left out, with a warning."""
