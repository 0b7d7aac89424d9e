"""Settings of the backends: addresses, TLS, probes."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from lb.domain.backend import Address, BackendKind, BackendPort, BackendSpec, BackendTls
from lb.domain.standby import StandbyRule
from lb.settings.problems import Finding
from lb.settings.scheduling import MAX_CONCURRENCY
from lb.settings.section import Section, all_or_none
from lb.settings.standby import ActivateSettings, DeactivateSettings
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
    StatusCode,
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
    every time. The first answer after the start decides at once."""

    probe: ProbeKind = ProbeKind.AUTO
    """What to send. `auto` checks the readiness of each port in its own protocol, by the backend's
    `kind`. `http` sends a GET of `http_path` to the HTTP port; the result holds for gRPC, too.
    `grpc` sends a call to the gRPC port; the result holds for HTTP, too. `tcp` only connects.

    Set this when a backend cannot answer the probe of its kind; otherwise `auto` suits."""
    interval: PositiveDuration = 1.0
    """Time between two probes of a port, plus or minus 10 % at random. After a missed probe the
    port is probed every 100 ms until it is clear whether it is down. Hundreds of ports that say
    nothing are each probed less often the longer they are silent.

    Set this when dozens of replicas probe the same backends (5s is usual); otherwise a silent
    backend is found within two seconds."""
    timeout: PositiveDuration = 2.0
    """How long an answer may take before the probe counts as missed. A miss is ignored if live
    traffic brought bytes from the backend meanwhile.

    Set this when busy backends are slow to answer probes and are taken out; otherwise two seconds
    are enough."""
    rise: PositiveCount = 2
    """Successful probes in a row that bring a port back.

    Set this when a backend passes a probe before it can serve; otherwise two successes are
    enough."""
    fall: PositiveCount = 3
    """Missed probes in a row that take a port out. A refused or reset connection takes it out at
    once.

    Set this when single probes are lost on the network; otherwise three misses count as down."""
    http_path: UrlPath | None = None
    """Path of the HTTP probe. The default follows the backend's `kind`: `/v2/health/ready` for
    `triton` and `kserve`, the state of `model` for `tfserving`, `/` for `generic`.

    Set this when a backend of kind `generic` has a health page; otherwise the path of its kind is
    used."""
    expected_status: Annotated[tuple[StatusCode, ...], Field(min_length=1)] = (200,)
    """HTTP status codes that mean healthy.

    Set this when a health page answers with another code than 200; otherwise that backend counts as
    down."""
    model: ProbedModel | None = None
    """Name of the model whose state decides whether a backend of kind `tfserving` is healthy:
    TensorFlow Serving has no readiness of its own.

    Set this when you balance over TensorFlow Serving; otherwise its ports are only connected to."""
    grpc_service: GrpcProbe = GrpcProbe.AUTO
    """Which call the gRPC probe makes. `auto` follows the backend's `kind`: `ServerReady` for
    `triton` and `kserve`, `GetModelStatus` of `model` for `tfserving`,
    `grpc.health.v1.Health/Check` for `generic`. `health` is always `grpc.health.v1.Health/Check`.

    Set this when a `kserve` server only implements the standard health service; otherwise the call
    of its kind is used."""


class BackendTlsSettings(Section):
    """TLS toward a backend, whose certificate is always verified. Replaced files are loaded
    within two seconds, for new connections."""

    model_config = all_or_none("certificate", "key")

    ports: Annotated[tuple[BackendPort, ...], Field(min_length=1)] = tuple(BackendPort)
    """Which of the backend's ports use TLS: `http`, `grpc`, `metrics`. Triton itself has TLS for
    gRPC only.

    Set this when only some ports of a backend use TLS; otherwise all do."""
    ca: FileName | None = None
    """File with the certificate authorities to trust, or with the backend's own certificate if it
    is self-signed.

    Set this when your own authority signs the backends' certificates; otherwise the system's
    authorities are trusted."""
    server_name: ServerName | None = None
    """Name that the backend's certificate must hold, and that is sent as SNI.

    Set this when you connect by IP address but certificates hold names; otherwise it is the host of
    the address."""
    certificate: FileName | None = None
    """File with our client certificate for this backend, followed by its intermediate certificates.

    Set this when backends demand a client certificate; otherwise none is sent."""
    key: FileName | None = None
    """File with the private key of `certificate`, not encrypted.

    Set this when `certificate` is set; otherwise the configuration is refused."""

    def broken_rules(self) -> Iterator[Finding]:
        """A certificate has a key, and a key a certificate."""
        if self.certificate is not None and self.key is None:
            yield ("certificate",), "needs key, too"
        if self.key is not None and self.certificate is None:
            yield ("key",), "needs certificate, too"


