"""Renders the plain counters of the process for Prometheus, when it asks.

Samples are made one by one while a page is written, so that whoever writes it can pause between
them: with hundreds of backends a page is a tenth of a second of work, which must not stop traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Metric,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.samples import Sample

from lb.domain.backend import (
    LATENCY_BOUNDS_S,
    AppProtocol,
    Backend,
    BackendState,
    Histogram,
    Port,
)
from lb.domain.names import readable
from lb.domain.pool import PoolSnapshot
from lb.domain.schedule import POSITION_BOUNDS
from lb.domain.standby import StandbyCounts
from lb.telemetry.catalogue import COLLECTED, MetricSpec, MetricType
from lb.telemetry.counts import (
    LAG_BOUNDS_S,
    LOAD_BOUNDS_S,
    LoopLag,
    OwnCalls,
    PlacementCounts,
    Reloads,
    RerunCounts,
    ScalingStatus,
    SplitCounts,
    WorkerStatus,
    placement_rows,
    rerun_rows,
    scaling_rows,
    split_rows,
    standby_rows,
    worker_rows,
)
from lb.telemetry.labels import code_label
from lb.telemetry.meter import Meter, Traffic
from lb.telemetry.queue import QueueStatus, position_rows, queue_rows, wait_rows
from lb.telemetry.shadow import ShadowStatuses
from lb.telemetry.spans import SpanQueue
from lb.telemetry.variants import VariantStatuses

STATES: Final = tuple(state.value for state in BackendState)


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """What runs: versions."""

    version: str
    python: str
    uvloop: str
    """Empty when the event loop is asyncio's."""


@dataclass(frozen=True, slots=True)
class PortStatus:
    """What the control plane thinks of one port of one backend."""

    backend: str
    protocol: AppProtocol
    state: str
    """Value of a `BackendState`."""
    is_up: bool
    """Whether it may get new requests."""
    changes: int
    """How often the state has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierStatus:
    """What live traffic says of one backend."""

    backend: str
    is_ejected: bool
    """As a whole."""
    models: int
    """For which it is ejected."""
    share: float
    """What part of its share of the load it gets."""
    ejections: Mapping[str, int]
    """How often it was ejected for a model, by reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTableStatus:
    """What the control plane knows of the models of one backend."""

    backend: str
    ready: int
    """Models that are ready."""
    age_s: float
    """Of its list."""
    missing: int
    """Models that are ready on others and not here."""
    differing: int
    """Settings that are otherwise on most others."""
    reconfigured: int = 0
    """Models that are configured otherwise on most others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """How one source of backends does."""

    name: str
    backends: int
    """In its last good set."""
    updates: int
    """Sets that it has yielded."""
    failures: int
    """Times that it had none to yield."""
    age_s: float | None
    """Since it last yielded one; None: it never did."""
    error: str
    """Why it has none now; empty where it has."""

    @property
    def is_up(self) -> int:
        """1 when the last look found a set."""
        return int(self.age_s is not None and not self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the collector reads. Callables are asked at every scrape."""

    meter: Meter
    snapshot: Callable[[], PoolSnapshot]
    statuses: Callable[[], Iterable[PortStatus]]
    loop_lag: LoopLag
    build: BuildInfo
    started_at: float
    """Unix time in seconds."""
    tasks: Callable[[], int]
    """Of the event loop."""
    open_requests: Callable[[], int]
    held_bytes: Callable[[], int]
    dropped_lines: Callable[[], Mapping[str, int]]
    """By name of the log: `access`, `application`."""
    expiries: Callable[[], Iterable[tuple[str, int]]]
    """Files of certificates in use, and the Unix times at which they end."""
    reload_failures: Callable[[], int]
    token_requests: Callable[[], Mapping[str, int]]
    """By name of the token."""
    token_failures: Callable[[], int]
    file_stalls: Callable[[], tuple[Mapping[str, int], int]]
    """How often each file did not answer, and how many reads hang now."""
    model_tables: Callable[[], Iterable[ModelTableStatus]]
    ready_backends: Callable[[], Iterable[tuple[str, int]]]
    """Models, as many as have labels, and how many backends have each ready."""
    restored: Mapping[tuple[str, str], int]
    """By kind and result."""
    placement: Callable[[], PlacementCounts] = PlacementCounts
    own_calls: OwnCalls = field(default_factory=OwnCalls)
    outliers: Callable[[], Iterable[OutlierStatus]]
    discovery: Callable[[], Iterable[SourceStatus]]
    open_sequences: Callable[[], Iterable[tuple[str, str, int]]]
    """Backend, model, and how many run there."""
    reruns: Callable[[], RerunCounts]
    sequence_counts: Callable[[], Mapping[str, int]]
    """Since the start: `started`, and by why they were forgotten."""
    reloads: Reloads
    scaling: Callable[[], ScalingStatus]
    standby: Callable[[], StandbyCounts] = StandbyCounts
    queue: Callable[[], QueueStatus] = QueueStatus
    spans: SpanQueue = field(default_factory=SpanQueue)
    variants: VariantStatuses = tuple
    shadows: Callable[[], ShadowStatuses] = ShadowStatuses
    workers: Callable[[], Iterable[WorkerStatus]] = tuple
    """None where one process does everything."""
    control_process_starts: Callable[[], int] = int
    """0 where one process does everything."""
    splits: SplitCounts = field(default_factory=SplitCounts)


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram's value; `counts` are not cumulative."""

    bounds: Sequence[str]
    counts: Sequence[int]
    sum: float


