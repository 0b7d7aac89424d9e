"""Settings of the backends: addresses, TLS, probes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from lb.domain.backend import BackendKind, BackendPort, BackendSpec, BackendTls
from lb.settings.scheduling import MAX_CONCURRENCY
from lb.settings.section import Section
from lb.settings.units import PositiveDuration
from lb.settings.values import (
    BackendName,
    Count,
    FileName,
    HeaderName,
    HeaderValue,
    Number,
    PositiveCount,
    ServerName,
    Switch,
    TargetAddress,
    UrlPath,
)

ProbedModel = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,120}$")]
"""Name of an ML model, short enough for a probe."""


class ProbeKind(StrEnum):
    """What a health probe sends."""

    AUTO = "auto"
    HTTP = "http"
    GRPC = "grpc"
    TCP = "tcp"


class GrpcProbe(StrEnum):
    """Which call a gRPC probe makes."""

    AUTO = "auto"
    HEALTH = "health"


class HealthSettings(Section):
    """Active health probes. Each port of a backend is probed on its own, on a fresh connection
    every time, and the first answer after the start decides at once."""

    probe: ProbeKind = ProbeKind.AUTO
    """What to send: `auto` asks each port for readiness in its own protocol, as the backend's
    `kind` does it; `http` a GET of `http_path` to the HTTP port, and its answer also decides for
    gRPC; `grpc` likewise a call to the gRPC port; `tcp` only connects."""
    interval: PositiveDuration = 1.0
    """Time between two probes of a port, give or take a tenth. After a missed probe the port is
    probed every 100 ms until it is clear whether it is down."""
    timeout: PositiveDuration = 2.0
    """How long an answer may take before the probe counts as missed. It does not count when live
    traffic brought bytes from the backend meanwhile."""
    rise: PositiveCount = 2
    """Good probes in a row that bring a port back."""
    fall: PositiveCount = 3
    """Missed probes in a row that take a port out. A refused or reset connection takes it out at
    once."""
    http_path: UrlPath | None = None
    """Path of the HTTP probe. Left out, it goes by the backend's `kind`: `/v2/health/ready` for
    `triton` and `kserve`, the state of `model` for `tfserving`, `/` for `generic`."""
    expected_status: Annotated[
        tuple[Annotated[Count, Field(ge=200, le=599)], ...], Field(min_length=1)
    ] = (200,)
    """HTTP status codes that mean healthy."""
    model: ProbedModel | None = None
    """Name of a model that a backend of the kind `tfserving` must have available to be healthy,
    which has no other notion of readiness. Left out, its ports are only connected to."""
    grpc_service: GrpcProbe = GrpcProbe.AUTO
    """Which call the gRPC probe makes: `auto` goes by the backend's `kind` (`ServerReady` for
    `triton` and `kserve`, `GetModelStatus` of `model` for `tfserving`,
    `grpc.health.v1.Health/Check` for `generic`), `health` is always
    `grpc.health.v1.Health/Check`."""


class BackendTlsSettings(Section):
    """TLS toward a backend, whose certificate is always verified. Replaced files are loaded
    within two seconds, for new connections."""

    ports: Annotated[tuple[BackendPort, ...], Field(min_length=1)] = tuple(BackendPort)
    """Which of its ports speak TLS: `http`, `grpc`, `metrics`. Triton itself has TLS for gRPC
    only."""
    ca: FileName | None = None
    """File with the authorities to trust, or with the backend's own certificate when it has
    signed itself. Left out: the authorities of the system."""
    server_name: ServerName | None = None
    """Name that its certificate must hold, and that is asked for. Left out: the host of its
    address."""
    certificate: FileName | None = None
    """File with a certificate to show to the backend, and those that lead to its authority."""
    key: FileName | None = None
    """File with the key of that certificate, not encrypted."""


class BackendSettings(Section):
    """One server to balance over; at least one of `http` and `grpc` is needed. HTTP requests go
    only to backends with `http`, gRPC calls only to backends with `grpc`."""

    name: BackendName | None = None
    """Name in logs, metrics and the admin API; unique. Left out, it is the backend's HTTP
    address, or its gRPC address where it has no other."""
    http: TargetAddress | None = None
    """Address of the HTTP port. Host names are resolved again with every new connection."""
    grpc: TargetAddress | None = None
    """Address of the gRPC port."""
    metrics: TargetAddress | None = None
    """Address of the metrics port; given, its metrics are shown among ours with a `backend`
    label (see `metrics.backends`)."""
    kind: BackendKind = BackendKind.TRITON
    """Which server it runs: `triton`, `kserve` (another server of the v2 protocol), `tfserving`
    or `generic`. Decides how it is probed and which calls get special treatment."""
    weight: Annotated[Number, Field(gt=0, le=1e6)] = 1.0
    """Share of the load against the other backends: one of weight 2 gets twice what one of
    weight 1 gets. Models that are scheduled go by the speed that was learnt instead."""
    max_in_flight: Count = 0
    """Requests at once, HTTP and gRPC together; 0 is no limit. When every backend is full,
    clients get 503 or RESOURCE_EXHAUSTED."""
    concurrency: Annotated[Count, Field(le=MAX_CONCURRENCY)] = 0
    """Requests of one model at once, for models that are scheduled or would be with a limit; 0
    leaves it to `scheduling.concurrency`."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict, repr=False)
    """Headers for probes and for calls of our own, such as `authorization`; never added to the
    requests of clients."""
    shared_memory: Switch = "auto"
    """Whether it can open the shared memory of clients, so that regions are registered with it:
    `true`, `false` or `auto`, which is true for a backend with a loopback address or a Unix socket,
    and for all where no backend has one (containers)."""
    tls: BackendTlsSettings | None = None
    """TLS with this backend, probes and scrapes included; left out, it is plain."""
    health: HealthSettings = HealthSettings()
    """Probes of this backend where they differ: what is given here replaces that setting of the
    common `health` section, the rest stays."""

    @property
    def known_as(self) -> str:
        """The name, filled in where it was left out."""
        return self.name or str(self.http or self.grpc).replace("/", "_")

    def spec(self) -> BackendSpec:
        """Say the same as a value of the domain: the name is filled in, and the headers' names
        are in lower case, as gRPC metadata needs them."""
        return BackendSpec(
            name=self.known_as,
            http=self.http,
            grpc=self.grpc,
            metrics=self.metrics,
            kind=self.kind,
            weight=self.weight,
            max_in_flight=self.max_in_flight,
            concurrency=self.concurrency,
            headers=tuple((header.lower(), value) for header, value in self.headers.items()),
            tls=self._tls(),
            shared_memory=None if self.shared_memory == "auto" else self.shared_memory,
        )

    def _tls(self) -> BackendTls | None:
        tls = self.tls
        if tls is None:
            return None
        return BackendTls(
            ports=frozenset(tls.ports),
            ca=tls.ca or "",
            server_name=tls.server_name or "",
            certificate=tls.certificate or "",
            key=tls.key or "",
        )