class BackendSettings(Section):
    """One server to balance over; at least one of `http` and `grpc` is needed. HTTP requests go
    only to backends with `http`, gRPC calls only to backends with `grpc`."""

    name: BackendName | None = None
    """Unique name in logs, metrics and the admin API.

    Set this when dashboards should show more than an address; otherwise it is the HTTP address, or
    the gRPC address without one."""
    http: TargetAddress | None = None
    """Address of the HTTP port. Host names are resolved again for every new connection.

    Set this when clients use HTTP; otherwise this backend gets no HTTP requests."""
    grpc: TargetAddress | None = None
    """Address of the gRPC port.

    Set this when clients use gRPC; otherwise this backend gets no gRPC calls."""
    metrics: TargetAddress | None = None
    """Address of the metrics port. Its metrics are shown among ours with a `backend` label (see
    `metrics.backends`), and its load is read if `scheduling.load_poll_interval` is set.

    Set this when you want one scrape target for all Tritons; otherwise their metrics are not
    shown."""
    kind: BackendKind = BackendKind.TRITON
    """Which server it runs: `triton`, `kserve` (another server of the v2 protocol), `tfserving` or
    `generic`. It decides how the backend is probed and which calls get special treatment.

    Set this when a backend is not a Triton; otherwise it is probed as one and counts as down."""
    weight: Annotated[Number, Field(gt=0, le=1e6)] = 1.0
    """Share of the load relative to other backends: weight 2 gets twice as much as weight 1.
    Scheduled models use measured speed instead.

    Set this when backends differ in speed and their models are not scheduled; otherwise all get the
    same share."""
    max_requests: Count = 0
    """Requests in flight at once, HTTP and gRPC together; 0 is no limit. When every backend is
    full, clients get 503 or RESOURCE_EXHAUSTED. An upload that takes longer than 100 ms counts
    only once it is complete.

    Set this when a server fails under too many requests; otherwise only the limits per model
    hold."""
    max_requests_per_model: Annotated[Count, Field(le=MAX_CONCURRENCY)] = 0
    """Requests of one model in flight at once on this backend. It applies to scheduled models; 0
    leaves it to `scheduling.max_requests_per_backend`.

    Set this when this Triton has more or fewer instances than the others; otherwise all count as
    equal."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict, repr=False)
    """Headers for probes and for our own calls, such as `authorization`. They are never added to
    requests of clients.

    Set this when probes or model lists fail with 401 or 403; otherwise our own calls carry no
    credentials."""
    shared_memory: Switch = "auto"
    """Whether the backend can open the clients' shared memory, so that regions are registered with
    it. `auto` is true for backends at a loopback address or Unix socket, and for all backends if
    none is there (containers).

    Set this when `auto` guesses wrong, as with Tritons on this machine and on others; otherwise it
    suits."""
    tls: BackendTlsSettings | None = None
    """TLS toward this backend, including probes and scrapes.

    Set this when traffic to this backend crosses a network that you do not trust; otherwise it is
    plain."""
    standby: PositiveCount | None = None
    """Rank of a backend that serves only when the load needs it: 1 is activated first and released
    last. Only for backends of this file.

    Set this when a GPU or slice has other work at times of low load; otherwise the backend always
    serves."""
    activate: ActivateSettings | None = None
    """What a standby backend needs before it serves.

    Set this when its server or its models do not run while it stands by; otherwise it only has to
    be ready."""
    deactivate: DeactivateSettings | None = None
    """How the server of a standby backend is stopped.

    Set this when `activate.exec` starts the server; otherwise it runs on."""
    health: HealthSettings = HealthSettings()
    """Probes of this backend: settings given here override those of the section `health`.

    Set this when one backend needs another probe than the rest; otherwise the section `health`
    holds."""

    def broken_rules(self) -> Iterator[Finding]:
        """What has no host has a name that its certificate must hold; only standby backends are
        activated."""
        if self.standby is None:
            for key in ("activate", "deactivate"):
                if getattr(self, key) is not None:
                    yield (key,), "needs standby, too"
        if self.activate is not None and self.activate.load and self.kind is not BackendKind.TRITON:
            yield ("activate", "load"), "needs kind: triton"
        if self.tls is None or self.tls.server_name is not None:
            return
        for port in self.tls.ports:
            address: Address | None = getattr(self, port.value)
            if address is not None and address.path:
                yield ("tls",), f"needs server_name, since {address} has no host"

    @property
    def known_as(self) -> str:
        """The name, filled in where it was left out."""
        return self.name or str(self.http or self.grpc).replace("/", "_")

    def standby_rule(self) -> StandbyRule | None:
        """How it is activated; None: it always serves."""
        if self.standby is None:
            return None
        activate = self.activate or ActivateSettings.model_construct()
        deactivate = self.deactivate
        return StandbyRule(
            rank=self.standby,
            load=tuple(model.encode() for model in activate.load),
            start=activate.exec_,
            start_limit_s=activate.timeout,
            stop=() if deactivate is None else deactivate.exec_,
            stop_limit_s=0.0 if deactivate is None else deactivate.timeout,
        )

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
            max_in_flight=self.max_requests,
            concurrency=self.max_requests_per_model,
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
