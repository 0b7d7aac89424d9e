"""How things stand, for the admin API, the demo and metrics: values, made when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lb.control.directory import BackendDirectory
from lb.control.record import BackendRecord, PortRecord
from lb.domain.backend import LATENCY_BOUNDS_S, AdminState, AppProtocol, BackendState, Histogram
from lb.domain.load import DeviceLoad, LoadReport
from lb.telemetry.collector import ConductStatus, PortStatus


@dataclass(frozen=True, slots=True)
class LatencyView:
    """Quantiles of the time that answered attempts took, since the start; None: none yet."""

    p50_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class PortView:
    """One port of one backend."""

    protocol: AppProtocol
    address: str
    state: BackendState
    """What the probes say."""
    why: str
    since_s: float
    """Seconds in this state."""
    changes: int
    in_flight: int
    connections: int
    served: int
    failed: int
    probe_latency_s: float | None
    """Of the last probe."""
    latency: LatencyView


@dataclass(frozen=True, slots=True)
class LoadView:
    """What a backend says of how much it has to do, for everybody."""

    age_s: float | None
    """Since it said so; None: it does not."""
    pending: float
    """Requests that wait there."""
    others: float | None
    """Part of the time in which others keep its devices busy; None: that cannot be told."""
    devices: tuple[DeviceLoad, ...]


@dataclass(frozen=True, slots=True)
class BackendView:
    """One backend."""

    name: str
    state: BackendState
    """What the operator says, else the worst of its ports."""
    why: str
    since_s: float
    in_flight: int
    open_sequences: int
    """Of stateful models; a draining backend goes on with those that it has."""
    served: int
    weight: float
    share: float
    """What part of its weight counts; less than 1 while it starts slowly."""
    max_in_flight: int
    empty: bool
    """Nothing is in flight, and no sequence is open: one that drains may be stopped."""
    latency: LatencyView
    ports: tuple[PortView, ...]
    origin: str
    """What names it: the configuration, a source, the operator."""
    cut_in_s: float | None
    """Seconds until what still runs on one that drains or leaves is cut; None: never."""
    load: LoadView


def backend_view(record: BackendRecord, now: float) -> BackendView:
    """Describe one backend."""
    backend = record.backend
    ports = tuple(_port_view(port, now) for port in record.ports)
    return BackendView(
        name=backend.name,
        state=record.state,
        why=_why(record),
        since_s=now - record.since,
        in_flight=backend.in_flight,
        open_sequences=backend.open_sequences,
        served=sum(port.served for port in ports),
        weight=backend.spec.weight,
        share=backend.share,
        max_in_flight=backend.max_in_flight,
        empty=not (backend.in_flight or backend.open_sequences),
        latency=_latency(port.port.latency for port in record.ports),
        ports=ports,
        origin=record.member.origin,
        cut_in_s=None if record.finish_by is None else max(record.finish_by - now, 0.0),
        load=_load(record.load, now),
    )


def _load(report: LoadReport | None, now: float) -> LoadView:
    if report is None:
        return LoadView(None, 0.0, None, ())
    return LoadView(max(0.0, now - report.at), report.pending, report.others, report.devices)


def _why(record: BackendRecord) -> str:
    reasons = [f"{port.protocol.label}: {port.why}" for port in record.ports if port.why]
    if record.conduct:
        reasons.append(record.conduct)
    if record.admin is AdminState.LEAVING:
        reasons.insert(0, "removed")
    elif record.admin is not AdminState.ENABLED:
        reasons.insert(0, "operator")
    return "; ".join(reasons)


def _port_view(record: PortRecord, now: float) -> PortView:
    port = record.port
    return PortView(
        protocol=record.protocol,
        address=str(port.address),
        state=record.health.state,
        why=record.why,
        since_s=now - record.since,
        changes=record.changes,
        in_flight=port.in_flight,
        connections=port.connections,
        served=sum(port.codes.values()),
        failed=sum(port.failures.values()),
        probe_latency_s=record.last_result.latency_s if record.last_result else None,
        latency=_latency((port.latency,)),
    )


def port_statuses(directory: BackendDirectory) -> Iterator[PortStatus]:
    """Describe every port for the metrics page."""
    snapshot = directory.ref.current
    ready = {protocol: set(snapshot.ready(protocol)) for protocol in AppProtocol}
    for record in directory.records:
        for port in record.ports:
            yield PortStatus(
                backend=record.backend.name,
                protocol=port.protocol,
                state=_port_state(record, port).value,
                is_up=record.backend in ready[port.protocol],
                changes=port.changes,
            )


def _port_state(record: BackendRecord, port: PortRecord) -> BackendState:
    if record.admin is not AdminState.ENABLED:
        return record.state
    state = port.health.state
    return BackendState.EJECTED if record.is_ejected and state is BackendState.UP else state


def conduct_statuses(directory: BackendDirectory) -> Iterator[ConductStatus]:
    """Describe what live traffic says of every backend, for the metrics page."""
    for record in directory.records:
        backend = record.backend
        yield ConductStatus(
            backend=backend.name,
            is_ejected=record.is_ejected,
            models=len(directory.passive.models.get(backend, ())),
            share=backend.share,
            ejections=directory.passive.counts.get(backend, {}),
        )


def _latency(histograms: Iterable[Histogram]) -> LatencyView:
    counts = [sum(column) for column in zip(*(each.counts for each in histograms), strict=True)]
    return LatencyView(quantile(counts, 0.5), quantile(counts, 0.99))


def quantile(counts: list[int], share: float) -> float | None:
    """Estimate a quantile in seconds from bucket counts; None when all are empty.

    Linear inside a bucket, as Prometheus' `histogram_quantile`; above the last bound it is that.
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
