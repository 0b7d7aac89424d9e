"""Counts finished requests on plain integers; the collector renders them at scrape time.

Every table here is bounded: codes and reasons are closed sets, operations and models are capped,
and backends that left are dropped. So no client can grow the process or its page of metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from math import inf
from typing import Final

from lb.domain.backend import LATENCY_BOUNDS_S, AppProtocol, Backend, Histogram
from lb.domain.operation import OperationKind
from lb.domain.outcome import Reason
from lb.settings.reporting import MetricsSettings
from lb.telemetry.labels import OTHER, code_label, is_failure
from lb.telemetry.record import RequestRecord

MAX_MODELS: Final = 100
"""Distinct `model` labels where the settings say nothing."""
MAX_CODES: Final = 8
"""Codes of one model on one protocol that are counted apart; further ones are `other`."""
MAX_MODEL_NAME: Final = 255
"""Bytes. Triton's model names are names of folders."""
MAX_OPERATIONS: Final = 64
"""KServe v2 and Triton have about thirty."""

MAX_ALIKE: Final = 512
"""Kinds of requests that are counted apart before the tables get their counts: more than most
sites have, and put into the tables within a millisecond or two."""

_KINDS_PER_STEP: Final = 40
"""They take about a tenth of a millisecond."""

_EDGES_S: Final[tuple[float, ...]] = (-inf, *LATENCY_BOUNDS_S, inf)
"""Bounds of all buckets of a latency histogram, those of the first and the last one included."""

_UNKNOWN_CODE: Final = 1000
"""Stands for every code that has no label of its own."""
_OTHER_MODEL: Final = OTHER.encode()
_Likeness = tuple[AppProtocol, Backend | None, str, bytes, int]
"""Protocol, backend of the last attempt, name of the operation, model, code."""


class OperationUsage:
    """How often one operation was called, and how long its requests took."""

    __slots__ = ("durations", "kind")

    # The few names that stand for calls of two kinds (TraceSetting reads and writes) are counted
    # under the kind that came first.
    def __init__(self, kind: OperationKind) -> None:
        self.kind = kind
        self.durations = Histogram()


class ModelUsage:
    """What the requests of one protocol for one ML model came to."""

    __slots__ = ("codes", "durations", "first_answers", "intervals", "retries")

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        """Requests by code."""
        self.retries = 0
        """Attempts after the first one of each request, hedges included."""
        self.durations = Histogram()
        """Durations of successful inferences."""
        self.first_answers = Histogram()
        """Times from requests to the first answers of streams."""
        self.intervals = Histogram()
        """Times between answers of streams."""


