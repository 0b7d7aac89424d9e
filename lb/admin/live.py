"""Computes the live document, at most once a second for all who look, and not at all otherwise.

It is made in steps of a fraction of a millisecond, between which the event loop does other things.
What would grow with models times backends is bounded: rows are renewed in turn (`live_rows.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from lb.admin.live_document import MOST_BACKENDS, LiveDocument, LiveSummary, LiveVariant, LiveWorker
from lb.admin.live_placement import placement_rows
from lb.admin.live_rows import (
    STALE_S,
    BackendRows,
    ChangeRows,
    History,
    ModelRows,
    milliseconds,
    to_json_bytes,
)
from lb.admin.live_variants import variant_rows
from lb.admin.live_workers import live_worker_rows
from lb.admin.verdict import HARMLESS, judge
from lb.admin.views import quantile
from lb.control.directory import BackendDirectory
from lb.control.model_placement import PlacementStatus
from lb.control.record import BackendRecord
from lb.domain.backend import AppProtocol, Backend, BackendState
from lb.domain.operation import OperationKind
from lb.domain.outcome import Reason
from lb.domain.pool import PoolSnapshot
from lb.domain.schedule import ModelBackendView, ModelQueueView
from lb.domain.server_errors import is_service_error
from lb.telemetry.collector import ModelTableStatus
from lb.telemetry.counts import RerunCounts, WorkerStatus
from lb.telemetry.meter import Meter
from lb.telemetry.variants import VariantStatuses

EVERY_S: Final = 1.0
"""How often the document is computed while somebody looks."""
_NO_ERROR: Final = frozenset({Reason.CLIENT_GONE, Reason.OVERTAKEN})
"""Ends of requests that are nobody's failure."""
BACKEND_STATUS: Final = "backend_status"
"""Stands for failures that a backend answered with itself."""
_WORST_FIRST: Final = (
    BackendState.DOWN,
    BackendState.UNREADY,
    BackendState.EJECTED,
    BackendState.SUSPECTED,
    BackendState.PARTIAL,
    BackendState.STARTING,
    BackendState.UP,
    BackendState.DRAINING,
    BackendState.DISABLED,
    BackendState.STANDBY,
    BackendState.REMOVING,
)
_RANK: Final = {state: rank for rank, state in enumerate(_WORST_FIRST)}


def _nothing() -> Iterable[ModelTableStatus]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSources:
    """Where the document's figures come from. Callables are asked for each document."""

    directory: BackendDirectory
    meter: Meter
    version: str
    wall: Callable[[], float]
    """Unix time in seconds."""
    queued: Callable[[], int]
    oldest_s: Callable[[float], float]
    model_queues: Callable[[float], Iterable[ModelQueueView]]
    model_backends: Callable[[Collection[bytes]], Iterable[ModelBackendView]]
    """Reads the scheduler's figures of models with these names."""
    wait_reasons: Callable[[], Mapping[tuple[bytes, str], int]]
    """Requests that had to wait since the start, by model and reason."""
    reruns: Callable[[], RerunCounts]
    hedges: Callable[[], Mapping[bytes, int]]
    """Requests that were sent to a second backend beside the first, by model."""
    replicas: Callable[[], Iterable[str]]
    """URLs of other processes' admin APIs."""
    tables: Callable[[], Iterable[ModelTableStatus]] = _nothing
    """How the models of each backend compare with those of the others."""
    variants: VariantStatuses = tuple
    shadows: Callable[[], list[LiveVariant]] = list
    """Rows of shadows, behind those of variants."""
    placement: Callable[[], PlacementStatus] = PlacementStatus
    workers: Callable[[], Iterable[WorkerStatus]] = tuple


@dataclass(slots=True)
class _Reading:
    """Counters at one time."""

    requests: int = 0
    durations: list[int] = field(default_factory=list)
    """Latencies of inferences by bucket."""
    errors: dict[str, int] = field(default_factory=dict)
    """Requests that we answered with an error, by reason."""
    failed: int = 0
    """Requests whose status says that the service failed, whoever gave it."""
    retries: int = 0
    hedges: int = 0
    workers: dict[int, WorkerStatus] = field(default_factory=dict)
    """By index."""


