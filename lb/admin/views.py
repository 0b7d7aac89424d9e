"""Makes the models that the admin API returns from the records of the control plane."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from lb.admin.models import (
    Backend,
    ChangedShare,
    Device,
    Drift,
    FailedLoad,
    Latency,
    Load,
    Model,
    ModelBackend,
    ModelDrain,
    ModelQueue,
    Models,
    PlacedModel,
    PlacementStep,
    PlacementView,
    Port,
    Source,
    Standby,
    Status,
    WantedModel,
)
from lb.admin.models import Variant as VariantView
from lb.admin.models import VariantSet as VariantSetView
from lb.control.directory import BackendDirectory
from lb.control.drift import DriftComparison
from lb.control.model_placement import PlacementStatus
from lb.control.record import BackendRecord, PortRecord
from lb.domain.backend import LATENCY_BOUNDS_S, BackendState, Histogram
from lb.domain.backend import Backend as DomainBackend
from lb.domain.load import LoadReport
from lb.domain.model import ModelUse
from lb.domain.names import readable
from lb.domain.schedule import ModelBackendView, ModelQueueView
from lb.domain.standby import StandbyStatus
from lb.proxy.variants import VariantSet
from lb.settings.choices import PlacementMode
from lb.telemetry.collector import SourceStatus
from lb.telemetry.queue import QueueStatus
from lb.telemetry.variants import VariantStatus

_ON_DEMAND: Final = PlacementMode.ON_DEMAND.value


def variant_set_view(split: VariantSet, statuses: Iterable[VariantStatus]) -> VariantSetView:
    """Describe a name and its variants.

    Args:
        split: the name.
        statuses: of its variants.
    """
    return VariantSetView(
        model=readable(split.name),
        changed=split.changed,
        why=split.why,
        variants=[
            VariantView(
                name=each.variant,
                model=each.model,
                version=each.version,
                percent=round(each.percent, 3),
                file_percent=round(each.file_percent, 3),
                ready=each.is_ready,
                answers=each.answers,
                errors=each.errors,
                latency=latency_view((each.durations,)),
            )
            for each in statuses
        ],
    )


def status_view(
    directory: BackendDirectory, version: str, variants: Iterable[VariantStatus]
) -> Status:
    """Sum up a process.

    Args:
        directory: of the backends.
        version: of triton-lb.
        variants: of all names.
    """
    records = directory.records
    not_up = {
        each.backend.name: each.state.value for each in records if each.state is not BackendState.UP
    }
    return Status(
        version=version,
        backends=len(records),
        up=len(records) - len(not_up),
        not_up=not_up,
        in_flight=sum(each.backend.in_flight for each in records),
        served=sum(_served(port) for each in records for port in each.ports),
        changed_shares=[
            ChangedShare(
                variant=f"{each.name}/{each.variant}",
                percent=each.percent,
                file_percent=each.file_percent,
                changed=each.changed,
            )
            for each in variants
            if each.differs
        ],
    )


def backend_view(record: BackendRecord, now: float) -> Backend:
    """Describe one backend at the time `now`."""
    backend = record.backend
    ports = {port.protocol.label: _port(port, now) for port in record.ports}
    return Backend(
        name=backend.name,
        state=record.state.value,
        why=record.why,
        since_s=_seconds_between(record.since, now),
        in_flight=backend.in_flight,
        open_sequences=backend.open_sequences,
        served=sum(port.served for port in ports.values()),
        latency=latency_view(port.port.latency for port in record.ports),
        weight=backend.spec.weight,
        share=round(backend.share, 3),
        set_aside=backend.set_aside,
        max_requests=backend.spec.max_in_flight,
        empty=record.is_empty,
        origin=record.member.origin,
        cut_in_s=None if record.finish_by is None else _seconds_between(now, record.finish_by),
        standby=None if record.standby is None else _standby(record.standby, now),
        load=_load(record.load, now),
        ports=ports,
    )


def _standby(status: StandbyStatus, now: float) -> Standby:
    return Standby(
        rank=status.rank,
        phase=status.phase.value,
        since_s=_seconds_between(status.since, now),
        cause=status.cause,
        error=status.error,
        failures=status.failures,
        retry_in_s=_seconds_between(now, status.retry_at) if status.retry_at > now else None,
        cold_start_s=_rounded(status.cold_start_s),
    )


def _port(record: PortRecord, now: float) -> Port:
    port = record.port
    probe = record.last_result
    return Port(
        address=str(port.address),
        state=record.health.state.value,
        why=record.why,
        since_s=_seconds_between(record.since, now),
        changes=record.changes,
        in_flight=port.in_flight,
        connections=port.connections,
        served=_served(record),
        failed=sum(port.failures.values()),
        latency=latency_view((port.latency,)),
        probe_ms=_ms(probe.latency_s) if probe is not None else None,
    )


def _served(record: PortRecord) -> int:
    return sum(record.port.codes.values())


def _load(report: LoadReport | None, now: float) -> Load:
    if report is None:
        return Load(age_s=None, pending=0.0, others=None, devices=[])
    return Load(
        age_s=_seconds_between(report.at, now),
        pending=report.pending,
        others=_rounded(report.others),
        devices=[
            Device(
                id=readable(each.device),
                utilization=_rounded(each.utilization),
                memory_used_bytes=each.memory_used,
                memory_total_bytes=each.memory_total,
            )
            for each in report.devices
        ],
    )


def models_view(directory: BackendDirectory, record: BackendRecord, now: float) -> Models:
    """Describe what is known of the models of one backend at the time `now`, but for `models`:
    these are `model_views`."""
    table = record.models
    drift = DriftComparison(directory).drift(record)
    return Models(
        listed=table.lists,
        age_s=_rounded(table.age_s(now)),
        models=[],
        regions=sorted(map(readable, record.regions)),
        drift=Drift(
            models=list(drift.models),
            configurations=list(drift.configurations),
            settings=list(drift.settings),
        ),
    )


def model_views(record: BackendRecord, status: PlacementStatus) -> Iterator[Model]:
    """Describe the models of one backend one by one, in the order of its list."""
    table = record.models
    name = record.backend.name
    otherwise = "on demand" if name in status.managed and status.mode == _ON_DEMAND else ""
    placed = {
        each.model: each.kept or "may be evicted" for each in status.models if each.backend == name
    }
    for entry in table.entries:
        yield Model(
            name=readable(entry.name),
            version=readable(entry.version),
            state=table.state_of(entry).value,
            reason=entry.reason,
            draining=entry.name in record.drained_models,
            placement=placed.get(entry.name, otherwise),
        )


def model_drain_view(
    record: BackendRecord, model: bytes, use_of: Callable[[DomainBackend, bytes], ModelUse]
) -> ModelDrain:
    """Describe what of one model runs on one backend, which `use_of` counts."""
    use = use_of(record.backend, model)
    return ModelDrain(
        backend=record.backend.name,
        model=readable(model),
        draining=model in record.drained_models,
        in_flight=use.in_flight + use.idle_streams,
        open_sequences=use.open_sequences,
        empty=not any(use),
    )


def queue_views(status: QueueStatus) -> Iterator[ModelQueue]:
    """Describe the queues one by one, in the order of their models' names."""
    by_model: dict[tuple[bytes, bytes], list[ModelBackendView]] = {}
    for each in status.model_backends:
        by_model.setdefault((each.model, each.version), []).append(each)
    for queue in sorted(status.model_queues, key=lambda each: (each.model, each.version)):
        yield _model_queue(queue, by_model.get((queue.model, queue.version), []))


