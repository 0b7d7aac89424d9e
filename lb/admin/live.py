"""Computes the live document, at most once a second for all who look, and not at all otherwise.

What would grow with models times backends is bounded: a document reads the scheduler's figures of
a few main models, and as many lines of the lists of models as `_ENTRIES_PER_DOCUMENT` says.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice
from time import monotonic
from typing import Final, NamedTuple

from pydantic_core import PydanticSerializationError, to_json

from lb.admin.live_document import (
    MOST_BACKENDS,
    MOST_MODELS,
    GpuUse,
    LearntTime,
    LiveBackend,
    LiveChange,
    LiveDocument,
    LiveModel,
    LiveSummary,
    ModelCountsOfBackend,
    Verdict,
)
from lb.admin.live_variants import variant_rows
from lb.admin.views import quantile
from lb.control.directory import BackendDirectory
from lb.control.record import BackendRecord, text
from lb.domain.backend import AppProtocol, Backend, BackendState
from lb.domain.durations import short_duration
from lb.domain.model import ModelState
from lb.domain.operation import OperationKind
from lb.domain.outcome import Reason
from lb.domain.pool import ModelRoute, Placements, PoolSnapshot
from lb.domain.schedule import ModelBackendView, ModelQueueView
from lb.health.models import Version
from lb.telemetry.collector import ModelTableStatus
from lb.telemetry.counts import RerunCounts
from lb.telemetry.labels import OTHER, is_failure
from lb.telemetry.meter import Meter
from lb.telemetry.variants import VariantStatuses
from lb.wire.grpc.status import GrpcStatus

EVERY_S: Final = 1.0
"""How often the document is computed while somebody looks."""
WINDOW_S: Final = 5.0
"""Rates and quantiles are of this time: long enough for a p99, short enough to see a failure."""
PAST_S: Final = 300.0
_STALE_S: Final = 2 * WINDOW_S
"""Readings older than this are of the last time that somebody looked."""
_MAIN_CELLS: Final = 300
"""Learnt times in one document, of all backends together; each costs about 3 us."""
_SLOW_PER_DOCUMENT: Final = 25
"""Backends whose models, GPUs and learnt times are looked at for one document; the others are
shown with those of a few seconds ago."""
_MAIN_MODELS: Final = 3
_ROWS_PER_DOCUMENT: Final = 70
"""Backends whose figures are renewed for one document, and all whose state has changed; in larger
pools the others are shown with those of a second or two ago."""
_ENTRIES_PER_DOCUMENT: Final = 2000
"""Lines of lists of models that are looked at for one document: about half a millisecond."""
_TABLES_EVERY_S: Final = 10.0
"""How often backends are compared by their models, which takes longer than a document."""
_NAMED: Final = 8
_SLOW_QUEUE_S: Final = 1.0
"""Requests that wait longer than this in the queue are worth a word."""
_BAD_SHARE: Final = 0.05
"""Part of the requests that fail, from which the state is bad."""
_NO_ERROR: Final = frozenset({Reason.CLIENT_GONE, Reason.OVERTAKEN})
"""Ends of requests that are nobody's failure."""
_OF_CLIENTS: Final = frozenset(
    each.value
    for each in (
        Reason.BAD_REQUEST, Reason.HEAD_TOO_LARGE, Reason.BODY_TOO_LARGE, Reason.UNSUPPORTED,
        Reason.HEAD_TIMEOUT, Reason.BODY_TIMEOUT, Reason.CLIENT_STALLED, Reason.FLOOD,
        Reason.UNAUTHENTICATED, Reason.FORBIDDEN, Reason.CONTROL_REFUSED, Reason.RATE_LIMITED,
        Reason.CONCURRENCY_LIMITED, Reason.SEQUENCE_ID, Reason.DEADLINE,
    )
)  # fmt: skip
"""Errors that a client may cause whatever the backends do: shown, but no reason for alarm."""
BACKEND_STATUS: Final = "backend_status"
"""Stands for failures that a backend answered with itself."""
_INTENDED: Final = frozenset({BackendState.DRAINING, BackendState.DISABLED, BackendState.LEAVING})
"""States that an operator wanted."""
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
    BackendState.LEAVING,
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
    tables: Callable[[], Iterable[ModelTableStatus]] = _nothing
    """How the models of each backend compare with those of the others."""
    variants: VariantStatuses = tuple


