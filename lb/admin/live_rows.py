"""Rows of the live document: their figures, and their JSON, which is kept until a row is renewed.

A few rows are renewed for each document, in turn, and at once all whose state has changed. So a
document takes about as long with 200 backends and 1,000 models as with 40 of each.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import islice
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pydantic_core import PydanticSerializationError, to_json

from lb.admin.live_document import (
    MOST_MODELS,
    GpuUse,
    LearntTime,
    LiveBackend,
    LiveChange,
    LiveModel,
    ModelCountsOfBackend,
)
from lb.admin.views import quantile
from lb.control.changes import StateChange
from lb.control.record import BackendRecord
from lb.domain.backend import Backend
from lb.domain.model import ModelState
from lb.domain.names import readable
from lb.domain.pool import Placements, PoolSnapshot
from lb.domain.schedule import ModelBackendView, Wait
from lb.telemetry.collector import ModelTableStatus
from lb.telemetry.labels import OTHER, is_failure
from lb.telemetry.meter import Meter

WINDOW_S: Final = 5.0
"""Rates and quantiles are of this time: long enough for a p99, short enough to see a failure."""
STALE_S: Final = 2 * WINDOW_S
"""Readings older than this are of the last time that somebody looked."""
PAST_S: Final = 300.0
_BACKENDS_PER_DOCUMENT: Final = 40
"""Rows that are renewed for one document. In larger pools the others are shown as of a few seconds
ago: of 200 backends, none is older than `WINDOW_S`."""
_MODELS_PER_DOCUMENT: Final = 20
"""Rows of models that are renewed for one document: of `MOST_MODELS`, none is older than
`WINDOW_S`."""
_OTHERS_PER_DOCUMENT: Final = 50
"""Models that are too many to be shown, of which it is found out whether they are busy now."""
ROWS_PER_STEP: Final = 10
"""Rows that are made in one iteration of the event loop: about a tenth of a millisecond."""
_MAIN_MODELS: Final = 3
_MAIN_CELLS: Final = 300
"""Learnt times in all rows together: with more than 100 backends there is one in each row."""
_ENTRIES_PER_DOCUMENT: Final = 2000
"""Lines of lists of models that are looked at for one document: about half a millisecond."""
_TABLES_EVERY_S: Final = 10.0
"""How often backends are compared by their models, which takes longer than a document."""
_NAMED: Final = 8
_OTHER_NAME: Final = OTHER.encode()
_WAITS: Final = tuple(each.value for each in Wait if each is not Wait.NONE)

ReadingT = TypeVar("ReadingT")


class History(Generic[ReadingT]):
    """Readings of the last few seconds, of which two make rates."""

    __slots__ = ("_readings",)

    def __init__(self) -> None:
        self._readings: deque[tuple[float, ReadingT]] = deque()

    def add(self, now: float, reading: ReadingT) -> tuple[float, ReadingT] | None:
        """Remember a reading.

        Returns:
            The reading to compare it with and how many seconds older that is: the newest one that
            is `WINDOW_S` old, else the oldest one; None where there is no other one.
        """
        readings = self._readings
        while readings and now - readings[0][0] > STALE_S:
            readings.popleft()
        while len(readings) > 1 and now - readings[1][0] >= WINDOW_S:
            readings.popleft()
        before = readings[0] if readings else None
        readings.append((now, reading))
        return None if before is None or now <= before[0] else (now - before[0], before[1])

    def ages(self, now: float) -> Iterator[float]:
        """How many seconds old each reading is."""
        return (now - at for at, _ in self._readings)


class _Turns:
    """Says which rows are due: as many for each document, each in its turn."""

    def __init__(self, rows_per_document: int) -> None:
        self._rows = rows_per_document
        self._number = 0
        self._every = 1

    def begin(self, count: int) -> None:
        """Begin the next document, of `count` rows."""
        self._number += 1
        self._every = max(1, -(-count // self._rows))

    def is_due(self, place: int) -> bool:
        """Whether it is the turn of the row at a place, which does not change."""
        return (place + self._number) % self._every == 0


# Backends


class _BackendCounts(NamedTuple):
    """Attempts completed, failed ones, those with a latency, and the sum of that in seconds."""

    done: int
    failed: int
    timed: int
    took_s: float


class _BackendRow:
    """What is kept of one backend."""

    __slots__ = (
        "errors", "history", "is_complete", "json", "loading", "mean_ms", "requests", "settled",
    )  # fmt: skip

    def __init__(self) -> None:
        self.history: History[_BackendCounts] = History()
        self.json = b""
        self.settled: object = None
        """What the row shows of its state."""
        self.is_complete = False
        """It has rates."""
        self.requests = 0.0
        """Attempts completed per second."""
        self.errors = 0.0
        self.mean_ms: float | None = None
        self.loading: tuple[object, object, int] = (None, None, 0)
        """The lists of models that were looked at, and how many are being loaded by them."""

    def measure(self, record: BackendRecord, now: float) -> None:
        """Read the counters and find out rates."""
        counts = _counts(record)
        before = self.history.add(now, counts)
        if before is None:
            self.is_complete = False
            return
        window_s, old = before
        self.is_complete = True
        self.requests = (counts.done - old.done) / window_s
        self.errors = (counts.failed - old.failed) / window_s
        timed = counts.timed - old.timed
        self.mean_ms = milliseconds((counts.took_s - old.took_s) / timed) if timed else None

    def count_loading(self, record: BackendRecord, most: int) -> int:
        """Find out how many models it is loading, if that takes at most `most` lines of its list.

        Returns:
            How many lines were read.
        """
        table = record.models
        entries, ready = table.entries, table.ready
        if self.loading[0] is entries and self.loading[1] is ready:
            return 0
        if len(ready) == len(entries):
            self.loading = entries, ready, 0
            return 0
        if len(entries) > most:
            return 0
        loading = sum(table.state_of(each) is ModelState.LOADING for each in entries)
        self.loading = entries, ready, loading
        return len(entries)


class BackendRows:
    """The rows of backends."""

    def __init__(
        self,
        model_backends: Callable[[Collection[bytes]], Iterable[ModelBackendView]],
        tables: Callable[[], Iterable[ModelTableStatus]],
    ) -> None:
        """
        Args:
            model_backends: reads the scheduler's figures of models with these names.
            tables: how the models of each backend compare with those of the others.
        """
        self._model_backends = model_backends
        self._read_tables = tables
        self._tables: dict[str, ModelTableStatus] = {}
        self._tables_due = 0.0
        self._rows: dict[BackendRecord, _BackendRow] = {}
        self._turns = _Turns(_BACKENDS_PER_DOCUMENT)
        self._learnt: dict[Backend, list[LearntTime]] = {}

    def json(self, records: Iterable[BackendRecord]) -> Iterator[bytes]:
        """The rows of these backends, all of which the last call of `renew` had."""
        return (self._rows[each].json for each in records)

    def renew(
        self, records: Collection[BackendRecord], main_models: Sequence[bytes], now: float
    ) -> Iterator[None]:
        """Renew the rows that are due, a few in each step.

        Args:
            records: all backends that are shown, in an order that seldom changes.
            main_models: names of models with requests, the busiest first.
            now: monotonic seconds.
        """
        if now >= self._tables_due:
            self._tables_due = now + _TABLES_EVERY_S
            self._tables = {each.backend: each for each in self._read_tables()}
            yield
        rows = {each: self._rows.get(each) or _BackendRow() for each in records}
        self._rows = rows
        self._turns.begin(len(rows))
        due = [
            (record, row)
            for place, (record, row) in enumerate(rows.items())
            if self._turns.is_due(place) or not row.is_complete or row.settled != _settled(record)
        ]
        yield
        for some in _in_steps(due):
            for record, row in some:
                row.measure(record, now)
            yield
        all_requests = sum([row.requests for row in rows.values()])
        if self._turns.is_due(0):
            yield from self._learn(main_models, rows)
        lines_left = _ENTRIES_PER_DOCUMENT
        for some in _in_steps(due):
            for record, row in some:
                lines_left -= row.count_loading(record, lines_left)
                row.settled = _settled(record)
                models = self._learnt.get(record.backend, [])
                row.json = to_json_bytes(self._show(record, row, models, all_requests, now))
            yield

    def _learn(
        self, main_models: Sequence[bytes], records: Collection[BackendRecord]
    ) -> Iterator[None]:
        """Read what the scheduler has learnt of a few main models, a step at a time."""
        most = max(1, min(_MAIN_MODELS, _MAIN_CELLS // max(1, len(records))))
        learnt: dict[Backend, list[LearntTime]] = {}
        views = list(self._model_backends(main_models[:most])) if main_models else []
        yield
        for some in _in_steps(views):
            for view in some:
                learnt.setdefault(view.backend, []).append(
                    LearntTime(
                        model=readable(view.model),
                        ms=milliseconds(view.expected_s or None),
                        in_flight=view.in_flight,
                        limit=view.limit,
                        slowed=round(view.slowed, 2),
                    )
                )
            yield
        self._learnt = learnt

    def _show(
        self,
        record: BackendRecord,
        row: _BackendRow,
        main_models: list[LearntTime],
        all_requests: float,
        now: float,
    ) -> LiveBackend:
        backend = record.backend
        shown: LiveBackend = {
            "name": backend.name,
            "state": record.state.value,
            "why": record.why,
            "since_s": round(now - record.since, 1),
            "past": _past(record, now),
            "in_flight": backend.in_flight,
            "limit": backend.spec.max_in_flight,
            "requests": round(row.requests, 1) if row.is_complete else None,
            "share": round(row.requests / all_requests, 3) if all_requests else None,
            "errors": round(row.errors, 2) if row.is_complete else None,
            "mean_ms": row.mean_ms,
            "start_share": round(backend.share, 2),
            "main_models": main_models,
            "models": self._models_of(record, row),
            "gpu": _gpu(record),
            "cut_in_s": None
            if record.finish_by is None
            else round(max(record.finish_by - now, 0), 1),
        }
        return shown

    def _models_of(self, record: BackendRecord, row: _BackendRow) -> ModelCountsOfBackend | None:
        table = self._tables.get(record.backend.name)
        if table is None or record.models.lists is not True:
            return None
        return ModelCountsOfBackend(
            ready=table.ready,
            loading=row.loading[2],
            missing=table.missing,
            different=table.reconfigured,
        )


def _settled(record: BackendRecord) -> object:
    """What is to be shown at once when it changes."""
    return record.since, record.admin, record.outlier_reason


def _counts(record: BackendRecord) -> _BackendCounts:
    done = failed = timed = 0
    took_s = 0.0
    for port in record.ports:
        counted = port.port
        ends = sum(counted.failures.values())
        failed += ends
        done += ends + sum(counted.codes.values())
        timed += sum(counted.latency.counts)
        took_s += counted.latency.sum
    return _BackendCounts(done, failed, timed, took_s)


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


# Models


class _ModelCounts(NamedTuple):
    """Requests, failures, further attempts, and hedges among these; latencies of successful
    inferences by bucket; requests that had to wait by reason."""

    requests: int
    failures: int
    retries: int
    hedges: int
    durations: list[int]
    waits: dict[str, int]


class _ModelRow:
    """What is kept of one model."""

    __slots__ = (
        "durations", "failures", "hedges", "history", "is_complete", "json", "requests", "retries",
        "settled", "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.history: History[_ModelCounts] = History()
        self.json = b""
        self.settled: object = None
        """What the row shows that is to be shown at once when it changes; None: it is not shown."""
        self.is_complete = False
        """It has rates."""
        self.requests = 0.0
        """Per second."""
        self.failures = 0.0
        self.retries = 0.0
        self.hedges = 0.0
        self.durations: list[int] = []
        """Of the last seconds."""
        self.waits: dict[str, float] = {}

    def measure(self, counts: _ModelCounts, now: float) -> None:
        """Find out rates."""
        before = self.history.add(now, counts)
        if before is None:
            self.is_complete = False
            self.durations = []
            return
        window_s, old = before
        self.is_complete = True
        self.requests = (counts.requests - old.requests) / window_s
        self.failures = (counts.failures - old.failures) / window_s
        self.retries = (counts.retries - old.retries) / window_s
        self.hedges = (counts.hedges - old.hedges) / window_s
        self.durations = (
            [a - b for a, b in zip(counts.durations, old.durations, strict=True)]
            if old.durations
            else counts.durations
        )
        self.waits = {
            why: round((count - old.waits.get(why, 0)) / window_s, 2)
            for why, count in counts.waits.items()
            if count > old.waits.get(why, 0)
        }


class ModelRows:
    """The rows of models: the busiest first, then the others by name."""

    def __init__(
        self,
        meter: Meter,
        wait_reasons: Callable[[], Mapping[tuple[bytes, str], int]],
        hedges: Callable[[], Mapping[bytes, int]],
    ) -> None:
        """
        Args:
            meter: counts requests by model.
            wait_reasons: how many requests had to wait since the start, by model and reason.
            hedges: how many requests were sent to a second backend as well, by model.
        """
        self._meter = meter
        self._wait_reasons = wait_reasons
        self._hedges = hedges
        self._rows: dict[bytes, _ModelRow] = {}
        self._renewed_at = -STALE_S
        self._shown: list[bytes] = []
        self._turns = _Turns(_MODELS_PER_DOCUMENT)
        self._other_turns = _Turns(_OTHERS_PER_DOCUMENT)
        self._snapshot: PoolSnapshot | None = None
        self._known: list[bytes] = []
        """Names of the models in the snapshot's routes, in order."""
        self._holders: dict[int, tuple[int, list[str]]] = {}
        """Where models of the snapshot are, by identity of placements, which many share."""
        self.total = 0
        """Models that are known, with those that are not shown."""

    def json(self) -> Iterator[bytes]:
        """The rows, at most `MOST_MODELS`."""
        return (self._rows[name].json for name in self._shown)

    @property
    def busy(self) -> list[bytes]:
        """Names of models with requests, the busiest first."""
        return [name for name in self._shown if self._rows[name].requests > 0]

    def renew(
        self, snapshot: PoolSnapshot, queues: Mapping[bytes, tuple[int, float]], now: float
    ) -> Iterator[None]:
        """Renew the rows that are due, a few in each step.

        Args:
            snapshot: says which backends have a model.
            queues: queued requests and the age of the oldest in seconds, by model.
            now: monotonic seconds.
        """
        is_new = snapshot is not self._snapshot
        if is_new:
            if self._snapshot is None or snapshot.routes is not self._snapshot.routes:
                self._known = sorted(snapshot.routes)
            self._snapshot, self._holders = snapshot, {}
            yield
        first, second = (traffic.models for traffic in self._meter.traffic)
        names = first.keys() | second.keys() | queues.keys()
        names.discard(_OTHER_NAME)
        rows = self._rows
        nothing = _ModelCounts(0, 0, 0, 0, [], {})
        unknown = names - rows.keys()
        for name in unknown:
            row = rows[name] = _ModelRow()
            if now - self._renewed_at <= STALE_S:
                row.history.add(self._renewed_at, nothing)  # nobody had asked for it by then
        self._renewed_at = now
        measured = self._due()
        waits = self._wait_reasons()
        for some in _in_steps(measured):
            for name in some:
                rows[name].measure(self._counts(name, waits), now)
            yield
        self.total = len(names | snapshot.routes.keys())
        if is_new or unknown or queues or self._turns.is_due(0):
            self._choose(names, queues)
            yield
        due = []
        for name in self._shown:
            settled = name in queues, self._where(snapshot, name)
            if name in measured or rows[name].settled != settled:
                due.append((name, settled))
        yield
        for stale in _in_steps(due):
            for name, settled in stale:
                rows[name].settled = settled
                rows[name].json = to_json_bytes(self._show(snapshot, name, queues))
            yield

    def _due(self) -> dict[bytes, None]:
        """Names of the models whose counters are read for this document."""
        rows, shown = self._rows, set(self._shown)
        self._turns.begin(len(shown))
        self._other_turns.begin(len(rows) - len(shown))
        return {
            name: None
            for place, (name, row) in enumerate(rows.items())
            if not row.is_complete
            or (self._turns if name in shown else self._other_turns).is_due(place)
        }

    def _choose(self, names: Collection[bytes], queues: Mapping[bytes, tuple[int, float]]) -> None:
        """Choose the models that are shown, and forget what is not needed of others.

        Args:
            names: of models that were asked for.
            queues: as of `renew`.
        """
        rows = self._rows

        def importance(name: bytes) -> tuple[int, float, bytes]:
            row = rows[name]
            queued = queues[name][0] if name in queues else 0
            return queued, row.requests + row.failures, name

        busiest = nlargest(MOST_MODELS, names, key=importance)
        found = set(busiest)
        others = (name for name in self._known if name not in found)
        shown = [*busiest, *islice(others, MOST_MODELS - len(busiest))]
        for name in set(self._shown).difference(shown):
            if name in names:
                rows[name].settled = None
            else:
                del rows[name]
        for name in shown[len(busiest) :]:
            if name not in rows:
                rows[name] = _ModelRow()
        self._shown = shown

    def _counts(self, name: bytes, waits: Mapping[tuple[bytes, str], int]) -> _ModelCounts:
        requests = failures = retries = 0
        durations: list[int] = []
        for traffic in self._meter.traffic:
            usage = traffic.models.get(name)
            if usage is None:
                continue
            retries += usage.retries
            for code, count in usage.codes.items():
                requests += count
                failures += count if is_failure(traffic.protocol, code) else 0
            counts = usage.durations.counts
            durations = (
                [a + b for a, b in zip(durations, counts, strict=True)] if durations else [*counts]
            )
        had_to_wait = {why: waits[name, why] for why in _WAITS if (name, why) in waits}
        hedges = self._hedges().get(name, 0)
        return _ModelCounts(requests, failures, retries, hedges, durations, had_to_wait)

    def _show(
        self, snapshot: PoolSnapshot, name: bytes, queues: Mapping[bytes, tuple[int, float]]
    ) -> LiveModel:
        row = self._rows[name]
        queued, oldest_s = queues.get(name, (0, 0.0))
        ready_on, not_on = self._where(snapshot, name)
        shown: LiveModel = {
            "name": readable(name),
            "ready_on": ready_on,
            "not_on": not_on,
            "requests": round(row.requests, 2) if row.is_complete else None,
            "failures": round(row.failures, 2) if row.is_complete else None,
            "retries": round(row.retries, 2) if row.is_complete else None,
            "hedges": round(row.hedges, 2) if row.is_complete else None,
            "p50_ms": milliseconds(quantile(row.durations, 0.5)),
            "p99_ms": milliseconds(quantile(row.durations, 0.99)),
            "queued": queued,
            "oldest_ms": round(oldest_s * 1000, 1),
            "waits": row.waits,
        }
        return shown

    def _where(self, snapshot: PoolSnapshot, name: bytes) -> tuple[int, list[str]]:
        """How many backends have a model ready, and names of those in use that have not."""
        route = snapshot.routes.get(name)
        placements = (route.placements if route is not None else None) or snapshot.placements
        known = self._holders.get(id(placements))
        if known is None:
            holders = _eligible(placements)
            lacking = [b.name for b in _eligible(snapshot.placements) if b not in holders]
            known = self._holders[id(placements)] = len(holders), lacking[:_NAMED]
        return known