class ModelLabels:
    """The models that have a label of their own, on either protocol.

    A model gets one only once a backend has answered an inference of it well: names that clients
    make up cannot use up the labels of those that exist. Other good answers prove nothing:
    `ModelReady` is answered for any name, and a stream ends well after nothing but errors.
    """

    __slots__ = ("_names", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Models with a label of their own, at most; those that have one keep it."""
        self._names: set[bytes] = set()

    def of(self, model: bytes, *, exists: bool) -> bytes:
        """The name that a model is counted under.

        Args:
            model: its name on the wire.
            exists: a backend has just answered an inference of it well.
        """
        names = self._names
        if model in names or model == _OTHER_MODEL:
            return model
        if not exists or len(model) > MAX_MODEL_NAME or len(names) >= self.limit:
            return _OTHER_MODEL
        names.add(model)
        return model


class _Alike:
    """What requests came to that are alike: in protocol, backend, operation, model and code."""

    __slots__ = ("bytes_in", "bytes_out", "durations", "kind", "retries")

    def __init__(self, kind: OperationKind) -> None:
        self.kind = kind
        """Of their operation."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.retries = 0
        self.durations = Histogram()


class Traffic:
    """Everything counted for one protocol. The listeners count connections on it themselves."""

    __slots__ = (
        "_labels", "accepted", "answers", "bytes_in", "bytes_out", "connection_errors",
        "connections", "inference_reasons", "models", "operations", "protocol", "reasons",
        "retries",
    )  # fmt: skip

    def __init__(self, protocol: AppProtocol, labels: ModelLabels) -> None:
        """Count for one protocol; models as `labels` says."""
        self._labels = labels
        self.protocol = protocol
        self.connections = 0
        """Gauge: open connections of clients."""
        self.accepted = 0
        """Connections of clients that were accepted."""
        self.connection_errors: dict[Reason, int] = {}
        """Connections that we ended for their own fault, outside of any request."""
        self.answers: dict[Backend | None, dict[int, int]] = {}
        """Requests by the backend of their last attempt and by code."""
        self.reasons: dict[Reason, int] = {}
        """Requests that we answered with an error of our own, or cut short."""
        self.inference_reasons: dict[Reason, int] = {}
        """Inferences among them."""
        self.operations: dict[str, OperationUsage] = {}
        self.models: dict[bytes, ModelUsage] = {}
        self.retries = 0
        self.bytes_in = 0
        self.bytes_out = 0

    def connection_failed(self, reason: Reason) -> None:
        """Count a connection that broke a rule where no request was there to be blamed."""
        self.connection_errors[reason] = self.connection_errors.get(reason, 0) + 1

    def failed(self, reason: Reason, kind: OperationKind) -> None:
        """Count a request that we answered with an error of our own, or cut short."""
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        if kind is OperationKind.INFERENCE:
            self.inference_reasons[reason] = self.inference_reasons.get(reason, 0) + 1

    def usage_of(self, model: bytes, *, exists: bool) -> ModelUsage:
        """Where requests for a model are counted. `exists` as in `ModelLabels.of`."""
        name = self._labels.of(model, exists=exists)
        usage = self.models.get(name)
        if usage is None:
            usage = self.models[name] = ModelUsage()
        return usage

    def add(
        self, backend: Backend | None, operation: str, model: bytes, code: int, alike: _Alike
    ) -> None:
        """Count requests that are alike."""
        durations = alike.durations
        count = sum(durations.counts)
        known = _UNKNOWN_CODE if code_label(self.protocol, code) == OTHER else code
        _count(self.answers.setdefault(backend, {}), known, count)
        self._usage_of_operation(operation, alike.kind).durations.add(durations)
        self.bytes_in += alike.bytes_in
        self.bytes_out += alike.bytes_out
        self.retries += alike.retries
        if not model:
            return
        is_inferred = _is_inferred(self.protocol, alike.kind, code)
        usage = self.usage_of(model, exists=is_inferred)
        if known not in usage.codes and len(usage.codes) >= MAX_CODES:
            known = _UNKNOWN_CODE
        _count(usage.codes, known, count)
        usage.retries += alike.retries
        if is_inferred:
            usage.durations.add(durations)

    def _usage_of_operation(self, name: str, kind: OperationKind) -> OperationUsage:
        if name not in self.operations and len(self.operations) >= MAX_OPERATIONS:
            name, kind = OTHER, OperationKind.OTHER
        usage = self.operations.get(name)
        if usage is None:
            usage = self.operations[name] = OperationUsage(kind)
        return usage

    def durations(self) -> Iterator[tuple[OperationKind, Histogram]]:
        """Durations of whole requests by kind of operation; all kinds, used or not."""
        for kind in OperationKind:
            total = Histogram()
            for usage in tuple(self.operations.values()):
                if usage.kind is kind:
                    total.add(usage.durations)
            yield kind, total


class AnswerTimes:
    """Counts when the answers of one stream come, for the metrics of its model.

    Answers that arrive in one read count once.
    """

    __slots__ = ("_above_s", "_bucket", "_histogram", "_record", "_traffic", "_up_to_s", "last_at")

    def __init__(self, traffic: Traffic, record: RequestRecord, asked_at: float) -> None:
        """
        Args:
            traffic: where the model is counted.
            record: the stream; its model is known when the first answer comes.
            asked_at: when the first request came, in monotonic seconds.
        """
        self._traffic = traffic
        self._record = record
        self._histogram: Histogram | None = None
        self._bucket = 0
        """The bucket of the last time. Most streams have a steady pace, and stay in it."""
        self._above_s, self._up_to_s = _EDGES_S[0], _EDGES_S[1]
        """Its bounds in seconds."""
        self.last_at = asked_at
        """When the last answer came, or else the first request."""

    def on_answer(self, now: float) -> None:
        """A good answer came."""
        # HOT PATH (benchmarks/bench_stream_relay.py). Once per read of a stream of answers. The
        # bucket is most often the last one or beside it; `bisect_left` is the reference.
        histogram = self._histogram
        if histogram is None:
            usage = self._traffic.usage_of(self._record.model, exists=True)
            histogram, self._histogram = usage.first_answers, usage.intervals
        took = now - self.last_at
        self.last_at = now
        if took > self._up_to_s or took <= self._above_s:
            self._change_bucket(took)
        histogram.counts[self._bucket] += 1
        histogram.sum += took

    def _change_bucket(self, took: float) -> None:
        """Find the bucket of a time, step by step from the last one."""
        bucket = self._bucket
        while took > _EDGES_S[bucket + 1]:
            bucket += 1
        while took <= _EDGES_S[bucket]:
            bucket -= 1
        self._bucket = bucket
        self._above_s, self._up_to_s = _EDGES_S[bucket], _EDGES_S[bucket + 1]


class Meter:
    """The `RequestSink` behind the metrics page.

    Requests that are alike are counted together, in one place; the tables of `traffic` get these
    counts when somebody reads them.
    """

    __slots__ = ("_alike", "_traffic", "labels")

    def __init__(self, *, max_models: int = MAX_MODELS) -> None:
        """Count; at most `max_models` distinct models get a label of their own."""
        self.labels: Final = ModelLabels(max_models)
        self._traffic: Final = (
            Traffic(AppProtocol.HTTP, self.labels),
            Traffic(AppProtocol.GRPC, self.labels),
        )
        self._alike: Final[dict[_Likeness, _Alike]] = {}
        """What the tables do not have yet."""

    @property
    def traffic(self) -> tuple[Traffic, Traffic]:
        """Everything counted so far, indexed by `AppProtocol`."""
        if self._alike:
            self._settle()
        return self._traffic

    def configure(self, settings: MetricsSettings) -> None:
        """Go by other settings from now on; models that have a label keep it."""
        self.max_models = settings.model_labels

    @property
    def max_models(self) -> int:
        """Models that get a label of their own at most; those that have one keep it."""
        return self.labels.limit

    @max_models.setter
    def max_models(self, limit: int) -> None:
        self.labels.limit = limit

    def model_durations(
        self, read: Callable[[ModelUsage], Histogram]
    ) -> Iterator[tuple[bytes, Histogram]]:
        """One of the histograms of each model that has something in it, of both protocols."""
        first, second = (traffic.models for traffic in self.traffic)
        for model in first | second:
            total = Histogram()
            for models in (first, second):
                usage = models.get(model)
                if usage is not None:
                    total.add(read(usage))
            if any(total.counts):
                yield model, total

    def finished(self, record: RequestRecord) -> None:
        """Count one request."""
        # HOT PATH (benchmarks/bench_telemetry.py). Once per request.
        protocol = record.protocol
        code = record.grpc_status if protocol else record.status
        try:
            alike = self._alike[protocol, record.backend, record.operation.name, record.model, code]
        except KeyError:
            alike = self._first(record, code)
        took = record.ended_at - record.started_at
        durations = alike.durations
        durations.counts[bisect_left(LATENCY_BOUNDS_S, took)] += 1
        durations.sum += took
        alike.bytes_in += record.bytes_in
        alike.bytes_out += record.bytes_out
        if record.attempts > 1 and record.backend is not None:  # else it was put to all backends
            alike.retries += max(0, record.attempts - max(1, record.parts))
        if record.reason is not None:
            self._traffic[protocol].failed(record.reason, record.operation.kind)

    def retain(self, backends: Collection[Backend]) -> None:
        """Forget the backends that are not among `backends`: their series end with them."""
        for traffic in self.traffic:
            for backend in tuple(traffic.answers):
                if backend is not None and backend not in backends:
                    del traffic.answers[backend]

    def _first(self, record: RequestRecord, code: int) -> _Alike:
        """Where requests like this one are counted from now on."""
        if len(self._alike) >= MAX_ALIKE:
            self._settle()
        operation, model = record.operation, record.model
        if len(model) > MAX_MODEL_NAME:
            model = _OTHER_MODEL
        key = (record.protocol, record.backend, operation.name, model, code)
        return self._alike.setdefault(key, _Alike(operation.kind))

    def settle(self) -> Iterator[None]:
        """Put into the tables what they do not have yet, a few kinds of requests in each step."""
        # Good inferences first: with one of them a model has its label, for all else as well.
        kinds = sorted(self._alike, key=self._is_without_label)
        for begin in range(0, len(kinds), _KINDS_PER_STEP):
            for kind in kinds[begin : begin + _KINDS_PER_STEP]:
                alike = self._alike.pop(kind, None)
                if alike is not None:  # else it was put there between two steps
                    protocol, backend, name, model, code = kind
                    self._traffic[protocol].add(backend, name, model, code, alike)
            yield

    def _is_without_label(self, kind: _Likeness) -> bool:
        """Whether requests of a kind give no label to their model."""
        protocol, *_, code = kind
        return not _is_inferred(protocol, self._alike[kind].kind, code)

    def _settle(self) -> None:
        """Put into the tables what they do not have yet."""
        for _ in self.settle():
            pass


def _is_inferred(protocol: AppProtocol, kind: OperationKind, code: int) -> bool:
    """Whether a request is an inference that was answered well."""
    return kind is OperationKind.INFERENCE and not is_failure(protocol, code)


def _count(counts: dict[int, int], code: int, count: int) -> None:
    counts[code] = counts.get(code, 0) + count
