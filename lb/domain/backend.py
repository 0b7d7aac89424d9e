"""Backends: what configuration says about a Triton, and its runtime record.

A `BackendSpec` is frozen and comes from a source. A `Backend` is the one mutable record of a
running backend; it survives reloads while its name lives. The relay counts on it, the pickers
read it, telemetry renders it at scrape time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final

LATENCY_BOUNDS_S: Final[tuple[float, ...]] = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
    0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Upper bounds of the latency histograms in seconds: 0.5 ms (a cached answer) to one minute. As a
tuple of known length, compiled code would make it anew wherever it passes it on."""


class AppProtocol(IntEnum):
    """The two protocols that are relayed; also the index of `Backend.ports`."""

    HTTP = 0
    GRPC = 1

    @property
    def label(self) -> str:
        """The value of the `protocol` label and log field."""
        return ("http", "grpc")[self]

    @property
    def alpn(self) -> str:
        """The name that TLS negotiates it by (RFC 7301)."""
        return ("http/1.1", "h2")[self]


class BackendKind(Enum):
    """Which server a backend runs: decides its probes and treatments."""

    TRITON = "triton"
    KSERVE = "kserve"
    TFSERVING = "tfserving"
    GENERIC = "generic"


class Health(Enum):
    """What the probes of one port say."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


class AdminState(Enum):
    """What the operator says. A draining backend finishes what it has and gets nothing new."""

    ENABLED = "enabled"
    DRAINING = "draining"
    DISABLED = "disabled"
    STANDBY = "standby"
    """Not the operator, but the load does not need it now: as draining, until it is activated."""
    REMOVING = "removing"
    """It is not wanted in the pool any more: as draining, and then it is gone."""


class BackendState(Enum):
    """What is said about a backend or one of its ports in logs, metrics and the admin API:
    its health, or what the operator says where that is not `enabled`."""

    STARTING = "starting"
    """No probe has been answered yet."""
    UP = "up"
    SUSPECTED = "suspected"
    """It owes a probe's answer and is silent: used only when nothing better is left."""
    EJECTED = "ejected"
    """Requests fail on it that do not fail on others: used only when nothing better is left."""
    PARTIAL = "partial"
    """Not ready as a whole, but some of its models are: used for those."""
    UNREADY = "unready"
    """It answers that it is not ready, and no model of it is known to be. Used only when no other
    backend is left, so that clients get its own answers."""
    DOWN = "down"
    DRAINING = "draining"
    DISABLED = "disabled"
    STANDBY = "standby"
    """It serves only when the load needs it, and it does not need it now."""
    REMOVING = "removing"
    """Removed from the pool; it finishes what it has."""