def _eligible(placements: Placements) -> dict[Backend, None]:
    """Backends of either protocol, in their order."""
    return dict.fromkeys(backend for each in placements for backend in each.eligible)


# Changes of state


class ChangeRows:
    """The rows of changes of state."""

    def __init__(self) -> None:
        self._tails: dict[int, tuple[StateChange, bytes]] = {}
        """JSON of all but the age, by identity of the change."""

    def json(self, changes: Iterable[StateChange], now: float, wall: float) -> list[bytes]:
        """The rows of these changes.

        Args:
            changes: to be shown.
            now: monotonic seconds.
            wall: the same as Unix time.
        """
        before, self._tails = self._tails, {}
        rows = []
        for change in changes:
            known = before.get(id(change)) or (change, _tail(change, wall - now + change.at))
            self._tails[id(change)] = known
            rows.append(b'{"age_s":%.1f%b' % (now - change.at, known[1]))
        return rows


def _tail(change: StateChange, at: float) -> bytes:
    row = LiveChange(
        age_s=0,
        at=round(at, 3),
        backend=change.backend,
        subject=change.subject,
        before=change.before,
        after=change.after,
        why=change.why,
    )
    return to_json_bytes(row).removeprefix(b'{"age_s":0')


# JSON


def to_json_bytes(row: Any) -> bytes:
    """A part of the document as JSON."""
    try:
        return to_json(row)
    except PydanticSerializationError:
        # A backend may put half of a surrogate pair into its words, which UTF-8 cannot hold.
        return json.dumps(row, separators=(",", ":")).encode()


def milliseconds(seconds: float | None) -> float | None:
    """Seconds as milliseconds, with two digits; None where nothing is known."""
    return None if seconds is None else round(seconds * 1000, 2)


_ItemT = TypeVar("_ItemT")


def _in_steps(items: Iterable[_ItemT]) -> Iterator[list[_ItemT]]:
    """As many items at a time as may be renewed in one step."""
    rest = iter(items)
    while some := list(islice(rest, ROWS_PER_STEP)):
        yield some
