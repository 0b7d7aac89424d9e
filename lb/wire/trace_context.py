"""The trace context of a request: fields `traceparent` and `tracestate` (W3C Trace Context).

`tracestate` belongs to the vendors who wrote it. It is passed on as it came, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import Final

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
TRACE_FIELDS: Final = frozenset({TRACEPARENT, TRACESTATE})
SAMPLED: Final = 0x01
"""The flag of a caller that records its part of the trace."""
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)


class Traces(Enum):
    """What becomes of the trace contexts of clients."""

    OFF = "off"
    """They are fields like any other."""
    STRIP = "strip"
    """Backends see the contexts of sampled requests, with our spans in them, and no others."""
    PASS = "pass"
    """As `STRIP`, but contexts that are not sampled go on as they came."""


class TraceContext:
    """What a caller says of the trace that its request belongs to."""

    __slots__ = ("flags", "parent_id", "state", "trace_id")

    def __init__(self, trace_id: bytes, parent_id: bytes, flags: int, state: bytes = b"") -> None:
        self.trace_id = trace_id
        """32 hexadecimal digits."""
        self.parent_id = parent_id
        """The caller's span, 16 hexadecimal digits."""
        self.flags = flags
        self.state = state
        """Value of `tracestate`; empty without one."""

    @property
    def is_sampled(self) -> bool:
        """Whether the caller records its part."""
        return bool(self.flags & SAMPLED)


def parse_traceparent(value: bytes, state: bytes = b"") -> TraceContext | None:
    """Read the value of a `traceparent`; None if it is malformed.

    A version above 00 may have more fields than the four that are known.
    """
    match = _TRACEPARENT.fullmatch(value)
    if match is None or (match[5] is not None and match[1] == b"00"):
        return None
    return TraceContext(match[2], match[3], int(match[4], 16), state)


def read_context(fields: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """The context among the fields of a request; None without a valid one.

    Several `traceparent` fields are invalid. Several `tracestate` fields are one list.

    Args:
        fields: names in lower case, and values.
    """
    parents, states = [], []
    for name, value in fields:
        if name == TRACEPARENT:
            parents.append(value)
        elif name == TRACESTATE:
            states.append(value)
    if len(parents) != 1:
        return None
    return parse_traceparent(parents[0], b",".join(states))


def traceparent(trace_id: bytes, span_id: bytes, flags: int) -> bytes:
    """The value of the field, in version 00."""
    return b"00-%b-%b-%02x" % (trace_id, span_id, flags)
