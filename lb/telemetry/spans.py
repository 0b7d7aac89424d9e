"""Spans as the relay leaves them: plain values, which wait to be encoded and sent."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from lb.domain.backend import Address, AppProtocol
from lb.domain.operation import Operation
from lb.domain.outcome import Outcome
from lb.domain.why import Why
from lb.telemetry.record import RequestRecord

MAX_QUEUED: Final = 2048
"""Spans that wait to be sent; as many as the SDKs of OpenTelemetry keep by default."""
QUEUE_FULL: Final = "queue_full"


class RequestSpan(RequestRecord):
    """A finished request that is traced. Times are monotonic seconds, ids hexadecimal digits."""

    __slots__ = (
        "_connected_at", "_first_byte_at", "_queue_position", "_queue_why", "_sequence",
        "_trace_id", "_variant", "is_late", "parent_id", "queue_id", "span_id", "state",
    )  # fmt: skip

    def __init__(
        self,
        record: RequestRecord,
        trace_id: bytes,
        span_id: bytes,
        parent_id: bytes,
        state: bytes,
        *,
        is_late: bool,
        queue_id: bytes,
    ) -> None:
        """
        Args:
            record: what is kept of it may change afterwards.
            trace_id: of the trace.
            span_id: of the request.
            parent_id: the caller's span; empty without one.
            state: value of `tracestate`.
            is_late: it became a span only because of how it went.
            queue_id: of the span of its waiting; empty where it did not wait.
        """
        self.protocol = record.protocol
        self.operation = record.operation
        self.method = record.method
        self.path = record.path
        self.model = record.model
        self.backend = record.backend
        self.attempts = record.attempts
        self.client = record.client
        self.token = record.token
        self.request_id = record.request_id
        self.started_at = record.started_at
        self.placed_at = record.placed_at
        self.ended_at = record.ended_at
        self.bytes_in = record.bytes_in
        self.bytes_out = record.bytes_out
        self.status = record.status
        self.grpc_status = record.grpc_status
        self.reason = record.reason
        self._connected_at = record.connected_at
        self._first_byte_at = record.first_byte_at
        self._sequence = record.sequence
        self._variant = record.variant
        self._queue_position = record.queue_position
        self._queue_why = record.queue_why
        self._trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.state = state
        self.is_late = is_late
        self.queue_id = queue_id

    @property
    def trace_id(self) -> bytes:
        """See `RequestRecord`."""
        return self._trace_id

    @property
    def connected_at(self) -> float:
        """See `RequestRecord`."""
        return self._connected_at

    @property
    def first_byte_at(self) -> float:
        """See `RequestRecord`."""
        return self._first_byte_at

    @property
    def sequence(self) -> int | str | None:
        """See `RequestRecord`."""
        return self._sequence

    @property
    def variant(self) -> str:
        """See `RequestRecord`."""
        return self._variant

    @property
    def queue_position(self) -> int | None:
        """See `RequestRecord`."""
        return self._queue_position

    @property
    def queue_why(self) -> str:
        """See `RequestRecord`."""
        return self._queue_why


class AttemptSpan:
    """An attempt that is over, of a request that is traced."""

    __slots__ = (
        "address", "backend", "began_at", "code", "connected_at", "ended_at", "first_byte_at",
        "is_late", "method", "number", "operation", "outcome", "parent_id", "path", "protocol",
        "span_id", "state", "trace_id", "why",
    )  # fmt: skip

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    """The span of the request."""
    state: bytes
    is_late: bool
    protocol: AppProtocol
    operation: Operation
    method: bytes
    path: bytes
    backend: str
    address: Address
    why: Why
    number: int
    """Attempts of the request so far."""
    began_at: float
    connected_at: float
    first_byte_at: float
    ended_at: float
    outcome: Outcome
    code: int
    """HTTP or gRPC status, where it was answered."""


Span = RequestSpan | AttemptSpan


class SpanQueue:
    """Spans that wait to be sent. It is bounded: what comes to a full queue is dropped."""

    __slots__ = ("dropped", "exported", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Span] = deque()
        self.exported = 0
        """Counter: spans that the collector took."""
        self.dropped: Counter[str] = Counter()
        """Counter: spans that it did not get, by why."""

    def add(self, span: Span) -> None:
        """Keep a span, if there is room."""
        if len(self.waiting) < MAX_QUEUED:
            self.waiting.append(span)
        else:
            self.dropped[QUEUE_FULL] += 1