def _model_queue(queue: ModelQueueView, backends: list[ModelBackendView]) -> ModelQueue:
    return ModelQueue(
        model=readable(queue.model),
        version=readable(queue.version),
        waiting={str(priority + 1): count for priority, count in sorted(queue.waiting.items())},
        oldest_ms=round(queue.oldest_s * 1000, 3),
        backends=[
            _model_backend(each) for each in sorted(backends, key=lambda each: each.backend.name)
        ],
    )


def _model_backend(view: ModelBackendView) -> ModelBackend:
    is_known = view.expected_s > 0
    return ModelBackend(
        name=view.backend.name,
        in_flight=view.in_flight,
        limit=view.limit,
        backend_in_flight=view.backend.in_flight,
        backend_set_aside=view.backend.set_aside,
        expected_ms=_ms(view.expected_s) if is_known else None,
        row_ms=_ms(view.row_s) if is_known else None,
        learnt=view.learnt,
        slowed=round(view.slowed, 3),
    )


def placement_view(status: PlacementStatus, now: float) -> PlacementView:
    """Describe which models are loaded where, and what is done about it."""
    return PlacementView(
        mode=status.mode,
        max_models=status.max_models,
        memory_bytes=status.memory,
        unreturned_bytes=dict(status.unreturned),
        backends=list(status.managed),
        left_alone=list(status.left_alone),
        models=[
            PlacedModel(
                model=readable(each.model),
                backend=each.backend,
                state=each.state,
                age_s=_rounded(each.age_s),
                value=round(each.value, 3),
                load=round(each.load, 3),
                size_bytes=each.size,
                size_source=each.size_source,
                kept=each.kept,
            )
            for each in status.models
        ],
        wanted=[
            WantedModel(model=readable(model), for_s=round(for_s, 3))
            for model, for_s in status.wanted
        ],
        steps=[
            PlacementStep(
                model=readable(each.model or b""),
                backend=each.backend,
                evict=list(map(readable, each.evict)),
                before=list(map(readable, each.before)),
            )
            for each in status.steps
        ],
        failures=[
            FailedLoad(
                model=readable(model),
                backend=backend,
                error=failure.error,
                failures=failure.times,
                retry_in_s=_seconds_between(now, failure.until),
            )
            for model, backend, failure in status.failures
        ],
    )


def source_view(status: SourceStatus) -> Source:
    """Describe one source of backends."""
    return Source(
        name=status.name,
        backends=status.backends,
        updates=status.updates,
        failures=status.failures,
        age_s=_rounded(status.age_s),
        error=status.error,
    )


def _seconds_between(earlier: float, later: float) -> float:
    return round(max(0.0, later - earlier), 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def latency_view(histograms: Iterable[Histogram]) -> Latency:
    counts = [sum(column) for column in zip(*(each.counts for each in histograms), strict=True)]
    return Latency(p50_ms=_ms(quantile(counts, 0.5)), p99_ms=_ms(quantile(counts, 0.99)))


def quantile(counts: list[int], share: float) -> float | None:
    """Estimate a quantile in seconds from the bucket counts of a latency histogram.

    The estimate is linear inside a bucket, as Prometheus' `histogram_quantile`, and never above the
    last bound.

    Returns:
        None when all buckets are empty.
    """
    rank = share * sum(counts)
    if not rank:
        return None
    below = 0
    lower = 0.0
    for bound, count in zip(LATENCY_BOUNDS_S, counts, strict=False):
        if below + count >= rank:
            return lower + (bound - lower) * (rank - below) / count
        below += count
        lower = bound
    return lower
