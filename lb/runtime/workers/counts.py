"""What workers count, added up in the control process.

A worker tells the values of its counters that have changed since it told them last. The control
process adds what has come in addition to counters of its own, which nobody else writes: metrics,
the admin API and the page read those. A counter stays when its worker ends; a gauge goes with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, Final

from lb.domain.backend import AppProtocol, Backend, Histogram, Port
from lb.domain.names import to_bytes, to_text
from lb.domain.operation import OperationKind
from lb.domain.outcome import Reason
from lb.domain.schedule import PositionHistogram
from lb.proxy.role import RelayRole
from lb.proxy.variants import Variant
from lb.telemetry.counts import LoopLag
from lb.telemetry.meter import ModelUsage, OperationUsage, Traffic

Path = tuple[str | int, ...]
"""What a number counts."""
Value = float | Sequence[float]
"""A number; or the sum of a histogram, and what each of its buckets has counted."""
_Times = Histogram | PositionHistogram | LoopLag

_TRAFFIC: Final = ("connections", "accepted", "retries", "bytes_in", "bytes_out")
_PORT: Final = (
    "in_flight", "connections", "attempts", "bytes_sent", "bytes_received", "connects",
    "connect_failures",
)  # fmt: skip
_BACKEND: Final = ("in_flight", "lost_requests", "set_aside")
_MODEL: Final = ("durations", "first_answers", "intervals")
_GAUGES: Final = frozenset({"in_flight", "set_aside", "connections", "open", "held"})
_NUMBER_AT: Final[Mapping[str | int, int]] = {"backend": 1, "port": 1, "answers": 2, "own calls": 2}
"""Where a path has the number of a backend, by how it begins."""
_NOBODY: Final = -1
"""Stands for no backend."""
_ENDED: Final = -1
"""Stands for all processes of workers that others have replaced."""


def _times(path: Path, times: _Times) -> Iterator[tuple[Path, Value]]:
    """All of a histogram as one value: most have not changed, and a comparison says so."""
    if times.sum or any(times.counts):
        yield path, (times.sum, *times.counts)


def read_gauges(relay: RelayRole, backends: Mapping[int, Backend]) -> Iterator[tuple[Path, Value]]:
    """What the control process decides by: requests that are open, of all and of each backend."""
    yield ("open",), relay.dispatcher.open_exchanges
    for number, backend in backends.items():
        yield ("backend", number, "in_flight"), backend.in_flight


def read_counts(
    relay: RelayRole,
    lag: LoopLag,
    dropped_lines: Mapping[str, int],
    number: Callable[[Backend], int | None],
) -> Iterator[tuple[Path, Value]]:
    """All counters of a worker.

    Args:
        relay: counts.
        lag: of its event loop.
        dropped_lines: what each log has lost.
        number: of a backend; None: it is gone.
    """
    dispatcher, queue, table = (
        relay.dispatcher,
        relay.dispatcher.queue,
        relay.dispatcher.steps.table,
    )
    yield ("open",), dispatcher.open_exchanges
    yield ("inferences", "open"), relay.open_inferences()
    yield ("held",), relay.memory_budget.held
    yield ("reruns", "count"), dispatcher.reruns.count
    yield ("hedges", "count"), relay.hedger.count
    yield ("hedges", "refused"), relay.hedger.refused
    yield ("overtaken",), dispatcher.accounts.overtaken
    for model, count in relay.hedger.models.items():
        yield ("hedged models", to_text(model)), count
    yield ("unkept",), relay.memory_budget.unkept
    for name in ("batches", "parts", "unfit"):
        yield ("splits", name), getattr(dispatcher.splits.counts, name)
    for name in ("started", "lost"):  # all processes know all that run, and forget them
        yield ("sequences", name), getattr(table, name)
    for log, count in dropped_lines.items():
        yield ("dropped lines", log), count
    yield ("spans",), relay.spans.exported
    for why, count in tuple(relay.spans.dropped.items()):
        yield ("dropped spans", why), count
    for why, count in tuple(dispatcher.reruns.refused.items()):
        yield ("refused reruns", why), count
    yield from _times(("lag",), lag)
    for model, waits in queue.waits.items():
        yield from _times(("waits", to_text(model)), waits)
    for model, positions in queue.positions.items():
        yield from _times(("positions", to_text(model)), positions)
    for (model, why), count in queue.wait_reasons.items():
        yield ("wait reasons", to_text(model), why), count
    for traffic in relay.meter.traffic:
        yield from _traffic(traffic, number)
    for split in dispatcher.variants.sets.values():
        for variant in split.variants:
            at = ("variants", to_text(split.name), variant.rules.name)
            yield (*at, "answers"), variant.answers
            yield (*at, "errors"), variant.errors
            yield from _times((*at, "durations"), variant.durations)
    for (operation, backend, outcome), count in tuple(relay.fan_out.own_calls.counts.items()):
        if (found := number(backend)) is not None:
            yield ("own calls", operation, found, outcome), count


def _traffic(
    traffic: Traffic, number: Callable[[Backend], int | None]
) -> Iterator[tuple[Path, Value]]:
    protocol = int(traffic.protocol)
    for name in _TRAFFIC:
        yield ("traffic", protocol, name), getattr(traffic, name)
    for reason, count in traffic.connection_errors.items():
        yield ("errors", protocol, reason.value), count
    for reason, count in traffic.reasons.items():
        yield ("reasons", protocol, reason.value), count
    for reason, count in traffic.inference_reasons.items():
        yield ("inference reasons", protocol, reason.value), count
    for backend, codes in traffic.answers.items():
        found = _NOBODY if backend is None else number(backend)
        if found is None:
            continue
        for code, count in codes.items():
            yield ("answers", protocol, found, code), count
    for name, usage in traffic.operations.items():
        yield from _times(("operations", protocol, name, usage.kind.value), usage.durations)
    for model, of_model in traffic.models.items():
        path = ("models", protocol, to_text(model))
        yield (*path, "retries"), of_model.retries
        for code, count in of_model.codes.items():
            yield (*path, "codes", code), count
        for name in _MODEL:
            yield from _times((*path, name), getattr(of_model, name))


def read_backend_counts(backend: Backend, number: int) -> Iterator[tuple[Path, Value]]:
    """What a worker counts of a backend."""
    for name in _BACKEND:
        yield ("backend", number, name), getattr(backend, name)
    for protocol in AppProtocol:
        port = backend.ports[protocol]
        if port is None:
            continue
        path = ("port", number, int(protocol))
        for name in _PORT:
            yield (*path, name), getattr(port, name)
        for code, count in port.codes.items():
            yield (*path, "codes", code), count
        for reason, count in port.failures.items():
            yield (*path, "failures", reason), count
        yield from _times((*path, "latency"), port.latency)


class Sums:
    """Adds what workers tell to the counters of the control process."""

    def __init__(
        self, relay: RelayRole, lag: LoopLag, find: Callable[[int], Backend | None]
    ) -> None:
        """
        Args:
            relay: of the control process, which serves nobody.
            lag: of its event loop.
            find: the backend with a number; None: it is gone.
        """
        self._relay = relay
        self._lag = lag
        self._find = find
        self._told: dict[int, dict[Path, Value]] = {}
        """By worker: what it told last."""
        self._starts: dict[int, int] = {}
        """By worker: which of its processes told that."""
        self._present: set[int] = set()
        self._requests: Counter[int] = Counter()
        """By worker: requests that this process has finished."""

    def take(self, worker: int, rows: list[list[Any]]) -> None:
        """A worker tells values that have changed: of each a path and the value."""
        told = self._told.setdefault(worker, {})
        for names, value in rows:
            path = tuple(names)
            before = told.get(path)
            told[path] = value
            if (
                path[0] == "variants"
                and before is not None
                and _count_of(value) < _count_of(before)
            ):
                before = None  # other settings have other variants, which count from 0
            if isinstance(value, list):
                changes = _changes(before if isinstance(before, list) else [0] * len(value), value)
                if path[0] == "operations":
                    self._requests[worker] += sum(changes[1:])
                self._add_times(path, changes)
            elif change := value - (before or 0):
                self._add(path, change)

    def meet(self, worker: int, start: int) -> bool:
        """A worker is there. If it is another process than before, it counts from 0.

        Returns:
            Whether it is another one, and the one before has counted something.
        """
        self.end(worker)
        self._present.add(worker)
        if self._starts.get(worker) == start:
            return False
        self._starts[worker] = start
        ended = self._told.setdefault(_ENDED, {})
        counted = self._told.pop(worker, {})
        for path, value in counted.items():
            ended[path] = _sum(ended[path], value) if path in ended else value
        self._requests[worker] = 0
        return bool(counted)

    def end(self, worker: int) -> None:
        """A worker has gone: what it had open is gone."""
        self._present.discard(worker)
        told = self._told.get(worker, {})
        for path, value in told.items():
            if path[-1] in _GAUGES and isinstance(value, int | float) and value:
                self._add(path, -value)
                told[path] = 0

    def export_absent(self) -> list[list[Any]]:
        """What nobody would tell another control process: the counts of workers that are not there.
        Backends are named, since their numbers are those of one control process."""
        found = []
        for worker, told in self._told.items():
            if worker in self._present:
                continue
            rows = []
            for path, value in told.items():
                place = _NUMBER_AT.get(path[0])
                names: list[Any] = list(path)
                if place is not None and path[place] != _NOBODY:
                    backend = self._find(int(path[place]))
                    if backend is None:
                        continue
                    names[place] = backend.name
                if value:
                    rows.append([names, value])
            found.append([worker, self._starts.get(worker, 0), rows])
        return found

    def resume(self, exported: list[list[Any]], numbers: Mapping[str, int]) -> None:
        """Take over what the control process before has exported.

        Args:
            exported: see `export_absent`.
            numbers: of backends, by name. What was counted of others is gone with them.
        """
        for worker, start, rows in exported:
            self._starts[worker] = start
            found = []
            for names, value in rows:
                place = _NUMBER_AT.get(names[0])
                path = list(names)
                if place is not None and path[place] != _NOBODY:
                    if path[place] not in numbers:
                        continue
                    path[place] = numbers[path[place]]
                found.append([path, value])
            self.take(worker, found)

    def of(self, worker: int, path: Path) -> float:
        """What a worker told last of one number."""
        value = self._told.get(worker, {}).get(path, 0)
        assert isinstance(value, int | float), path
        return value

    def starts(self, worker: int) -> int:
        """How often a process with that index was started, as far as one was met."""
        return self._starts.get(worker, 0)

    def requests(self, worker: int) -> int:
        """Requests that the present process has finished."""
        return self._requests[worker]

    def keep_only(self, numbers: Container[int]) -> None:
        """Other backends than those with these numbers are gone."""
        self._told = {worker: kept_counts(told, numbers) for worker, told in self._told.items()}

    def _add(self, path: Path, change: float) -> None:
        relay, dispatcher = self._relay, self._relay.dispatcher
        match path:
            case ("open",):
                dispatcher.accounts.open_exchanges += int(change)
            case ("inferences", "open"):
                relay.worker_inferences += int(change)
            case ("held",):
                relay.memory_budget.held += int(change)
            case ("unkept",):
                relay.memory_budget.unkept += int(change)
            case ("reruns", "count"):
                dispatcher.reruns.count += int(change)
            case ("hedges", str(name)):
                _grow(relay.hedger, name, change)
            case ("overtaken",):
                dispatcher.accounts.overtaken += int(change)
            case ("hedged models", str(model)):
                _count(relay.hedger.models, to_bytes(model), change)
            case ("splits", str(name)):
                _grow(dispatcher.splits.counts, name, change)
            case ("sequences", str(name)):
                _grow(dispatcher.steps.table, name, change)
            case ("spans",):
                relay.spans.exported += int(change)
            case ("dropped spans", str(why)):
                relay.spans.dropped[why] += int(change)
            case ("dropped lines", str(log)):
                relay.worker_dropped_lines[log] += int(change)
            case ("refused reruns", str(why)):
                dispatcher.reruns.refused[why] += int(change)
            case (
                "traffic" | "errors" | "reasons" | "inference reasons" | "answers" | "models",
                *_,
            ):
                self._add_traffic(path, change)
            case ("backend" | "port", *_):
                self._add_backend(path, change)
            case ("variants", str(name), str(variant), str(what)):
                if (found := self._variant(name, variant)) is not None:
                    _grow(found, what, change)
            case _:
                self._add_queue(path, change)

    def _add_times(self, path: Path, changes: list[Any]) -> None:
        """Count what has come to a histogram: to its sum, and to its buckets."""
        times = self._times(path)
        if times is not None:
            times.sum += changes[0]
            for bucket, change in enumerate(changes[1:]):
                times.counts[bucket] += change

    def _times(self, path: Path) -> _Times | None:
        """The histogram of the control process; None: its backend or variant is gone."""
        relay = self._relay
        match path:
            case ("lag",):
                return self._lag
            case ("waits", str(model)):
                waits = relay.dispatcher.queue.request_class.waits
                return waits.setdefault(to_bytes(model), Histogram())
            case ("positions", str(model)):
                positions = relay.dispatcher.queue.positions
                return positions.setdefault(to_bytes(model), PositionHistogram())
            case ("operations", int(protocol), str(name), str(kind)):
                operations = relay.meter.traffic[protocol].operations
                return operations.setdefault(name, OperationUsage(OperationKind(kind))).durations
            case ("models", int(protocol), str(model), str(name)):
                usage = relay.meter.traffic[protocol].usage_of(to_bytes(model), exists=True)
                found: Histogram = getattr(usage, name)
                return found
            case ("port", int(number), int(protocol), "latency"):
                backend = self._find(number)
                port = None if backend is None else backend.ports[protocol]
                return None if port is None else port.latency
            case ("variants", str(name), str(variant), "durations"):
                of_variant = self._variant(name, variant)
                return None if of_variant is None else of_variant.durations
        raise LookupError(path)

    def _variant(self, name: str, variant: str) -> Variant | None:
        """The variant of a name; None: the settings have it no more."""
        split = self._relay.dispatcher.variants.sets.get(to_bytes(name))
        variants = () if split is None else split.variants
        return next((each for each in variants if each.rules.name == variant), None)

    def _add_queue(self, path: Path, change: float) -> None:
        match path:
            case ("wait reasons", str(model), str(why)):
                reasons = self._relay.dispatcher.queue.wait_reasons
                key = (to_bytes(model), why)
                reasons[key] = reasons.get(key, 0) + int(change)
            case ("own calls", str(operation), int(number), str(outcome)):
                if (backend := self._find(number)) is not None:
                    self._relay.fan_out.own_calls.counts[operation, backend, outcome] += int(change)

    def _add_traffic(self, path: Path, change: float) -> None:
        traffic = self._relay.meter.traffic[int(path[1])]
        match path:
            case ("traffic", _, str(name)):
                _grow(traffic, name, change)
            case ("errors", _, str(reason)):
                _count(traffic.connection_errors, Reason(reason), change)
            case ("reasons", _, str(reason)):
                _count(traffic.reasons, Reason(reason), change)
            case ("inference reasons", _, str(reason)):
                _count(traffic.inference_reasons, Reason(reason), change)
            case ("answers", _, int(number), int(code)):
                backend = None if number == _NOBODY else self._find(number)
                if backend is not None or number == _NOBODY:
                    _count(traffic.answers.setdefault(backend, {}), code, change)
            case ("models", _, str(model), *rest):
                _add_model(traffic.usage_of(to_bytes(model), exists=True), rest, change)

    def _add_backend(self, path: Path, change: float) -> None:
        backend = self._find(int(path[1]))
        if backend is None:
            return
        if path[0] == "backend":
            _grow(backend, str(path[2]), change)
            return
        port = backend.ports[int(path[2])]
        if port is not None:
            _add_port(port, path[3:], change)


def _add_model(usage: ModelUsage, path: list[str | int], change: float) -> None:
    match path:
        case ["retries"]:
            usage.retries += int(change)
        case ["codes", int(code)]:
            _count(usage.codes, code, change)


def _add_port(port: Port, path: Path, change: float) -> None:
    match path:
        case ("codes", int(code)):
            _count(port.codes, code, change)
        case ("failures", str(reason)):
            _count(port.failures, reason, change)
        case (str(name),):
            _grow(port, name, change)


def _grow(holder: object, name: str, change: float) -> None:
    setattr(holder, name, getattr(holder, name) + int(change))


def _count(counts: Any, key: Any, change: float) -> None:
    counts[key] = counts.get(key, 0) + int(change)


def _count_of(value: Value) -> float:
    """The number, or the sum of what the buckets of a histogram have counted."""
    return value if isinstance(value, int | float) else sum(value[1:])


def _changes(before: Sequence[Any], now: Sequence[Any]) -> list[Any]:
    """What has come to each number."""
    return [value - old for old, value in zip(before, now, strict=True)]


def _sum(one: Value, other: Value) -> Value:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one + other
    assert isinstance(one, Sequence), one
    assert isinstance(other, Sequence), other
    return [a + b for a, b in zip(one, other, strict=True)]


def kept_counts(told: Mapping[Path, Value], numbers: Container[int]) -> dict[Path, Value]:
    """What was told, without what was told of other backends than those with these numbers."""
    found = {}
    for path, value in told.items():
        place = _NUMBER_AT.get(path[0])
        if place is None or path[place] == _NOBODY or path[place] in numbers:
            found[path] = value
    return found


def changed(before: Mapping[Path, Value], now: Mapping[Path, Value]) -> list[list[Any]]:
    """The rows that tell what has changed."""
    return [[list(path), value] for path, value in now.items() if before.get(path, 0) != value]
