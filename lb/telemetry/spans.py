"""Spans: records as the relay leaves them, which wait, and what is made of them to be encoded."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from lb.domain.backend import Address, AppProtocol, Backend
from lb.domain.operation import Operation
from lb.domain.outcome import Outcome, Reason
from lb.domain.why import Why
from lb.telemetry.record import RequestRecord
from lb.wire.trace_context import TraceContext

MAX_QUEUED: Final = 2048
"""Records that wait to be sent; as many as the SDKs of OpenTelemetry keep spans by default."""
QUEUE_FULL: Final = "queue_full"
REQUEST_SPAN: Final = 1
QUEUE_SPAN: Final = 2
FIRST_SPAN: Final = 3
"""Numbers of spans: of the request, of its waiting, and of its first attempt. Those of further
attempts are greater."""
ID_BITS: Final = (1 << 63) - 1
"""Bits of a trace's number that the ids of its spans begin with. An id has one bit more, so that
ids neither overflow nor are 0."""

TraceFacts = tuple[int, TraceContext | None, bool, AppProtocol, Operation, bytes, bytes]
"""What all spans of a request share: the number of its trace, the context of its caller, whether it
was decided on late; protocol, operation, method and path."""
RequestFacts = tuple[
    bytes, Backend | None, int, str, str, bytes, float, float, float, float, float, int, int, int,
    int, Reason | None, bool,
]  # fmt: skip
"""Of a request that is over, in the order of `RequestSpan`; then whether its first attempt answered
it, which has no record of its own."""
RareFacts = tuple[int | str | None, str, int, bool, int | None, str]
"""Of a request that is a step, was cut, waited or has variants, in the order of `RequestSpan`."""
AttemptFacts = tuple[
    int, Why, str, Address, int, float, float, float, float, Outcome, int
]  # fmt: skip
"""Of an attempt that is over, in the order of `AttemptSpan`."""
Record = tuple[TraceFacts, RequestFacts | None, RareFacts | None, AttemptFacts | None]
"""A request, or an attempt."""


def id_of_trace(number: int, context: TraceContext | None) -> bytes:
    """The id of a trace: the caller's, or else of its number."""
    return context.trace_id if context is not None else b"%032x" % (number or 1)


def span_id(number: int, span: int) -> bytes:
    """The id of a span of the trace with that number."""
    return b"%016x" % ((number & ID_BITS) + span)


class RequestSpan(RequestRecord):
    """A finished request that is traced. Times are monotonic seconds, ids hexadecimal digits."""

    __slots__ = (
        "_connected_at", "_first_byte_at", "_parts", "_queue_position", "_queue_why", "_sequence",
        "_trace_id", "_variant", "is_late", "parent_id", "queue_id", "span_id", "state",
    )  # fmt: skip

    def __init__(self, trace: TraceFacts, facts: RequestFacts, rare: RareFacts | None) -> None:
        number, context, self.is_late, self.protocol, self.operation, self.method, self.path = trace
        (
            self.model, self.backend, self.attempts, self.client, self.token, self.request_id,
            self.started_at, self.placed_at, self._connected_at, self._first_byte_at, self.ended_at,
            self.bytes_in, self.bytes_out, self.status, self.grpc_status, self.reason, _,
        ) = facts  # fmt: skip
        has_waited = False
        (
            self._sequence, self._variant, self._parts, has_waited, self._queue_position,
            self._queue_why,
        ) = rare or (None, "", 0, False, None, "")  # fmt: skip
        self._trace_id = id_of_trace(number, context)
        self.span_id = span_id(number, REQUEST_SPAN)
        self.parent_id = b"" if context is None else context.parent_id
        """The caller's span; empty without one."""
        self.state = b"" if context is None else context.state
        """Value of `tracestate`; empty without one."""
        self.queue_id = span_id(number, QUEUE_SPAN) if has_waited else b""
        """Of the span of its waiting; empty where it did not wait."""

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

    @property
    def parts(self) -> int:
        """See `RequestRecord`."""
        return self._parts


class AttemptSpan:
    """An attempt that is over, of a request that is traced."""

    __slots__ = (
        "address", "backend", "began_at", "code", "connected_at", "ended_at", "first_byte_at",
        "is_late", "method", "number", "operation", "outcome", "parent_id", "path", "protocol",
        "span_id", "state", "trace_id", "why",
    )  # fmt: skip

    def __init__(self, trace: TraceFacts, facts: AttemptFacts) -> None:
        number, context, self.is_late, self.protocol, self.operation, self.method, self.path = trace
        (
            span, self.why, self.backend, self.address, self.number, self.began_at,
            self.connected_at, self.first_byte_at, self.ended_at, self.outcome, self.code,
        ) = facts  # fmt: skip
        self.trace_id = id_of_trace(number, context)
        self.span_id = span_id(number, span)
        self.parent_id = span_id(number, REQUEST_SPAN)
        """The span of the request."""
        self.state = b"" if context is None else context.state

    number: int
    """Attempts of the request so far."""
    code: int
    """HTTP or gRPC status, where it was answered."""


Span = RequestSpan | AttemptSpan


def _answering(trace: TraceFacts, request: RequestSpan, backend: Backend) -> AttemptSpan:
    """The span of the first attempt at a request, which answered it."""
    address = backend.port(request.protocol).address
    code = request.grpc_status if request.protocol is AppProtocol.GRPC else request.status
    facts = (
        FIRST_SPAN, Why.FIRST, backend.name, address, 1, request.placed_at, request.connected_at,
        request.first_byte_at, request.ended_at, Outcome.ANSWERED, code,
    )  # fmt: skip
    return AttemptSpan(trace, facts)


def spans_of(record: Record) -> list[Span]:
    """Make the spans of a record."""
    trace, facts, rare, attempt = record
    found: list[Span] = []
    if attempt is not None:
        found.append(AttemptSpan(trace, attempt))
    if facts is not None:
        request = RequestSpan(trace, facts, rare)
        if facts[-1] and request.backend is not None:
            found.append(_answering(trace, request, request.backend))
        found.append(request)
    return found


class SpanQueue:
    """Records that wait to be sent. It is bounded: what comes to a full queue is dropped."""

    __slots__ = ("dropped", "exported", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Record] = deque()
        self.exported = 0
        """Counter: spans that the collector took."""
        self.dropped: Counter[str] = Counter()
        """Counter: spans that it did not get, by why."""

    def add(self, record: Record) -> None:
        """Keep a record, if there is room."""
        if len(self.waiting) < MAX_QUEUED:
            self.waiting.append(record)
        else:
            _, facts, rare, _ = record
            is_answered = facts is not None and facts[-1]
            has_waited = rare is not None and rare[3]
            self.dropped[QUEUE_FULL] += 1 + is_answered + has_waited
