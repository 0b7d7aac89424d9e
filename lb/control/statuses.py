"""The state of backends as values, for the metrics page."""

from __future__ import annotations

from collections.abc import Iterator

from lb.control.directory import BackendDirectory
from lb.control.record import BackendRecord, PortRecord
from lb.domain.backend import AdminState, AppProtocol, BackendState
from lb.telemetry.collector import OutlierStatus, PortStatus


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


def outlier_statuses(directory: BackendDirectory) -> Iterator[OutlierStatus]:
    """Describe what live traffic says of every backend, for the metrics page."""
    for record in directory.records:
        backend = record.backend
        yield OutlierStatus(
            backend=backend.name,
            is_ejected=record.is_ejected,
            models=len(directory.passive.models.get(backend, ())),
            share=backend.share,
            ejections=directory.passive.counts.get(backend, {}),
        )
