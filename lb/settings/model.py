"""The settings: frozen models, one per section of the file, with every default.

The text below a field is its documentation: `docs/configuration.md` is made from it. Rules that
span several sections stand in `lb.settings.relations`, so that they are reported together with
everything else.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from lb.domain.backend import BackendKind, BackendPort, BackendSpec, BackendTls
from lb.settings.units import Duration, PositiveDuration, Size
from lb.settings.values import (
    BackendName,
    Count,
    FileName,
    HeaderName,
    HeaderValue,
    ListenAddress,
    Number,
    PositiveCount,
    ServerName,
    TargetAddress,
    UrlPath,
    address_as_mapping,
)


class PolicyName(StrEnum):
    """How a backend is chosen among the eligible ones."""

    LEAST_LOADED = "least_loaded"
    ROUND_ROBIN = "round_robin"
    POWER_OF_TWO = "power_of_two"
    RANDOM = "random"


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


class ClientCertificateMode(StrEnum):
    """Whether clients must show a certificate."""

    REQUIRED = "required"
    OPTIONAL = "optional"


class ForwardedMode(StrEnum):
    """Which headers tell a backend who the client is."""

    OFF = "off"
    X_FORWARDED = "x_forwarded"
    FORWARDED = "forwarded"
    BOTH = "both"


class AccessLogMode(StrEnum):
    """Which requests are logged."""

    OFF = "off"
    ERRORS = "errors"
    SAMPLED = "sampled"
    ALL = "all"


class LogLevel(StrEnum):
    """The least important messages that the application log shows."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How the application log is written."""

    TEXT = "text"
    JSON = "json"


class Section(BaseModel):
    """Base of all sections: frozen, and nothing unknown is let through."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        # Before 2.10 pydantic keeps names that begin with `model_` to itself.
        protected_namespaces=(),
    )


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
    `triton` and `kserve`, `/` for the others."""
    expected_status: Annotated[
        tuple[Annotated[Count, Field(ge=200, le=599)], ...], Field(min_length=1)
    ] = (200,)
    """HTTP status codes that mean healthy."""
    grpc_service: GrpcProbe = GrpcProbe.AUTO
    """Which call the gRPC probe makes: `auto` goes by the backend's `kind` (`ServerReady` for
    `triton` and `kserve`, `grpc.health.v1.Health/Check` for the others), `health` is always
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
    weight 1 gets."""
    max_in_flight: Count = 0
    """Requests at once, HTTP and gRPC together; 0 is no limit. When every backend is full,
    clients get 503 or RESOURCE_EXHAUSTED."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict, repr=False)
    """Headers for probes and for calls of our own, such as `authorization`; never added to the
    requests of clients."""
    tls: BackendTlsSettings | None = None
    """TLS with this backend, probes and scrapes included; left out, it is plain."""
    health: HealthSettings = HealthSettings()
    """Probes of this backend where they differ: what is given here replaces that setting of the
    common `health` section, the rest stays."""

    def spec(self) -> BackendSpec:
        """Say the same as a value of the domain: the name is filled in, and the headers' names
        are in lower case, as gRPC metadata needs them."""
        name = self.name or str(self.http or self.grpc).replace("/", "_")
        return BackendSpec(
            name=name,
            http=self.http,
            grpc=self.grpc,
            metrics=self.metrics,
            kind=self.kind,
            weight=self.weight,
            max_in_flight=self.max_in_flight,
            headers=tuple((header.lower(), value) for header, value in self.headers.items()),
            tls=self._tls(),
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


class BalancingSettings(Section):
    """How requests are spread."""

    policy: PolicyName = PolicyName.LEAST_LOADED
    """`least_loaded`: the fewest requests in flight for its weight; `round_robin`: in turn, by
    weight; `power_of_two`: the less loaded of two at random; `random`: by weight. All but the
    first ignore that requests differ in cost."""


class TimeoutSettings(Section):
    """How long things may take."""

    connect: PositiveDuration = 1.0
    """Connecting to a backend, name resolution included. Then another backend is tried."""
    head: PositiveDuration = 10.0
    """From the first byte of a client's request to the end of its head, then 408."""
    body_progress: PositiveDuration = 30.0
    """The longest pause in which a client neither sends a byte of a body that it owes nor takes
    one of an answer that waits; then the exchange is cut."""
    client_idle: PositiveDuration = 620.0
    """A client's connection without requests is closed after this. Longer than the idle time of
    the load balancers in front of us (600 s at GCP), so that they close first."""
    upstream_idle: PositiveDuration = 30.0
    """An HTTP/1.1 connection to a backend without requests is closed after this."""
    request: Duration = 0.0
    """From a request's head to the end of its answer, then 504 or DEADLINE_EXCEEDED; 0 is no
    limit, and only the client's own `grpc-timeout` rules. Model loads, language models and
    streams run long."""
    handshake: PositiveDuration = 10.0
    """A TLS handshake, with clients and with backends."""


