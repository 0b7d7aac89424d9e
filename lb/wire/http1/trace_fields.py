"""Trace contexts in heads of HTTP/1.1.

A `traceparent` differs in each request of a traced client. Without it the head is one that caches
know. All but the usual spellings are left to the parser of heads.
"""

from __future__ import annotations

import re
from typing import Final

from lb.wire.http1.grammar import CRLF
from lb.wire.trace_context import TraceContext, traceparent

_VALUE: Final = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_PARENT: Final = re.compile(rb"\r\ntraceparent:", re.IGNORECASE)
_ANY: Final = re.compile(rb"\r\ntrace(?:parent|state):", re.IGNORECASE)
TRACEPARENT_LINE: Final = b"\r\ntraceparent: "
"""How the line of a `traceparent` usually begins, after the line before it."""
_NAME_BYTES: Final = len(TRACEPARENT_LINE)
LINE_BYTES: Final = _NAME_BYTES + 55
"""Of a line with a `traceparent`, the CRLF before it included."""
_SPAN_AT: Final = _NAME_BYTES + len(b"00-") + 32 + len(b"-")


def value_at(head: bytes, at: int) -> bytes | None:
    """The value of the `traceparent` whose line begins there; None if it does not look like one."""
    value = head[at + _NAME_BYTES : at + LINE_BYTES]
    ends = head[at + LINE_BYTES : at + LINE_BYTES + 2] == CRLF
    return value if ends and _VALUE.fullmatch(value) is not None else None


def has_traceparent(head: bytes) -> bool:
    """Whether a head has a `traceparent`, however it is spelled."""
    return _PARENT.search(head) is not None


def has_trace_field(head: bytes) -> bool:
    """Whether a head has a field of a trace context, however it is spelled."""
    return _ANY.search(head) is not None


def with_line(upstream: bytes, head: bytes, at: int) -> bytes:
    """A rebuilt head with the line that stands there in the head of the client: at the same place,
    or else below its request line."""
    line = head[at : at + LINE_BYTES]
    if upstream[:at] != head[:at]:
        at = upstream.index(CRLF)
    return upstream[:at] + line + upstream[at:]


def with_lines(upstream: bytes, parent: bytes, state: bytes) -> bytes:
    """A rebuilt head without a trace context, with one below its request line.

    Args:
        upstream: the head.
        parent: value of `traceparent`, in version 00.
        state: value of `tracestate`; empty without one.
    """
    at = upstream.index(CRLF)
    if not state:
        return upstream[:at] + TRACEPARENT_LINE + parent + upstream[at:]
    return b"%b%b%b\r\ntracestate: %b%b" % (
        upstream[:at], TRACEPARENT_LINE, parent, state, upstream[at:],
    )  # fmt: skip


def with_context(upstream: bytes, context: TraceContext) -> bytes:
    """A rebuilt head without a trace context, with this one below its request line."""
    value = traceparent(context.trace_id, context.parent_id, context.flags)
    return with_lines(upstream, value, context.state)


def with_span(upstream: bytes, span_id: bytes) -> bytes:
    """A head by `with_lines` with another span in its `traceparent`."""
    at = upstream.index(CRLF) + _SPAN_AT
    return upstream[:at] + span_id + upstream[at + len(span_id) :]
