"""Workers in the live document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from lb.admin.live_document import LiveWorker
from lb.telemetry.counts import WorkerStatus

_SILENT_S: Final = 3.0
"""A worker tells its counts every tenth of a second, with very many backends every second. One that
has not for longer stands still."""


def live_worker_rows(
    statuses: Iterable[WorkerStatus], old: Mapping[int, WorkerStatus], window_s: float | None
) -> list[LiveWorker]:
    """Describe the workers.

    Args:
        statuses: as they are now.
        old: as they were before, by index.
        window_s: how many seconds before; None where there is nothing to compare.
    """
    return [_row(each, old.get(each.index), window_s) for each in statuses]


def _row(status: WorkerStatus, old: WorkerStatus | None, window_s: float | None) -> LiveWorker:
    row = LiveWorker(
        index=status.index,
        pid=status.pid,
        state="serving",
        since_s=round(status.since_s, 1),
        restarts=max(0, status.starts - 1),
        connections=status.connections,
        in_flight=status.in_flight,
        requests=None,
        cpu=None,
    )
    if not status.pid:
        row["state"] = "away"
    elif status.silent_s > _SILENT_S:
        row["state"], row["since_s"] = "silent", round(status.silent_s, 1)
    if window_s is not None and old is not None and status.pid and old.pid == status.pid:
        row["requests"] = round((status.requests - old.requests) / window_s, 2)
        row["cpu"] = round((status.cpu_s - old.cpu_s) / window_s, 3)
    return row