class LimitSettings(Section):
    """How much things may hold."""

    head_bytes: Annotated[Size, Field(ge=1024, le=16 << 20)] = 32 << 10
    """Head of a request or an answer: request line and all fields, decoded on HTTP/2. More gets
    431 or RESOURCE_EXHAUSTED, or 502 from a backend."""
    request_line_bytes: Annotated[Size, Field(ge=256, le=16 << 20)] = 8 << 10
    """Request line of HTTP/1.1. More gets 414."""
    fields: Annotated[Count, Field(ge=8, le=10_000)] = 100
    """Header fields in a head. More gets 431 or RESOURCE_EXHAUSTED."""
    body_bytes: Size = 0
    """Body of one HTTP request, or one gRPC message. More gets 413 or RESOURCE_EXHAUSTED; 0 is
    no limit, as with Triton."""
    retained_body_bytes: Size = 64 << 10
    """How much of a request's body is kept so that it can be sent to another backend. A request
    that sent more is not repeated."""
    memory_bytes: Size = 0
    """All bytes held for requests and answers under way. Past it new requests are refused, then
    the largest holder is cut. 0 is a quarter of the memory limit of the container or machine, at
    most 512 MiB."""
    concurrent_streams: Annotated[PositiveCount, Field(le=(1 << 31) - 1)] = 1024
    """gRPC calls at once on one connection of a client; the client queues the rest itself."""
    stream_window_bytes: Annotated[Size, Field(ge=65_535, le=(1 << 31) - 1)] = 1 << 20
    """How far the sender of one gRPC stream may run ahead of its reader at first."""
    stream_window_max_bytes: Annotated[Size, Field(ge=65_535, le=(1 << 31) - 1)] = 4 << 20
    """How far that window may grow while the reader keeps up."""
    frame_bytes: Annotated[Size, Field(ge=1 << 14, le=(1 << 24) - 1)] = 1 << 20
    """Largest HTTP/2 frame that we accept."""
    http_buffer_bytes: Annotated[Size, Field(ge=4 << 10, le=1 << 30)] = 64 << 10
    """Bytes that wait to be written on an HTTP/1.1 connection before its sender is paused."""


class RetrySettings(Section):
    """Requests that surely did not run are sent to another backend."""

    attempts: Annotated[PositiveCount, Field(le=100)] = 3
    """Attempts in all, the first one included; 1 never repeats. Only a failure before the
    request can have run is repeated: connecting failed, or the backend says that it refused."""


class AccessLogSettings(Section):
    """One JSON line per finished request."""

    mode: AccessLogMode = AccessLogMode.ERRORS
    """`off`; `errors`: requests that failed; `sampled`: those, and a `sample` of the rest;
    `all`."""
    sample: Annotated[Number, Field(ge=0, le=1)] = 0.01
    """Share of the good requests that `sampled` logs, 0 to 1."""
    path: Annotated[str, Field(min_length=1)] = "-"
    """File to append to; `-` is standard output. SIGUSR1 opens it anew, for rotation."""


class LogSettings(Section):
    """The application log, on standard error: state changes, one line each."""

    level: LogLevel = LogLevel.INFO
    """The least important messages to write."""
    format: LogFormat = LogFormat.TEXT
    """`text` for people, `json` for collectors."""


class MetricsSettings(Section):
    """What the metrics listener shows."""

    backends: bool = True
    """Show the metrics of backends that have a `metrics` address among ours, with a `backend`
    label; `perf_analyzer` and Triton's dashboards read them there."""
    model_labels: Count = 100
    """Distinct values of the `model` label; further models are counted together as `other`."""


class ShutdownSettings(Section):
    """What happens between SIGTERM and the end."""

    settle: Duration = 0.0
    """How long requests are still accepted after readiness went down, so that whoever sends them
    can notice. 5s in Kubernetes."""
    drain: Duration = 20.0
    """How long requests under way may then take; what is left is cut. A second signal cuts at
    once."""


class ModelSettings(Section):
    """Settings of one ML model."""


class Settings(Section):
    """A whole configuration."""

    listen: ListenSettings
    backends: Annotated[tuple[BackendSettings, ...], Field(min_length=1)]
    """The servers to balance over; at least one."""
    balancing: BalancingSettings = BalancingSettings()
    health: HealthSettings = HealthSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    limits: LimitSettings = LimitSettings()
    forwarded: ForwardedMode = ForwardedMode.OFF
    """Headers that tell backends who the client is: `x_forwarded` (`X-Forwarded-For`, `-Proto`,
    `-Host`), `forwarded` (RFC 7239), `both` or `off`. Off, requests arrive unchanged; Triton can
    pass headers on to models."""
    retry: RetrySettings = RetrySettings()
    access_log: AccessLogSettings = AccessLogSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    """Settings per ML model, by its name. There are none yet, so each mapping must be empty."""

    def specs(self) -> tuple[BackendSpec, ...]:
        """Return the backends as values of the domain, in the order of the file."""
        return tuple(backend.spec() for backend in self.backends)

    def health_of(self, backend: BackendSettings) -> HealthSettings:
        """Return the probe settings of one backend: its own over the common ones."""
        own = {name: getattr(backend.health, name) for name in backend.health.model_fields_set}
        return self.health.model_copy(update=own)
