"""Finds the trace context in a head, so that the rest is a head that repeats.

A `traceparent` differs in each request of a traced client. Without it the head is one that the
caches know. Only the usual spellings are found here; all else is left to the parser of heads.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from lb.wire.http1.grammar import CRLF
from lb.wire.trace_context import TraceContext, parse_traceparent, traceparent

_PARENT: Final = re.compile(
    rb"\r\n[Tt]raceparent:[ \t]*+([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})(?=\r\n)"
)
_STATE: Final = re.compile(rb"\r\n[Tt]racestate:[ \t]*+([!-~]++)(?=\r\n)")
_ANY: Final = re.compile(rb"\r\ntrace(?:parent|state):", re.IGNORECASE)

_SPAN_AT: Final = len(b"\r\ntraceparent: 00-") + 32 + len(b"-")


class CutHead(NamedTuple):
    """A head, and the trace context that was cut out of it."""

    bare: bytes
    """The head without the lines."""
    lines: bytes
    """The lines, each with the CRLF before it."""
    at: int
    """Where the first of them stood in the head."""
    context: TraceContext


def cut_context(head: bytes) -> CutHead | None:
    """Cut a well-formed trace context out of a head that may not be; None without one."""
    # HOT PATH (benchmarks/bench_traces.py). Two searches by the C library for most heads.
    if head.find(b"\r\ntraceparent:") < 0 and head.find(b"\r\nTraceparent:") < 0:
        return None
    parent = _PARENT.search(head)
    if parent is None:
        return None
    at, end = parent.span()
    lines = parent[0]
    bare = head[:at] + head[end:]
    state = _STATE.search(bare)
    if state is not None:
        lines += state[0]
        bare = bare[: state.start()] + bare[state.end() :]
        at = min(at, state.start())
    if _ANY.search(bare) is not None:
        return None  # more than one, or spelled in another way
    context = parse_traceparent(parent[1], state[1] if state is not None else b"")
    return None if context is None else CutHead(bare, lines, at, context)


def has_trace_field(head: bytes) -> bool:
    """Whether a head has a field of a trace context, however it is spelled."""
    return _ANY.search(head) is not None


def with_context(upstream: bytes, context: TraceContext) -> bytes:
    """A rebuilt head without a trace context, with this one below its request line."""
    value = traceparent(context.trace_id, context.parent_id, context.flags)
    lines = b"\r\ntraceparent: " + value
    if context.state:
        lines += b"\r\ntracestate: " + context.state
    at = upstream.index(CRLF)
    return upstream[:at] + lines + upstream[at:]


def span_at(upstream: bytes) -> int:
    """Where the id of the span stands in a head by `with_context`."""
    return upstream.index(CRLF) + _SPAN_AT


def with_lines(upstream: bytes, cut: CutHead) -> bytes:
    """A rebuilt head with the lines again: where they were, or else below its request line."""
    at = cut.at
    if upstream[:at] != cut.bare[:at]:
        at = upstream.index(CRLF)
    return upstream[:at] + cut.lines + upstream[at:]