Row = tuple[tuple[str, ...], float | Buckets]
"""Label values and the value of one series."""
Rows = Callable[[], Iterable[Row]]


class LazySamples:
    """Stands where a `Metric` has its list of samples; makes them anew for each reader."""

    __slots__ = ("_rows", "_spec")

    def __init__(self, spec: MetricSpec, rows: Rows) -> None:
        self._spec = spec
        self._rows = rows

    def __iter__(self) -> Iterator[Sample]:
        name = self._spec.name
        for values, value in self._rows():
            labels = dict(zip(self._spec.labels, values, strict=True))
            if isinstance(value, Buckets):
                yield from _histogram(name, labels, value)
            else:
                yield Sample(name, labels, value)


def _reload_rows(reloads: Reloads) -> dict[str, Rows]:
    return {
        "triton_lb_reloads_total": lambda: [
            ((result,), count) for result, count in reloads.counts.items()
        ],
        "triton_lb_last_reload_success": lambda: [((), int(reloads.succeeded))],
        "triton_lb_configuration_timestamp_seconds": lambda: [((), reloads.applied_at)],
        "triton_lb_configuration_info": lambda: [((reloads.digest,), 1)],
    }


def _histogram(name: str, labels: dict[str, str], value: Buckets) -> Iterator[Sample]:
    total = 0
    for bound, total in zip(value.bounds, accumulate(value.counts), strict=True):
        yield Sample(f"{name}_bucket", labels | {"le": bound}, total)
    yield Sample(f"{name}_count", labels, total)
    yield Sample(f"{name}_sum", labels, value.sum)


def make_family(spec: MetricSpec, rows: Rows) -> Metric:
    """A family whose samples are read from `rows` when they are needed."""
    name = spec.name.removesuffix("_total") if spec.type is MetricType.COUNTER else spec.name
    family = Metric(name, spec.help, spec.type.value)
    family.samples = LazySamples(spec, rows)  # type: ignore[assignment]  # all readers iterate
    return family