class LiveView:
    """Makes the document and keeps the newest one."""

    def __init__(self, sources: LiveSources, clock: Callable[[], float] = monotonic) -> None:
        self._sources = sources
        self._clock = clock
        self._started_at = clock()
        self._history: History[_Reading] = History()
        self._backends = BackendRows(sources.model_backends, sources.tables)
        self._models = ModelRows(sources.meter, sources.wait_reasons, sources.hedges)
        self._changes = ChangeRows()
        self._made_at = -EVERY_S
        self.text = b""
        """The newest document as JSON; empty before the first one."""

    @property
    def has_rates(self) -> bool:
        """Whether the next document will have rates that are of the last seconds."""
        now = self._clock()
        return any(EVERY_S / 2 <= age <= STALE_S for age in self._history.ages(now))

    @property
    def age_s(self) -> float:
        """How old the newest document is, in seconds."""
        return self._clock() - self._made_at

    def make(self) -> Iterator[None]:
        """Make a new document, a step whenever the iterator is advanced."""
        sources = self._sources
        yield from sources.meter.settle()
        now, directory = self._clock(), sources.directory
        # Backends come and go between steps.
        members = directory.records
        records = sorted(members, key=lambda each: _RANK[each.state])
        shown = records[:MOST_BACKENDS]
        snapshot = directory.ref.current
        new = self._read()
        window_s, old = self._history.add(now, new) or (None, new)
        workers = live_worker_rows(new.workers.values(), old.workers, window_s)
        summary = self._summarize(records, snapshot, workers, now, new, old, window_s)
        yield
        queues = _queues(sources.model_queues(now)) if sources.queued() else {}
        yield
        yield from self._models.renew(snapshot, queues, now)
        in_order = shown if len(members) > len(shown) else members
        yield from self._backends.renew(in_order, self._models.busy, now)
        shell = LiveDocument(
            version=sources.version,
            at=round(sources.wall(), 3),
            uptime_s=round(now - self._started_at, 1),
            replicas=[*sources.replicas()],
            window_s=None if window_s is None else round(window_s, 3),
            summary=summary,
            backends=[],
            backends_total=len(records),
            models=[],
            models_total=self._models.total,
            variants=variant_rows(sources.variants()) + sources.shadows(),
            placement=placement_rows(sources.placement()),
            workers=workers,
            changes=[],
        )
        self.text = _fill(
            to_json_bytes(shell),
            backends=self._backends.json(shown),
            models=self._models.json(),
            changes=self._changes.json(directory.changes.newest_first(), now, sources.wall()),
        )
        self._made_at = now

    def _summarize(
        self,
        records: Sequence[BackendRecord],
        snapshot: PoolSnapshot,
        workers: Sequence[LiveWorker],
        now: float,
        new: _Reading,
        old: _Reading,
        window_s: float | None,
    ) -> LiveSummary:
        """Make the summary.

        Args:
            records: all backends, those with the worst state first.
            snapshot: says who may get requests.
            workers: their rows.
            now: monotonic seconds.
            new: counters as they are now.
            old: counters to compare them with.
            window_s: how many seconds older those are; None where there are none.
        """
        sources = self._sources
        durations = new.durations
        if old.durations:
            durations = [a - b for a, b in zip(durations, old.durations, strict=True)]
        errors = _errors(old, new, window_s)
        requests = _rate(old.requests, new.requests, window_s)
        oldest_s = sources.oldest_s(now)
        verdict, why = judge(
            records,
            is_usable=any(snapshot.ready(each) or snapshot.partial[each] for each in AppProtocol),
            errors=errors,
            requests=requests,
            oldest_s=oldest_s,
            workers=workers,
            now=now,
        )
        return LiveSummary(
            verdict=verdict,
            why=why,
            up=sum(each.state is BackendState.UP for each in records),
            backends=len(records),
            requests=requests,
            p50_ms=milliseconds(quantile(durations, 0.5)),
            p99_ms=milliseconds(quantile(durations, 0.99)),
            errors=errors,
            in_flight=sum([each.backend.in_flight for each in records]),
            queued=sources.queued(),
            oldest_ms=round(oldest_s * 1000, 1),
            retries=_rate(old.retries, new.retries, window_s),
            hedges=_rate(old.hedges, new.hedges, window_s),
        )

    def _read(self) -> _Reading:
        sources = self._sources
        reruns = sources.reruns()
        workers = {each.index: each for each in sources.workers()}
        reading = _Reading(hedges=reruns.hedges, workers=workers)
        for traffic in sources.meter.traffic:
            reading.retries += traffic.retries
            for usage in traffic.operations.values():
                if usage.kind is OperationKind.INFERENCE:
                    counts = usage.durations.counts
                    reading.durations = (
                        [a + b for a, b in zip(reading.durations, counts, strict=True)]
                        if reading.durations
                        else list(counts)
                    )
                elif usage.kind is OperationKind.STREAM:
                    reading.requests += sum(usage.durations.counts)
            for reason, count in traffic.reasons.items():
                if reason not in _NO_ERROR:
                    label = reason.value
                    reading.errors[label] = reading.errors.get(label, 0) + count
            reading.failed += _failed(traffic.protocol, traffic.answers)
        reading.requests += sum(reading.durations)
        return reading


def _rate(old: int, new: int, window_s: float | None) -> float | None:
    """How fast a counter grows, per second; None where there is nothing to compare."""
    return None if window_s is None else round((new - old) / window_s, 2)


def _errors(old: _Reading, new: _Reading, window_s: float | None) -> dict[str, float]:
    """Failures per second by reason, without reasons that do not occur."""
    if window_s is None:
        return {}
    found = {
        reason: count - old.errors.get(reason, 0)
        for reason, count in new.errors.items()
        if count > old.errors.get(reason, 0)
    }
    ours = sum(count for reason, count in found.items() if reason not in HARMLESS)
    theirs = new.failed - old.failed - ours
    if theirs > 0:
        found[BACKEND_STATUS] = theirs
    return {reason: round(count / window_s, 2) for reason, count in found.items()}


def _fill(shell: bytes, **arrays: Iterable[bytes]) -> bytes:
    """Put elements into the empty arrays of a JSON object.

    Args:
        shell: the object. Quotes inside of its texts are escaped, so no text looks like a field.
        arrays: elements by field, in the order of the fields.
    """
    parts = []
    for field_name, elements in arrays.items():
        head, key, shell = shell.partition(b'"%b":[' % field_name.encode())
        parts += [head, key, b",".join(elements)]
    return b"".join((*parts, shell))


def _queues(views: Iterable[ModelQueueView]) -> dict[bytes, tuple[int, float]]:
    """Queued requests and the age of the oldest, by model; versions together."""
    found: dict[bytes, tuple[int, float]] = {}
    for view in views:
        if view.waiting:
            count, oldest_s = found.get(view.model, (0, 0.0))
            found[view.model] = (
                count + sum(view.waiting.values()),
                max(oldest_s, view.oldest_s),
            )
    return found


def _failed(protocol: AppProtocol, answers: Mapping[Backend | None, Mapping[int, int]]) -> int:
    """Requests that ended with an error of the service."""
    return sum(
        [
            count
            for codes in answers.values()
            for code, count in codes.items()
            if is_service_error(protocol, code)
        ]
    )