@dataclass(slots=True)
class _Reading:
    """Counters at one time; two of them make rates."""

    at: float
    requests: int = 0
    durations: list[int] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    """Requests that we answered with an error, by reason."""
    failed: int = 0
    """Requests whose status says that the service failed, whoever gave it."""
    retries: int = 0
    hedges: int = 0
    backends: dict[Backend, tuple[int, int, int, float]] = field(default_factory=dict)
    """Attempts completed, failed ones, those with a latency, and the sum of that in seconds."""
    models: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Requests and failures."""
    model_durations: dict[bytes, list[int]] = field(default_factory=dict)
    """Latencies of successful inferences by bucket."""
    waits: dict[tuple[bytes, str], int] = field(default_factory=dict)


class _Details(NamedTuple):
    """What is shown of a backend and takes longer to find out."""

    main_models: list[LearntTime]
    models: ModelCountsOfBackend | None
    gpu: GpuUse | None


_NO_DETAILS: Final = _Details([], None, None)


class LiveView:
    """Makes the document and keeps the newest one."""

    def __init__(self, sources: LiveSources, clock: Callable[[], float] = monotonic) -> None:
        self._sources = sources
        self._clock = clock
        self._started_at = clock()
        self._readings: deque[_Reading] = deque()
        self._document: LiveDocument | None = None
        self._text = b""
        self._made_at = -EVERY_S
        self._tables: dict[str, ModelTableStatus] = {}
        self._tables_due = 0.0
        self._loading = _LoadingCounts()
        self._details: dict[BackendRecord, _Details] = {}
        self._next = 0
        """Place of the backend whose details are looked at next."""
        self._rows: dict[BackendRecord, LiveBackend] = {}
        self._turn = 0
        self._routes: Mapping[bytes, ModelRoute] = {}
        self._route_names: list[bytes] = []
        """Names of the models in `_routes`, in order."""

    @property
    def has_rates(self) -> bool:
        """Whether the next document will have rates that are of the last seconds."""
        now = self._clock()
        return any(EVERY_S / 2 <= now - each.at <= _STALE_S for each in self._readings)

    def text(self) -> bytes:
        """The document as JSON, no older than `EVERY_S`."""
        self.document()
        return self._text

    def document(self) -> LiveDocument:
        """The document, no older than `EVERY_S`."""
        now = self._clock()
        # Viewers come at slightly different times; a tenth early must not mean a second one.
        if self._document is None or now - self._made_at >= 0.9 * EVERY_S:
            self._made_at = now
            self._document = self._make(now)
            self._text = _to_json(self._document)
        return self._document

    def _make(self, now: float) -> LiveDocument:
        sources = self._sources
        directory = sources.directory
        if now >= self._tables_due:
            self._tables_due = now + _TABLES_EVERY_S
            self._tables = {each.backend: each for each in sources.tables()}
        new = self._read(now)
        old = self._before(new)
        self._readings.append(new)
        window_s = None if old is None else new.at - old.at
        changes = _Difference(old, new)
        snapshot = directory.ref.current
        queues = _queues(sources.model_queues(now)) if sources.queued() else {}
        if snapshot.routes is not self._routes:
            self._routes, self._route_names = snapshot.routes, sorted(snapshot.routes)
        models = _Models(snapshot, self._route_names, changes, queues)
        records = sorted(directory.records, key=lambda each: _RANK[each.state])
        backends = self._backends(records[:MOST_BACKENDS], changes, models.main, now)
        return LiveDocument(
            version=sources.version,
            at=round(sources.wall(), 3),
            uptime_s=round(now - self._started_at, 1),
            window_s=None if window_s is None else round(window_s, 3),
            summary=self._summary(records, changes, snapshot, now),
            backends=backends,
            backends_total=len(records),
            models=models.rows(),
            models_total=models.total,
            variants=variant_rows(sources.variants()),
            changes=[
                LiveChange(
                    age_s=round(now - each.at, 1),
                    backend=each.backend,
                    subject=each.subject,
                    before=each.before,
                    after=each.after,
                    why=each.why,
                )
                for each in directory.changes.newest_first()
            ],
        )

    # Counters

    def _before(self, new: _Reading) -> _Reading | None:
        """The reading to compare with: the newest that is `WINDOW_S` old, else the oldest one."""
        readings = self._readings
        while readings and new.at - readings[0].at > _STALE_S:
            readings.popleft()
        while len(readings) > 1 and new.at - readings[1].at >= WINDOW_S:
            readings.popleft()
        return readings[0] if readings else None

    def _read(self, now: float) -> _Reading:
        sources = self._sources
        reruns = sources.reruns()
        reading = _Reading(now, hedges=reruns.hedges, waits=dict(sources.wait_reasons()))
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
            for name, model in traffic.models.items():
                requests, failures = reading.models.get(name, (0, 0))
                for code, count in model.codes.items():
                    requests += count
                    failures += count if is_failure(traffic.protocol, code) else 0
                reading.models[name] = requests, failures
            for reason, count in traffic.reasons.items():
                if reason not in _NO_ERROR:
                    label = reason.value
                    reading.errors[label] = reading.errors.get(label, 0) + count
            reading.failed += _failed(traffic.protocol, traffic.answers)
        for name, durations in sources.meter.model_durations(lambda usage: usage.durations):
            reading.model_durations[name] = durations.counts
        reading.requests += sum(reading.durations)
        for record in sources.directory.records:
            done = failed = timed = 0
            took_s = 0.0
            for port in record.ports:
                counted = port.port
                ends = sum(counted.failures.values())
                failed += ends
                done += ends + sum(counted.codes.values())
                timed += sum(counted.latency.counts)
                took_s += counted.latency.sum
            reading.backends[record.backend] = (done, failed, timed, took_s)
        return reading

    # Parts of the document

    def _summary(
        self,
        records: Sequence[BackendRecord],
        changes: _Difference,
        snapshot: PoolSnapshot,
        now: float,
    ) -> LiveSummary:
        sources = self._sources
        durations = changes.durations()
        oldest_s = sources.oldest_s(now)
        errors = changes.errors()
        p50, p99 = quantile(durations, 0.5), quantile(durations, 0.99)
        requests = changes.requests()
        verdict, why = judge(
            records,
            is_usable=any(snapshot.ready(each) or snapshot.partial[each] for each in AppProtocol),
            errors=errors,
            requests=requests,
            oldest_s=oldest_s,
            now=now,
        )
        return LiveSummary(
            verdict=verdict,
            why=why,
            up=sum(each.state is BackendState.UP for each in records),
            backends=len(records),
            requests=requests,
            p50_ms=_ms(p50),
            p99_ms=_ms(p99),
            errors=errors,
            in_flight=sum(each.backend.in_flight for each in records),
            queued=sources.queued(),
            oldest_ms=round(oldest_s * 1000, 1),
            retries=changes.rate(lambda reading: reading.retries),
            hedges=changes.rate(lambda reading: reading.hedges),
        )

    def _backends(
        self,
        records: Sequence[BackendRecord],
        changes: _Difference,
        main: Sequence[bytes],
        now: float,
    ) -> list[LiveBackend]:
        self._look_at_details(records, main)
        all_requests = sum(changes.backend(each.backend)[0] for each in records)
        before, self._rows = self._rows, {}
        turns = -(-len(records) // _ROWS_PER_DOCUMENT)
        self._turn += 1
        for place, record in enumerate(records):
            row = before.get(record)
            if (
                row is None
                or (place + self._turn) % turns == 0
                or row["state"] != record.state.value
            ):
                row = self._backend(record, changes, all_requests, now)
            self._rows[record] = row
        return list(self._rows.values())

    def _look_at_details(self, records: Sequence[BackendRecord], main: Sequence[bytes]) -> None:
        """Renew the details of some backends, in turn."""
        self._loading.look(records)
        details = self._details
        details = {each: details[each] for each in records if each in details}
        due = [each for each in records if each not in details][:_SLOW_PER_DOCUMENT]
        left = min(_SLOW_PER_DOCUMENT - len(due), len(records))
        due += [records[(self._next + step) % len(records)] for step in range(left)]
        self._next += left
        wanted = {each.backend for each in due}
        learnt: dict[Backend, list[LearntTime]] = {}
        most = max(1, min(_MAIN_MODELS, _MAIN_CELLS // max(1, len(records))))
        for view in self._sources.model_backends(main[:most]) if main else ():
            if view.backend in wanted:
                learnt.setdefault(view.backend, []).append(
                    LearntTime(
                        model=text(view.model),
                        ms=_ms(view.expected_s or None),
                        in_flight=view.in_flight,
                        limit=view.limit,
                        slowed=round(view.slowed, 2),
                    )
                )
        for record in due:
            details[record] = _Details(
                learnt.get(record.backend, []), self._models_of(record), _gpu(record)
            )
        self._details = details

    def _models_of(self, record: BackendRecord) -> ModelCountsOfBackend | None:
        table = self._tables.get(record.backend.name)
        if table is None or record.models.lists is not True:
            return None
        return ModelCountsOfBackend(
            ready=table.ready,
            loading=self._loading.of(record),
            missing=table.missing,
            different=table.reconfigured,
        )

    def _backend(
        self,
        record: BackendRecord,
        changes: _Difference,
        all_requests: int,
        now: float,
    ) -> LiveBackend:
        backend = record.backend
        details = self._details.get(record, _NO_DETAILS)
        done, failed, timed, took_s = changes.backend(backend)
        window_s = changes.window_s
        return LiveBackend(
            name=backend.name,
            state=record.state.value,
            why=record.why,
            since_s=round(now - record.since, 1),
            past=_past(record, now),
            in_flight=backend.in_flight,
            limit=backend.max_in_flight,
            requests=round(done / window_s, 1) if window_s else None,
            share=round(done / all_requests, 3) if all_requests else None,
            errors=round(failed / window_s, 2) if window_s else None,
            mean_ms=_ms(took_s / timed) if timed else None,
            start_share=round(backend.share, 2),
            main_models=details.main_models,
            models=details.models,
            gpu=details.gpu,
            cut_in_s=None if record.finish_by is None else round(max(record.finish_by - now, 0), 1),
        )


class _Difference:
    """What happened between two readings; nothing is known without the first one."""

    def __init__(self, old: _Reading | None, new: _Reading) -> None:
        self._old = old
        self._new = new
        self.window_s = new.at - old.at if old is not None and new.at > old.at else 0.0

    def rate(self, read: Callable[[_Reading], int]) -> float | None:
        """How fast a counter grows, per second."""
        if self._old is None or not self.window_s:
            return None
        return round((read(self._new) - read(self._old)) / self.window_s, 2)

    def requests(self) -> float | None:
        """Completed inferences per second."""
        return self.rate(lambda reading: reading.requests)

    def durations(self) -> list[int]:
        """Latencies of inferences by bucket."""
        old = self._old.durations if self._old is not None else self._new.durations
        if not old:
            return self._new.durations
        return [a - b for a, b in zip(self._new.durations, old, strict=True)]

    def errors(self) -> dict[str, float]:
        """Failures per second by reason, without reasons that do not occur."""
        old = self._old
        if old is None or not self.window_s:
            return {}
        new = self._new
        found = {
            reason: count - old.errors.get(reason, 0)
            for reason, count in new.errors.items()
            if count > old.errors.get(reason, 0)
        }
        ours = sum(count for reason, count in found.items() if reason not in _OF_CLIENTS)
        theirs = new.failed - old.failed - ours
        if theirs > 0:
            found[BACKEND_STATUS] = theirs
        return {reason: round(count / self.window_s, 2) for reason, count in found.items()}

    def backend(self, backend: Backend) -> tuple[int, int, int, float]:
        """What has been added to the counters of one backend."""
        new = self._new.backends.get(backend, _NO_COUNTS)
        old = (self._old or self._new).backends.get(backend, _NO_COUNTS)
        return new[0] - old[0], new[1] - old[1], new[2] - old[2], new[3] - old[3]

    def model(self, name: bytes) -> tuple[float | None, float | None]:
        """Requests and failures of one model per second."""
        if self._old is None or not self.window_s:
            return None, None
        new, old = self._new.models.get(name, (0, 0)), self._old.models.get(name, (0, 0))
        window_s = self.window_s
        return round((new[0] - old[0]) / window_s, 2), round((new[1] - old[1]) / window_s, 2)

    def model_quantiles(self, name: bytes) -> tuple[float | None, float | None]:
        """Median and 99th percentile of the latencies of one model, in seconds."""
        counts = self._new.model_durations.get(name)
        if counts is None:
            return None, None
        before = self._old.model_durations.get(name) if self._old is not None else None
        if before is not None:
            counts = [a - b for a, b in zip(counts, before, strict=True)]
        return quantile(counts, 0.5), quantile(counts, 0.99)

    @property
    def model_names(self) -> Collection[bytes]:
        """Models that were asked for, as far as they are counted by name."""
        return self._new.models.keys()

    def waits(self) -> dict[bytes, dict[str, float]]:
        """Requests that had to wait per second, by model and reason."""
        found: dict[bytes, dict[str, float]] = {}
        old = self._old
        if old is not None and self.window_s:
            for (model, why), count in self._new.waits.items():
                if count > (before := old.waits.get((model, why), 0)):
                    found.setdefault(model, {})[why] = round((count - before) / self.window_s, 2)
        return found


_NO_COUNTS: Final = (0, 0, 0, 0.0)


class _Models:
    """The rows of models: the busiest first, then the others by name."""

    def __init__(
        self,
        snapshot: PoolSnapshot,
        known: Sequence[bytes],
        changes: _Difference,
        queues: Mapping[bytes, tuple[int, float]],
    ) -> None:
        self._snapshot = snapshot
        self._changes = changes
        self._queues = queues
        self._waits = changes.waits()
        self._holders: dict[int, tuple[int, list[str]]] = {}
        """By identity of placements, which many models share."""
        names = {name for name in changes.model_names if name != OTHER.encode()} | queues.keys()
        self.total = len(names | snapshot.routes.keys())
        busiest = nlargest(MOST_MODELS, names, key=self._importance)
        self.main = [name for name in busiest if (changes.model(name)[0] or 0) > 0]
        """Names of models with requests, the busiest first."""
        left = MOST_MODELS - len(busiest)
        shown = set(busiest)
        others = islice((name for name in known if name not in shown), left)
        self._names = [*busiest, *others]

    def rows(self) -> list[LiveModel]:
        """One for each model, at most `MOST_MODELS`."""
        return [self._row(name) for name in self._names]

    def _importance(self, name: bytes) -> tuple[int, float, bytes]:
        requests, failures = self._changes.model(name)
        return self._queues.get(name, (0, 0.0))[0], (requests or 0) + (failures or 0), name

    def _row(self, name: bytes) -> LiveModel:
        requests, failures = self._changes.model(name)
        queued, oldest_s = self._queues.get(name, (0, 0.0))
        p50, p99 = self._changes.model_quantiles(name)
        ready_on, not_on = self._where(self._snapshot.routes.get(name))
        return LiveModel(
            name=text(name),
            ready_on=ready_on,
            not_on=not_on,
            requests=requests,
            failures=failures,
            p50_ms=_ms(p50),
            p99_ms=_ms(p99),
            queued=queued,
            oldest_ms=round(oldest_s * 1000, 1),
            waits=self._waits.get(name, {}),
        )

    def _where(self, route: ModelRoute | None) -> tuple[int, list[str]]:
        """How many backends have a model ready, and names of those in use that have not."""
        placements = route.placements if route is not None else None
        if placements is None:
            placements = self._snapshot.placements
        known = self._holders.get(id(placements))
        if known is None:
            holders = _eligible(placements)
            lacking = [b.name for b in _eligible(self._snapshot.placements) if b not in holders]
            known = self._holders[id(placements)] = len(holders), lacking[:_NAMED]
        return known


class _LoadingCounts:
    """How many models each backend is loading; a bounded number of lines is read at a time."""

    def __init__(self) -> None:
        self._counts: dict[BackendRecord, tuple[object, frozenset[Version], int]] = {}

    def of(self, record: BackendRecord) -> int:
        """Models that a backend was loading when it was last looked at."""
        known = self._counts.get(record)
        return known[2] if known is not None else 0

    def look(self, records: Sequence[BackendRecord]) -> None:
        """Read the lists that have changed, as many as may be read at once."""
        left = _ENTRIES_PER_DOCUMENT
        counts = {record: self._counts[record] for record in records if record in self._counts}
        for record in records:
            table = record.models
            known = counts.get(record)
            if known is not None and known[0] is table.entries and known[1] is table.ready:
                continue
            if left <= 0:
                continue
            if len(table.ready) == len(table.entries):
                counts[record] = table.entries, table.ready, 0
                continue
            left -= len(table.entries)
            loading = sum(table.state_of(each) is ModelState.LOADING for each in table.entries)
            counts[record] = table.entries, table.ready, loading
        self._counts = counts


def judge(
    records: Sequence[BackendRecord],
    *,
    is_usable: bool,
    errors: Mapping[str, float],
    requests: float | None,
    oldest_s: float,
    now: float,
) -> tuple[Verdict, str]:
    """Say in a word how the pool does, and in a sentence why.

    Args:
        records: all backends, those with the worst state first.
        is_usable: whether a ready backend may get requests.
        errors: failures per second by reason.
        requests: completed inferences per second.
        oldest_s: age of the oldest queued request.
        now: monotonic seconds.
    """
    if not records:
        return "bad", "There are no backends."
    ill = [each for each in records if _is_ill(each)]
    alarming = {reason: rate for reason, rate in errors.items() if reason not in _OF_CLIENTS}
    all_errors = sum(alarming.values())
    fail = ""
    if alarming:
        failing = max(alarming, key=lambda reason: alarming[reason])
        fail = f"{_number(all_errors)} requests per second fail, most with {failing}."
    if not is_usable:
        return "bad", _join("No backend can take requests.", _about(ill, now) if ill else "")
    if alarming and all_errors >= _BAD_SHARE * max(requests or 0.0, all_errors):
        return "bad", _join(fail, _about(ill, now) if ill else "")
    if ill:
        return "degraded", _join(_about(ill, now), fail)
    if alarming:
        return "degraded", fail
    if oldest_s > _SLOW_QUEUE_S:
        return "degraded", f"The oldest queued request has waited for {short_duration(oldest_s)}."
    away = [each for each in records if each.state in _INTENDED]
    up = len(records) - len(away)
    if not away:
        return "good", "The only backend is up." if up == 1 else f"All {up} backends are up."
    names = ", ".join(f"{each.backend.name} is {each.state.value}" for each in away[:3])
    more = f", and {len(away) - 3} others are not in use" if len(away) > 3 else ""
    return "good", f"{up} backend{' is' if up == 1 else 's are'} up; {names}{more}."


def _is_ill(record: BackendRecord) -> bool:
    if record.state in _INTENDED:
        return False
    return record.state is not BackendState.UP or bool(record.conduct)


def _about(ill: Sequence[BackendRecord], now: float) -> str:
    """A sentence about the worst backend, and how many others there are."""
    worst = ill[0]
    why = worst.why
    sentence = f"{worst.backend.name} is {worst.state.value}"
    if worst.state is BackendState.UP:
        sentence = f"{worst.backend.name} is up, but not for every model"
    else:
        sentence += f" for {short_duration(now - worst.since)}"
    sentence += f": {why}." if why else "."
    others = len(ill) - 1
    if others:
        sentence += f" So {'is 1 other backend' if others == 1 else f'are {others} others'} ill."
    return sentence


def _join(first: str, second: str) -> str:
    return f"{first} {second}" if second else first


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _past(record: BackendRecord, now: float) -> list[tuple[float, str]]:
    """States of the last `PAST_S`, the one that it began with included."""
    past = record.past
    if len(past) == 1 or now - past[-1][0] >= PAST_S:
        at, state = past[-1]
        return [(round(now - at, 1), state.value)]
    begin = now - PAST_S
    return [
        (round(now - at, 1), state.value)
        for place, (at, state) in enumerate(past)
        if place + 1 == len(past) or past[place + 1][0] > begin
    ]


def _gpu(record: BackendRecord) -> GpuUse | None:
    load = record.load
    if load is None or not load.devices or not record.answers:
        return None
    uses = [each.utilization for each in load.devices if each.utilization is not None]
    used = [each.memory_used for each in load.devices if each.memory_used is not None]
    total = [each.memory_total for each in load.devices if each.memory_total is not None]
    return GpuUse(
        devices=len(load.devices),
        utilization=round(max(uses), 3) if uses else None,
        memory_used=sum(used) if used else None,
        memory_total=sum(total) if total else None,
    )


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


_GRPC_FAILURES: Final = frozenset(
    each.value
    for each in (
        GrpcStatus.UNKNOWN, GrpcStatus.ABORTED, GrpcStatus.INTERNAL, GrpcStatus.UNAVAILABLE,
        GrpcStatus.DATA_LOSS,
    )
)  # fmt: skip
"""Statuses that no client can have caused alone."""


def _failed(protocol: AppProtocol, answers: Mapping[Backend | None, Mapping[int, int]]) -> int:
    """Requests that ended with a status that speaks against the service."""
    if protocol is AppProtocol.GRPC:
        return sum(codes.get(each, 0) for codes in answers.values() for each in _GRPC_FAILURES)
    return sum(
        count for codes in answers.values() for code, count in codes.items() if 500 <= code < 600
    )


def _eligible(placements: Placements) -> dict[Backend, None]:
    """Backends of either protocol, in their order."""
    return dict.fromkeys(backend for each in placements for backend in each.eligible)


def _to_json(document: LiveDocument) -> bytes:
    try:
        return to_json(document)
    except PydanticSerializationError:
        # A backend may put half of a surrogate pair into its words, which UTF-8 cannot hold.
        return json.dumps(document).encode()


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
