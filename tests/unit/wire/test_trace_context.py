"""The fields `traceparent` and `tracestate`, read and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.wire.trace_context import TraceContext, parse_traceparent, read_context, traceparent

ID = b"0af7651916cd43dd8448eb211c80319c"
SPAN = b"b7ad6b7169203331"
GOOD = b"00-" + ID + b"-" + SPAN + b"-01"


def facts(context: TraceContext | None) -> tuple[bytes, bytes, int, bytes] | None:
    if context is None:
        return None
    return context.trace_id, context.parent_id, context.flags, context.state


@pytest.mark.parametrize(
    ("value", "flags"),
    [
        (GOOD, 1),
        (b"00-" + ID + b"-" + SPAN + b"-00", 0),
        (b"00-" + ID + b"-" + SPAN + b"-03", 3),
        (b"00-" + ID + b"-" + SPAN + b"-ff", 255),
        (b"01-" + ID + b"-" + SPAN + b"-01", 1),
        (b"cc-" + ID + b"-" + SPAN + b"-01-what-comes-later", 1),
    ],
)
def test_a_good_traceparent_is_read(value: bytes, flags: int) -> None:
    assert facts(parse_traceparent(value)) == (ID, SPAN, flags, b"")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"00",
        GOOD + b" ",
        GOOD + b"-more",
        GOOD[:-1],
        GOOD.upper(),
        b"ff-" + ID + b"-" + SPAN + b"-01",
        b"00-" + b"0" * 32 + b"-" + SPAN + b"-01",
        b"00-" + ID + b"-" + b"0" * 16 + b"-01",
        b"00_" + ID + b"_" + SPAN + b"_01",
        b"cc-" + ID + b"-" + SPAN + b"-01x",
        b"00-" + ID[:-1] + b"g-" + SPAN + b"-01",
    ],
)
def test_a_malformed_traceparent_counts_as_none(value: bytes) -> None:
    assert parse_traceparent(value) is None


def test_several_traceparents_are_invalid_and_several_tracestates_are_one_list() -> None:
    parent, state = (b"traceparent", GOOD), (b"tracestate", b"a=1")
    assert read_context([parent, parent]) is None
    assert read_context([state]) is None
    assert facts(read_context([state, parent, (b"tracestate", b"b=2"), (b"x", b"y")])) == (
        ID, SPAN, 1, b"a=1,b=2",
    )  # fmt: skip


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.integers(0, 255))
def test_what_is_written_is_read_again(trace: int, span: int, flags: int) -> None:
    value = traceparent(b"%032x" % trace, b"%016x" % span, flags)
    assert len(value) == 55
    assert facts(parse_traceparent(value)) == (b"%032x" % trace, b"%016x" % span, flags, b"")
