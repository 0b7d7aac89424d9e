"""Trace contexts that are cut out of heads of HTTP/1.1."""

from __future__ import annotations

import pytest

from lb.wire.http1.trace_fields import (
    LINE_BYTES,
    TRACEPARENT_LINE,
    has_trace_field,
    has_traceparent,
    value_at,
    with_context,
    with_line,
    with_span,
)
from lb.wire.trace_context import TraceContext

VALUE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BARE = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n"


def head(*lines: bytes, at: int = 2) -> bytes:
    found = BARE[:-4].split(b"\r\n")
    return b"\r\n".join([*found[:at], *lines, *found[at:]]) + b"\r\n\r\n"


@pytest.mark.parametrize("where", [1, 2, 3])
def test_a_context_is_found_and_put_back_where_it_was(where: int) -> None:
    whole = head(b"traceparent: " + VALUE, at=where)
    at = whole.find(TRACEPARENT_LINE)
    assert whole[:at] + whole[at + LINE_BYTES :] == BARE
    assert value_at(whole, at) == VALUE
    assert with_line(BARE, whole, at) == whole


def test_a_rebuilt_head_gets_the_line_below_its_request_line() -> None:
    whole = head(b"traceparent: " + VALUE)
    other = BARE.replace(b"infer", b"generate")
    start, _, rest = other.partition(b"\r\n")
    assert with_line(other, whole, whole.find(TRACEPARENT_LINE)) == (
        start + b"\r\ntraceparent: " + VALUE + b"\r\n" + rest
    )


@pytest.mark.parametrize("value", [VALUE.upper(), VALUE + b"-more", b"00", b"", VALUE + b" "])
def test_what_is_unusual_is_left_to_the_parser(value: bytes) -> None:
    whole = head(b"traceparent: " + value)
    assert value_at(whole, whole.find(TRACEPARENT_LINE)) is None


def test_fields_are_found_however_they_are_spelled() -> None:
    assert has_traceparent(head(b"TraceParent:x"))
    assert not has_traceparent(head(b"tracestate: a=1", b"x: traceparent:"))
    assert has_trace_field(head(b"TRACESTATE: a=1"))
    assert not has_trace_field(BARE)


def test_a_context_is_written_below_the_request_line() -> None:
    context = TraceContext(b"1" * 32, b"2" * 16, 1, b"a=1")
    told = b"traceparent: 00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"
    whole = with_context(BARE, context)
    assert whole == head(told, b"tracestate: a=1", at=1)
    other = with_span(whole, b"3" * 16)
    assert other == whole.replace(b"2" * 16, b"3" * 16)
