"""The trace of one request: its ids, those of its attempts, and what backends are told of them."""

from __future__ import annotations

from random import Random

from lb.domain.why import Why
from lb.wire.http2.fields import encode_field
from lb.wire.trace_context import SAMPLED, TRACEPARENT, TRACESTATE, TraceContext, traceparent


class RequestTrace:
    """The trace of one request."""

    __slots__ = ("_attempts", "_rng", "context", "is_late", "span_id", "trace_id")

    def __init__(self, rng: Random, context: TraceContext | None, *, is_late: bool = False) -> None:
        """
        Args:
            rng: makes ids.
            context: the caller's, if it has one.
            is_late: it was decided on so late that backends are told nothing.
        """
        self._rng = rng
        self.context = context
        self.is_late = is_late
        self.trace_id = (
            context.trace_id if context is not None else b"%032x" % (rng.getrandbits(128) or 1)
        )
        self.span_id = new_span_id(rng)
        self._attempts: dict[object, tuple[bytes, Why]] = {}
        """Ids of the attempts under way, and why they were made."""

    @property
    def parent_id(self) -> bytes:
        """The caller's span; empty without one."""
        return self.context.parent_id if self.context is not None else b""

    @property
    def state(self) -> bytes:
        """Value of `tracestate`; empty without one."""
        return self.context.state if self.context is not None else b""

    def began(self, attempt: object, why: Why) -> bytes:
        """Note an attempt and why it was made; returns the id of its span. An attempt that nobody
        notes is the first one."""
        span_id = new_span_id(self._rng)
        self._attempts[attempt] = (span_id, why)
        return span_id

    def span_of(self, attempt: object) -> bytes:
        """The id of an attempt's span."""
        known = self._attempts.get(attempt)
        return known[0] if known is not None else self.began(attempt, Why.FIRST)

    def has(self, attempt: object) -> bool:
        """Whether an attempt was noted and has not ended."""
        return attempt in self._attempts

    def ended(self, attempt: object) -> tuple[bytes, Why]:
        """Forget an attempt; returns the id of its span, and why it was made."""
        self.span_of(attempt)
        return self._attempts.pop(attempt)

    # What backends are told

    def told(self, span_id: bytes) -> TraceContext:
        """The trace context that a backend gets, as the child of a span."""
        flags = self.context.flags | SAMPLED if self.context is not None else SAMPLED
        return TraceContext(self.trace_id, span_id, flags, self.state)

    def block(self, attempt: object) -> bytes:
        """Fields for the header block of an attempt."""
        return b"" if self.is_late else context_block(self.told(self.span_of(attempt)))


def context_block(context: TraceContext) -> bytes:
    """Fields of a header block that say so."""
    value = traceparent(context.trace_id, context.parent_id, context.flags)
    fields = encode_field(TRACEPARENT, value)
    return fields + encode_field(TRACESTATE, context.state) if context.state else fields


def new_span_id(rng: Random) -> bytes:
    """An id for a span."""
    return b"%016x" % (rng.getrandbits(64) or 1)