SERVING_STATES: Final = frozenset({BackendState.UP, BackendState.PARTIAL, BackendState.SUSPECTED})
"""In these a backend or port may get requests."""
WELL_STATES: Final = frozenset({BackendState.UP, BackendState.PARTIAL})
"""In these a port serves the models that its backend has ready."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen or connect: a host and port, or a Unix socket path."""

    host: str = ""
    port: int = 0
    path: str = ""
    """Path of a Unix socket; empty for TCP."""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`.

    Raises:
        ValueError: with a message that says what is wrong.
    """
    if text.startswith("unix:"):
        path = text[len("unix:") :]
        if not path:
            raise ValueError("a Unix socket needs a path: unix:/run/name.sock")
        return Address(path=path)
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError(f"expected HOST:PORT, [IPV6]:PORT or unix:PATH, got {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"an IPv6 address needs brackets: [{host}]:{port}")
    if not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError(f"port must be 0 to 65535, got {port!r}")
    return Address(host=host, port=int(port))


class BackendPort(Enum):
    """The ports that a backend may have."""

    HTTP = "http"
    GRPC = "grpc"
    METRICS = "metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTls:
    """How to speak TLS with a backend. Files are PEM."""

    ports: frozenset[BackendPort] = frozenset(BackendPort)
    """Those that speak TLS."""
    ca: str = ""
    """File of the authorities that are trusted; empty: those of the system."""
    server_name: str = ""
    """What its certificate must say; empty: the host of the address."""
    certificate: str = ""
    """File of our own certificate; empty: we show none."""
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """What configuration or discovery says about one backend."""

    name: str
    http: Address | None = None
    grpc: Address | None = None
    metrics: Address | None = None
    kind: BackendKind = BackendKind.TRITON
    weight: float = 1.0
    max_in_flight: int = 0
    """Requests at once, both protocols together; 0 is no limit."""
    concurrency: int = 0
    """Requests of one model at once; more wait in its queue. 0 leaves it to the model."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Added to probes and to calls of our own, never to relayed requests. They may be secrets."""
    tls: BackendTls | None = None
    shared_memory: bool | None = None
    """It can open the shared memory of our clients; None: its address tells."""

    def tls_of(self, port: BackendPort) -> BackendTls | None:
        """How to speak TLS with one port, None where it is plain."""
        return self.tls if self.tls is not None and port in self.tls.ports else None

    def address(self, protocol: AppProtocol) -> Address | None:
        """The address of one protocol's port, None where the backend does not serve it."""
        return self.http if protocol is AppProtocol.HTTP else self.grpc

    @property
    def server(self) -> str:
        """What tells its server from any other, the same in each process: a backend of its name
        that has another one is another backend."""
        tls = self.tls
        files = () if tls is None else (tls.ca, tls.server_name, tls.certificate, tls.key)
        ports = () if tls is None else sorted([port.value for port in tls.ports])
        return repr((self.kind.value, str(self.http), str(self.grpc), files, ports))


class Histogram:
    """Latency counts by bucket; plain integers, rendered at scrape time."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        """Counts per bucket, not cumulative; the last one is everything above."""
        self.sum = 0.0
        """Sum of all observations in seconds."""

    def add(self, other: Histogram) -> None:
        """Count all that another one has counted."""
        counts = other.counts
        if sum(counts) == 1:  # as for most kinds of requests where there are many kinds
            self.counts[counts.index(1)] += 1
        else:
            self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]
        self.sum += other.sum


@dataclass(slots=True, eq=False)
class Port:
    """Counters of one protocol port of one backend. Only ever grow, except the gauges."""

    address: Address
    tls: BackendTls | None = None
    """None where it is plain."""
    in_flight: int = 0
    """Gauge: attempts under way."""
    connections: int = 0
    """Gauge: open connections, idle ones included."""
    attempts: int = 0
    """Attempts started; more than requests when there are retries."""
    codes: dict[int, int] = field(default_factory=dict)
    """Attempts that ended, by HTTP status or gRPC status; 0 to 16 for gRPC."""
    failures: dict[str, int] = field(default_factory=dict)
    """Attempts that ended without an answer of the backend, by reason."""
    latency: Histogram = field(default_factory=Histogram)
    """From the start of the attempt to its end, in seconds."""
    bytes_sent: int = 0
    """Payload bytes toward the backend."""
    bytes_received: int = 0
    """Payload bytes from the backend."""
    connects: int = 0
    connect_failures: int = 0
    last_byte_at: float = 0.0
    """Monotonic time at which live traffic last brought a byte: a probe's time-out counts only
    when this is older than the probe."""
    probed_at: float = 0.0
    """Monotonic time at which it last answered a probe, on a connection of its own. Written by the
    directory."""
    ready_through: tuple[bytes, ...] = ()
    """Identities of the balancers through which it is ready, nearest first; none for a server.
    Written by the directory."""
    is_hung: bool = False
    """It accepts connections, and has owed answers for too long. Written by the directory."""
    is_given_up: bool = False
    """It hangs, and so many probes were missed that it is down: nothing that it owes is waited for
    any longer. Written by the directory."""
    left_before: float = 0.0
    """Attempts that began before this monotonic time are where nobody may be: its process refused
    a connection then, and has said nothing since, or another one answers in its place. They are as
    if it hung. Written by the directory."""
    lost_before: float = 0.0
    """Attempts that began before this monotonic time are as if it was given up: a process that
    exits would have ended by now. Written by the directory."""

    @property
    def may_hang(self) -> bool:
        """Whether attempts at it may hang: their own times tell which."""
        return self.is_hung or self.left_before > 0.0


class Backend:
    """The runtime record of one backend. Written by the relay and the directory."""

    __slots__ = (
        "deaths", "in_flight", "inverse_weight", "last_pick", "last_sequence", "lost_requests",
        "max_in_flight", "name", "open_sequences", "ports", "reports_due", "set_aside", "share",
        "spec",
    )  # fmt: skip

    max_in_flight: int
    """How high `in_flight` may be before nothing more begins: `max_requests`, and one more for each
    attempt set aside. 0: there is no limit."""

    def __init__(self, spec: BackendSpec) -> None:
        self.in_flight = 0
        self.set_aside = 0
        """Attempts of `in_flight` that do not count against `max_requests`, since the backend
        executes nothing of them: their clients are slow."""
        self.last_pick = 0
        """Sequence number of the last pick: ties go to whoever waited longest."""
        self.open_sequences = 0
        """Gauge: sequences of stateful models that run on it, as far as is known."""
        self.last_sequence = 0
        """Number of the last one that was placed on it: ties, as with `last_pick`."""
        self.deaths = 0
        """How often it was found dead: what it remembered of sequences is gone then."""
        self.lost_requests = 0
        """Requests that were given up because it does not answer them."""
        self.reports_due = 0
        """How many of the next answers passive health wants to be told of."""
        self.share = 1.0
        """What part of its weight counts; less than 1 while it starts slowly."""
        self.apply(spec)
        self.ports: tuple[Port | None, Port | None] = (
            Port(spec.http, spec.tls_of(BackendPort.HTTP)) if spec.http else None,
            Port(spec.grpc, spec.tls_of(BackendPort.GRPC)) if spec.grpc else None,
        )

    def apply(self, spec: BackendSpec) -> None:
        """Take over a changed specification; addresses and TLS never change under one record."""
        self.spec = spec
        self.name = spec.name
        self.inverse_weight = 1.0 / (spec.weight * self.share)
        self._limit()

    def _limit(self) -> None:
        limit = self.spec.max_in_flight
        self.max_in_flight = limit + self.set_aside if limit else 0

    def count_no_more(self) -> None:
        """Set an attempt in flight aside."""
        self.set_aside += 1
        self._limit()

    def count_again(self) -> None:
        """Count an attempt that was set aside, or that is not in flight any more."""
        self.set_aside -= 1
        self._limit()

    def set_share(self, share: float) -> None:
        """Let only a part of its weight count, between 0 (exclusive) and 1."""
        self.share = share
        self.inverse_weight = 1.0 / (self.spec.weight * share)

    def died(self) -> None:
        """Its process is gone, or it counts as gone: so are the sequences that ran on it."""
        self.deaths += 1
        self.open_sequences = 0

    def has_left_since(self, at: float) -> bool:
        """Whether the process is gone that had an attempt which began at a monotonic time, even
        where another one answers in its place; see `Port.left_before`."""
        return any(port is not None and at < port.left_before for port in self.ports)

    def port(self, protocol: AppProtocol) -> Port:
        """The counters of a port that exists; asking for one that does not is a bug."""
        port = self.ports[protocol]
        if port is None:
            raise LookupError(f"backend {self.name} has no {protocol.label} port")
        return port

    @property
    def has_room(self) -> bool:
        """Whether `max_in_flight` admits one more request."""
        return not self.max_in_flight or self.in_flight < self.max_in_flight

    def __repr__(self) -> str:
        return f"<Backend {self.name} in_flight={self.in_flight}>"
