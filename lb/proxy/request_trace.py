"""The trace of one request: its ids, those of its attempts, and what backends are told of them."""

from __future__ import annotations

from random import Random
from typing import Final

from lb.domain.why import Why
from lb.telemetry.spans import FIRST_SPAN, ID_BITS, id_of_trace, span_id
from lb.wire.http1.trace_fields import with_lines, with_span
from lb.wire.http2.fields import encode_field
from lb.wire.trace_context import SAMPLED, TRACEPARENT, TRACESTATE, TraceContext, traceparent

_VALUE: Final = bytes(55)
_FIELD: Final = encode_field(TRACEPARENT, _VALUE).removesuffix(_VALUE)
"""What stands before the value of a `traceparent` in a header block."""


class RequestTrace:
    """The trace of one request.

    Its spans have numbers, from which `lb.telemetry.spans` makes their ids; the first attempt's is
    `FIRST_SPAN`. Only further attempts are noted here.
    """

    __slots__ = ("_last", "context", "is_first_over", "is_late", "number", "others")

    def __init__(self, rng: Random, context: TraceContext | None, *, is_late: bool = False) -> None:
        """
        Args:
            rng: makes the number.
            context: the caller's, if it has one.
            is_late: it was decided on so late that backends are told nothing.
        """
        self.number = rng.getrandbits(128)
        """Random; ids are made of it."""
        self.context = context
        self.is_late = is_late
        self.is_first_over = False
        """The first attempt has ended, and its span is noted."""
        self.others: dict[object, tuple[int, Why]] | None = None
        """Numbers of further attempts under way, and why they were made. None: there was none."""
        self._last = FIRST_SPAN

    @property
    def trace_id(self) -> bytes:
        """32 hexadecimal digits."""
        return id_of_trace(self.number, self.context)

    # Attempts

    def new_span(self) -> int:
        """Take the number of one more span."""
        self._last += 1
        return self._last

    def began(self, attempt: object, why: Why) -> int:
        """Note an attempt that is not the first, and why it was made; returns its number."""
        number = self.new_span()
        self._note(attempt, number, why)
        return number

    def hedged(self, attempt: object, first_span: int, hedge: object) -> None:
        """Note an attempt beside one under way, which may be the first.

        Args:
            attempt: that is under way.
            first_span: see `Exchange.first_span`.
            hedge: beside it.
        """
        if self.others is None or attempt not in self.others:
            is_part = first_span != FIRST_SPAN
            number = first_span or self.new_span()
            self._note(attempt, number, Why.PART if is_part else Why.FIRST)
        self.began(hedge, Why.HEDGE)

    def _note(self, attempt: object, number: int, why: Why) -> None:
        if self.others is None:
            self.others = {}
        self.others[attempt] = (number, why)

    def number_of(self, attempt: object, first_span: int) -> int:
        """The number of an attempt; arguments as of `ended`."""
        if self.others is None or attempt not in self.others:
            return first_span
        return self.others[attempt][0]

    def is_noted(self, attempt: object) -> bool:
        """Whether the span of the request's last attempt was noted when that ended."""
        return self.is_first_over if self.others is None else attempt not in self.others

    def ended(self, attempt: object, first_span: int) -> tuple[int, Why]:
        """Forget an attempt; returns its number, and why it was made.

        Args:
            attempt: that is over.
            first_span: see `Exchange.first_span`.
        """
        if self.others is not None:
            known = self.others.pop(attempt, None)
            if known is not None:
                return known
        if first_span != FIRST_SPAN:
            return first_span or self.new_span(), Why.PART
        # Who decides late has missed attempts, so that one more may look like the first.
        number = self.new_span() if self.is_first_over else FIRST_SPAN
        self.is_first_over = True
        return number, Why.FIRST

    # What backends are told

    def _parent(self, number: int) -> bytes:
        """The value of `traceparent` of an attempt."""
        context = self.context
        if context is None:
            return b"00-%032x-%016x-01" % (self.number, (self.number & ID_BITS) + number)
        told = span_id(self.number, number)
        return traceparent(context.trace_id, told, context.flags | SAMPLED)

    def block(self, attempt: object, first_span: int) -> bytes:
        """Fields for the header block of an attempt.

        Args:
            attempt: that is to be sent.
            first_span: see `Exchange.first_span`.
        """
        if self.is_late:
            return b""
        number = first_span if self.others is None else self.number_of(attempt, first_span)
        context = self.context
        if context is None or not context.state:
            return _FIELD + self._parent(number)
        return _FIELD + self._parent(number) + encode_field(TRACESTATE, context.state)

    def tell(self, head: bytes) -> bytes:
        """Write the context for the first attempt into a head of HTTP/1.1 that has none."""
        state = self.context.state if self.context is not None else b""
        return with_lines(head, self._parent(FIRST_SPAN), state)

    def retell(self, head: bytes, number: int) -> bytes:
        """Write the context for another attempt into a head by `tell`."""
        return head if self.is_late else with_span(head, span_id(self.number, number))


def context_block(context: TraceContext) -> bytes:
    """Fields of a header block that say so."""
    value = traceparent(context.trace_id, context.parent_id, context.flags)
    fields = encode_field(TRACEPARENT, value)
    return fields + encode_field(TRACESTATE, context.state) if context.state else fields
