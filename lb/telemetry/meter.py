"""Counts finished requests on plain integers; the collector renders them at scrape time.

Every table here is bounded: codes and reasons are closed sets, operations and models are capped,
and backends that left are dropped. So no client can grow the process or its page of metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from typing import Final

from lb.domain.backend import LATENCY_BOUNDS_S, AppProtocol, Backend, Histogram
from lb.domain.operation import Operation, OperationKind
from lb.domain.outcome import Reason
from lb.settings.reporting import MetricsSettings
from lb.telemetry.labels import OTHER, code_label, is_failure
from lb.telemetry.record import RequestRecord

MAX_MODELS: Final = 100
"""Distinct `model` labels, each with at most four series, where the settings say nothing."""
MAX_MODEL_NAME: Final = 255
"""Bytes. Triton's model names are names of folders."""
MAX_OPERATIONS: Final = 64
"""KServe v2 and Triton have about thirty."""

_UNKNOWN_CODE: Final = 1000
"""Stands for every code that has no label of its own."""
_OTHER_MODEL: Final = OTHER.encode()


class OperationUsage:
    """How often one operation was called, and how long its requests took."""

    __slots__ = ("durations", "kind")

    # The few names that stand for calls of two kinds (TraceSetting reads and writes) are counted
    # under the kind that came first.
    def __init__(self, kind: OperationKind) -> None:
        self.kind = kind
        self.durations = Histogram()


class ModelUsage:
    """How often one ML model was asked for."""

    __slots__ = ("failures", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.failures = 0
        """Those whose status tells the client of an error."""


class Traffic:
    """Everything counted for one protocol. The listeners count connections on it themselves."""

    __slots__ = (
        "accepted", "answers", "bytes_in", "bytes_out", "connection_errors", "connections",
        "models", "operations", "protocol", "reasons", "retries",
    )  # fmt: skip

    def __init__(self, protocol: AppProtocol) -> None:
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
        self.operations: dict[str, OperationUsage] = {}
        self.models: dict[bytes, ModelUsage] = {}
        self.retries = 0
        self.bytes_in = 0
        self.bytes_out = 0

    def connection_failed(self, reason: Reason) -> None:
        """Count a connection that broke a rule where no request was there to be blamed."""
        self.connection_errors[reason] = self.connection_errors.get(reason, 0) + 1

    def durations(self) -> Iterator[tuple[OperationKind, Histogram]]:
        """Durations of whole requests by kind of operation; all kinds, used or not."""
        for kind in OperationKind:
            total = Histogram()
            for usage in tuple(self.operations.values()):
                if usage.kind is kind:
                    counts = usage.durations.counts
                    total.counts = [a + b for a, b in zip(total.counts, counts, strict=True)]
                    total.sum += usage.durations.sum
            yield kind, total


class Meter:
    """The `RequestSink` behind the metrics page."""

    __slots__ = ("_names", "max_models", "traffic")

    def __init__(self, *, max_models: int = MAX_MODELS) -> None:
        """Count; at most `max_models` distinct models get a label of their own."""
        self.max_models = max_models
        """Models that get a label of their own at most; those that have one keep it."""
        self._names: set[bytes] = set()
        """Models that have a label of their own, on either protocol."""
        self.traffic: Final = (Traffic(AppProtocol.HTTP), Traffic(AppProtocol.GRPC))
        """Indexed by `AppProtocol`."""

    def configure(self, settings: MetricsSettings) -> None:
        """Go by other settings from now on; models that have a label keep it."""
        self.max_models = settings.model_labels

    def finished(self, record: RequestRecord) -> None:
        """Count one request."""
        # HOT PATH (benchmarks/bench_telemetry.py). Once per request: known keys are counted here,
        # without a call; the first of each kind, and whatever is rare, goes to the methods below.
        protocol = record.protocol
        traffic = self.traffic[protocol]
        code = record.grpc_status if protocol else record.status
        traffic.bytes_in += record.bytes_in
        traffic.bytes_out += record.bytes_out
        try:
            traffic.answers[record.backend][code] += 1
        except KeyError:
            self._first_answer(traffic, record.backend, code)
        operation = record.operation
        try:
            durations = traffic.operations[operation.name].durations
        except KeyError:
            durations = self._first_call(traffic, operation).durations
        took = record.ended_at - record.started_at
        durations.counts[bisect_left(LATENCY_BOUNDS_S, took)] += 1
        durations.sum += took
        model = record.model
        if model:
            try:
                traffic.models[model].requests += 1
            except KeyError:
                model = self._first_use(traffic, model, code)
            if is_failure(protocol, code):
                traffic.models[model].failures += 1
        if record.attempts > 1:
            traffic.retries += record.attempts - 1
        if record.reason is not None:
            traffic.reasons[record.reason] = traffic.reasons.get(record.reason, 0) + 1

    def retain(self, backends: Collection[Backend]) -> None:
        """Forget the backends that are not among `backends`: their series end with them."""
        for traffic in self.traffic:
            for backend in tuple(traffic.answers):
                if backend is not None and backend not in backends:
                    del traffic.answers[backend]

    def _first_answer(self, traffic: Traffic, backend: Backend | None, code: int) -> None:
        if code_label(traffic.protocol, code) == OTHER:
            code = _UNKNOWN_CODE
        codes = traffic.answers.setdefault(backend, {})
        codes[code] = codes.get(code, 0) + 1

    def _first_call(self, traffic: Traffic, operation: Operation) -> OperationUsage:
        name = operation.name
        if len(traffic.operations) >= MAX_OPERATIONS:
            name, kind = OTHER, OperationKind.OTHER
        else:
            kind = operation.kind
        return traffic.operations.setdefault(name, OperationUsage(kind))

    def _first_use(self, traffic: Traffic, model: bytes, code: int) -> bytes:
        """Count a model that has no entry yet; return the name that it is counted under.

        A name gets a label only once a backend has answered well for it: names that clients
        make up cannot use up the labels of those that exist.
        """
        name = model if self._may_have_label(model, traffic.protocol, code) else _OTHER_MODEL
        traffic.models.setdefault(name, ModelUsage()).requests += 1
        return name

    def _may_have_label(self, model: bytes, protocol: AppProtocol, code: int) -> bool:
        if model in self._names:
            return True
        if is_failure(protocol, code) or len(model) > MAX_MODEL_NAME:
            return False
        if len(self._names) >= self.max_models:
            return False
        self._names.add(model)
        return True