def make_registry(collector: LoadBalancerCollector) -> CollectorRegistry:
    """A registry of its own with our metrics and those of the process and of Python."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def _bounds(bounds_s: Sequence[float]) -> tuple[str, ...]:
    return (*(str(bound) for bound in bounds_s), "+Inf")


_LATENCY_BOUNDS: Final = _bounds(LATENCY_BOUNDS_S)
_POSITION_BOUNDS: Final = _bounds(POSITION_BOUNDS)
_LAG_BOUNDS: Final = _bounds(LAG_BOUNDS_S)
_LOAD_BOUNDS: Final = _bounds(LOAD_BOUNDS_S)


class LoadBalancerCollector:
    """A collector as `prometheus-client` wants it, over counters that others increment."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._rows: dict[str, Rows] = {
            "triton_lb_build_info": self._build_info,
            "triton_lb_start_time_seconds": lambda: [((), sources.started_at)],
            "triton_lb_event_loop_lag_seconds": self._loop_lag,
            "triton_lb_tasks": lambda: [((), sources.tasks())],
            **worker_rows(sources.workers),
            "triton_lb_control_process_starts_total": self._control_process_starts,
            "triton_lb_held_bytes": lambda: [((), sources.held_bytes())],
            "triton_lb_log_dropped_total": self._dropped_lines,
            "triton_lb_certificate_expiry_timestamp_seconds": self._expiries,
            "triton_lb_certificate_reload_failures_total": lambda: [
                ((), sources.reload_failures())
            ],
            **_reload_rows(sources.reloads),
            "triton_lb_token_requests_total": self._token_requests,
            "triton_lb_token_reload_failures_total": lambda: [((), sources.token_failures())],
            "triton_lb_file_stalls_total": lambda: [
                ((file,), count) for file, count in sources.file_stalls()[0].items()
            ],
            "triton_lb_stalled_file_reads": lambda: [((), sources.file_stalls()[1])],
            "triton_lb_spans_exported_total": lambda: [((), sources.spans.exported)],
            "triton_lb_spans_dropped_total": lambda: sorted(
                ((why,), count) for why, count in sources.spans.dropped.items()
            ),
            "triton_lb_queued_spans": lambda: [((), len(sources.spans.waiting))],
            "triton_lb_connections": self._traffic("connections"),
            "triton_lb_connections_accepted_total": self._traffic("accepted"),
            "triton_lb_connection_errors_total": self._reasons("connection_errors"),
            "triton_lb_open_requests": lambda: [((), sources.open_requests())],
            "triton_lb_requests_total": self._requests,
            "triton_lb_request_duration_seconds": self._durations,
            "triton_lb_operation_requests_total": self._operations,
            "triton_lb_model_requests_total": self._models,
            "triton_lb_model_request_duration_seconds": self._model_times("durations"),
            "triton_lb_model_first_answer_seconds": self._model_times("first_answers"),
            "triton_lb_model_answer_interval_seconds": self._model_times("intervals"),
            "triton_lb_request_errors_total": self._reasons("reasons"),
            "triton_lb_retries_total": self._traffic("retries"),
            **rerun_rows(sources.reruns),
            **split_rows(sources.splits),
            "triton_lb_request_bytes_total": self._traffic("bytes_in"),
            "triton_lb_response_bytes_total": self._traffic("bytes_out"),
            "triton_lb_pool_backends": lambda: [((), len(sources.snapshot().backends))],
            "triton_lb_pool_eligible_backends": self._eligible,
            "triton_lb_backend_up": self._up,
            "triton_lb_backend_state": self._states,
            "triton_lb_backend_state_changes_total": self._state_changes,
            **self._outlier_rows(),
            "triton_lb_backend_models_ready": self._tables("ready"),
            "triton_lb_backend_model_table_age_seconds": self._tables("age_s"),
            "triton_lb_backend_models_missing": self._tables("missing"),
            "triton_lb_backend_settings_differing": self._tables("differing"),
            "triton_lb_backend_configurations_differing": self._tables("reconfigured"),
            "triton_lb_model_ready_backends": lambda: (
                ((model,), count) for model, count in sources.ready_backends()
            ),
            "triton_lb_restored_total": lambda: tuple(sources.restored.items()),
            **placement_rows(sources.placement),
            "triton_lb_model_load_seconds": self._load_times,
            **self._sequence_rows(),
            **self._port_rows(),
            "triton_lb_backend_lost_requests_total": lambda: [
                ((each.name,), each.lost_requests) for each in sources.snapshot().backends
            ],
            "triton_lb_backend_own_calls_total": self._own_calls,
            **self._discovery_rows(),
            **queue_rows(sources.queue, lambda: sources.meter.max_models),
            "triton_lb_queue_wait_seconds": self._queue_waits,
            "triton_lb_queue_position": self._queue_positions,
            **scaling_rows(sources.scaling),
            **standby_rows(sources.standby),
            **self._variant_rows(),
            **self._shadow_rows(),
        }

    def collect(self) -> Iterator[Metric]:
        """All families of the catalogue, in its order."""
        self._sources.meter.retain(frozenset(self._sources.snapshot().backends))
        for spec in COLLECTED:
            yield make_family(spec, self._rows[spec.name])

    # The process

    def _build_info(self) -> Iterator[Row]:
        build = self._sources.build
        yield (build.version, build.python, build.uvloop), 1

    def _load_times(self) -> Iterator[Row]:
        counts = self._sources.placement()
        yield (), Buckets(_LOAD_BOUNDS, counts.load_counts, counts.load_s)

    def _loop_lag(self) -> Iterator[Row]:
        lag = self._sources.loop_lag
        yield (), Buckets(_LAG_BOUNDS, tuple(lag.counts), lag.sum)

    def _expiries(self) -> Iterator[Row]:
        for file, not_after in self._sources.expiries():
            yield (file,), not_after

    def _token_requests(self) -> Iterator[Row]:
        for token, count in tuple(self._sources.token_requests().items()):
            yield (token,), count

    def _dropped_lines(self) -> Iterator[Row]:
        for log, count in self._sources.dropped_lines().items():
            yield (log,), count

    def _control_process_starts(self) -> Iterator[Row]:
        if starts := self._sources.control_process_starts():
            yield (), starts

    # Clients and requests

    def _traffic(self, attribute: str) -> Rows:
        read: Callable[[Traffic], int] = attrgetter(attribute)
        return lambda: (
            ((traffic.protocol.label,), read(traffic)) for traffic in self._sources.meter.traffic
        )

    def _reasons(self, attribute: str) -> Rows:
        read: Callable[[Traffic], dict[Any, int]] = attrgetter(attribute)
        return lambda: (
            ((traffic.protocol.label, reason.value), count)
            for traffic in self._sources.meter.traffic
            for reason, count in tuple(read(traffic).items())
        )

    def _requests(self) -> Iterator[Row]:
        known = frozenset[Backend | None](self._sources.snapshot().backends) | {None}
        for traffic in self._sources.meter.traffic:
            for backend, codes in tuple(traffic.answers.items()):
                if backend in known:
                    name = backend.name if backend else ""
                    yield from _by_code((name,), traffic.protocol, codes)

    def _durations(self) -> Iterator[Row]:
        for traffic in self._sources.meter.traffic:
            for kind, total in traffic.durations():
                value = Buckets(_LATENCY_BOUNDS, total.counts, total.sum)
                yield (traffic.protocol.label, kind.value), value

    def _operations(self) -> Iterator[Row]:
        for traffic in self._sources.meter.traffic:
            for name, usage in tuple(traffic.operations.items()):
                yield (name, traffic.protocol.label), sum(usage.durations.counts)

    def _models(self) -> Iterator[Row]:
        for traffic in self._sources.meter.traffic:
            for model, usage in tuple(traffic.models.items()):
                yield from _by_code((readable(model),), traffic.protocol, usage.codes)

    def _model_times(self, attribute: str) -> Rows:
        read: Callable[[Any], Histogram] = attrgetter(attribute)
        return lambda: (
            ((readable(model),), Buckets(_LATENCY_BOUNDS, tuple(times.counts), times.sum))
            for model, times in self._sources.meter.model_durations(read)
        )

    def _queue_waits(self) -> Iterator[Row]:
        for model, waits in wait_rows(self._sources.queue(), self._sources.meter.max_models):
            yield (model,), Buckets(_LATENCY_BOUNDS, tuple(waits.counts), waits.sum)

    def _queue_positions(self) -> Iterator[Row]:
        for model, positions in position_rows(
            self._sources.queue(), self._sources.meter.max_models
        ):
            yield (model,), Buckets(_POSITION_BOUNDS, tuple(positions.counts), positions.sum)

    def _variant_rows(self) -> dict[str, Rows]:
        statuses = self._sources.variants
        return {
            "triton_lb_variant_share": lambda: [
                ((each.name, each.variant), each.percent / 100) for each in statuses()
            ],
            "triton_lb_variant_requests_total": lambda: [
                ((each.name, each.variant, result), count)
                for each in statuses()
                for result, count in (("good", each.answers - each.errors), ("failed", each.errors))
            ],
            "triton_lb_variant_request_duration_seconds": lambda: [
                (
                    (each.name, each.variant),
                    Buckets(_LATENCY_BOUNDS, tuple(each.durations.counts), each.durations.sum),
                )
                for each in statuses()
            ],
            "triton_lb_variant_rollbacks_total": lambda: [
                ((each.name, each.variant, why), count)
                for each in statuses()
                for why, count in each.rollbacks.items()
            ],
        }

    def _shadow_rows(self) -> dict[str, Rows]:
        statuses = self._sources.shadows
        return {
            "triton_lb_shadow_copies_total": lambda: [
                ((each.name, kind, outcome), count)
                for each in statuses().names
                for (kind, outcome), count in each.outcomes.items()
            ],
            "triton_lb_shadow_duration_seconds": lambda: [
                ((each.name, kind), Buckets(_LATENCY_BOUNDS, tuple(took.counts), took.sum))
                for each in statuses().names
                for kind, took in each.durations.items()
            ],
            "triton_lb_shadow_paused": lambda: [
                ((each.name,), float(each.is_paused)) for each in statuses().names
            ],
            "triton_lb_shadow_compared_total": lambda: [
                ((each.name, kind, result), count)
                for each in statuses().names
                for (kind, result), count in each.compared.items()
            ],
            "triton_lb_shadow_comparisons_dropped_total": lambda: [((), statuses().dropped)],
        }

    # Backends

    def _eligible(self) -> Iterator[Row]:
        snapshot = self._sources.snapshot()
        for protocol in AppProtocol:
            yield (protocol.label,), len(snapshot.ready(protocol))

    def _up(self) -> Iterator[Row]:
        for status in self._sources.statuses():
            yield (status.backend, status.protocol.label), int(status.is_up)

    def _states(self) -> Iterator[Row]:
        for status in self._sources.statuses():
            for state in STATES:
                labels = (status.backend, status.protocol.label, state)
                yield labels, int(state == status.state)

    def _state_changes(self) -> Iterator[Row]:
        for status in self._sources.statuses():
            yield (status.backend, status.protocol.label), status.changes

    def _outlier_rows(self) -> dict[str, Rows]:
        return {
            "triton_lb_backend_ejections_total": self._ejections,
            "triton_lb_backend_ejected": self._conduct("is_ejected"),
            "triton_lb_backend_ejected_models": self._conduct("models"),
            "triton_lb_backend_share": self._conduct("share"),
        }

    def _ejections(self) -> Iterator[Row]:
        for status in self._sources.outliers():
            for reason, count in status.ejections.items():
                yield (status.backend, reason), count

    def _conduct(self, attribute: str) -> Rows:
        read: Callable[[OutlierStatus], float] = attrgetter(attribute)
        return lambda: (((each.backend,), float(read(each))) for each in self._sources.outliers())

    def _tables(self, attribute: str) -> Rows:
        read: Callable[[ModelTableStatus], float] = attrgetter(attribute)
        return lambda: (((each.backend,), read(each)) for each in self._sources.model_tables())

    def _port_rows(self) -> dict[str, Rows]:
        return {
            "triton_lb_backend_in_flight": self._port("in_flight"),
            "triton_lb_backend_connections": self._port("connections"),
            "triton_lb_backend_attempts_total": self._port("attempts"),
            "triton_lb_backend_responses_total": self._responses,
            "triton_lb_backend_failures_total": self._failures,
            "triton_lb_backend_attempt_duration_seconds": self._attempt_durations,
            "triton_lb_backend_sent_bytes_total": self._port("bytes_sent"),
            "triton_lb_backend_received_bytes_total": self._port("bytes_received"),
            "triton_lb_backend_connects_total": self._port("connects"),
            "triton_lb_backend_connect_failures_total": self._port("connect_failures"),
        }

    def _discovery_rows(self) -> dict[str, Rows]:
        return {
            "triton_lb_source_up": self._discovery("is_up"),
            "triton_lb_source_backends": self._discovery("backends"),
            "triton_lb_source_updates_total": self._discovery("updates"),
            "triton_lb_source_failures_total": self._discovery("failures"),
            "triton_lb_source_age_seconds": self._discovery("age_s"),
        }

    def _discovery(self, attribute: str) -> Rows:
        read: Callable[[SourceStatus], float | None] = attrgetter(attribute)
        return lambda: (
            ((each.name,), value)
            for each in self._sources.discovery()
            if (value := read(each)) is not None
        )

    def _sequence_rows(self) -> dict[str, Rows]:
        sources = self._sources
        return {
            "triton_lb_open_sequences": lambda: (
                ((backend, model), count) for backend, model, count in sources.open_sequences()
            ),
            "triton_lb_sequences_started_total": lambda: [
                ((), sources.sequence_counts()["started"])
            ],
            "triton_lb_sequences_forgotten_total": self._forgotten_sequences,
        }

    def _forgotten_sequences(self) -> Iterator[Row]:
        for why, count in self._sources.sequence_counts().items():
            if why != "started":
                yield (why,), count

    def _ports(self) -> Iterator[tuple[str, AppProtocol, Port]]:
        for backend in self._sources.snapshot().backends:
            for protocol in AppProtocol:
                port = backend.ports[protocol]
                if port is not None:
                    yield backend.name, protocol, port

    def _port(self, attribute: str) -> Rows:
        read: Callable[[Port], int] = attrgetter(attribute)
        return lambda: (
            ((name, protocol.label), read(port)) for name, protocol, port in self._ports()
        )

    def _responses(self) -> Iterator[Row]:
        for name, protocol, port in self._ports():
            yield from _by_code((name,), protocol, port.codes)

    def _failures(self) -> Iterator[Row]:
        for name, protocol, port in self._ports():
            for reason, count in tuple(port.failures.items()):
                yield (name, protocol.label, reason), count

    def _attempt_durations(self) -> Iterator[Row]:
        # A histogram is as long as all else of a port: those that have nothing to say are left out.
        for name, protocol, port in self._ports():
            if not any(port.latency.counts):
                continue
            value = Buckets(_LATENCY_BOUNDS, tuple(port.latency.counts), port.latency.sum)
            yield (name, protocol.label), value

    def _own_calls(self) -> Iterator[Row]:
        self._sources.own_calls.retain(frozenset(self._sources.snapshot().backends))
        for (operation, backend, outcome), count in tuple(self._sources.own_calls.counts.items()):
            yield (operation, backend.name, outcome), count


def _by_code(
    first: tuple[str, ...], protocol: AppProtocol, codes: Mapping[int, int]
) -> Iterator[Row]:
    """Counts by code label; codes without a label of their own are added up."""
    counts: dict[str, int] = {}
    for code, count in tuple(codes.items()):
        label = code_label(protocol, code)
        counts[label] = counts.get(label, 0) + count
    for label, count in counts.items():
        yield (*first, protocol.label, label), count
