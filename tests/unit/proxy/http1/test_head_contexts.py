"""Heads of traced clients: what they mean, and what the cache keeps of them."""

from __future__ import annotations

from typing import Any

import pytest

from lb.proxy.http1.heads import HeadReader, RequestPlan
from lb.wire.http1.limits import HeadLimits
from lb.wire.trace_context import Traces

LEARNT_WITHIN = 100
"""Heads until one with a `traceparent` is known without it."""
PER_HEAD = {"origin", "known_rows", "context", "route", "state"}


def head(number: int, more: bytes = b"", flags: bytes = b"00") -> bytes:
    return (
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n"
        b"traceparent: 00-%032x-%016x-%b\r\n%bContent-Length: 3\r\n\r\n"
        % (number, number, flags, more)
    )


def facts(plan: RequestPlan) -> dict[str, Any]:
    """All attributes but those; a compiled class has no `__slots__`."""
    names = {name for name in dir(plan) if not name.startswith("_")} - PER_HEAD
    return {name: value for name in names if not callable(value := getattr(plan, name))}


def reader(traces: Traces) -> HeadReader:
    return HeadReader(HeadLimits(), identity=b"triton-lb-0", traces=traces)


@pytest.mark.parametrize("traces", list(Traces))
@pytest.mark.parametrize("flags", [b"00", b"01"])
@pytest.mark.parametrize(
    "more", [b"", b"tracestate: a=1\r\n", b"Connection: close\r\n", b"x-request-id: 7\r\n"]
)
def test_a_context_of_a_known_head_means_what_the_parser_says(
    traces: Traces, flags: bytes, more: bytes
) -> None:
    warm, cold = reader(traces), reader(traces)
    for number in range(1, 2 * LEARNT_WITHIN):
        warm.request(head(number, more, flags))
    whole = head(1000, more, flags)
    quick, slow = warm.request(whole), cold.request(whole)
    assert quick.origin is not None
    assert slow.origin is None
    upstream = {quick.upstream, slow.upstream}
    lines = [sorted(each.split(b"\r\n")) for each in upstream]
    assert all(each == lines[0] for each in lines)
    ignored = {"upstream": b""}
    assert facts(quick) | ignored == facts(slow) | ignored
    assert (quick.context is None) is (slow.context is None) is (traces is Traces.OFF)
    if quick.context is not None and slow.context is not None:
        assert quick.context.trace_id == slow.context.trace_id == b"%032x" % 1000
        assert quick.context.state == slow.context.state


@pytest.mark.parametrize("traces", list(Traces))
@pytest.mark.parametrize("flags", [b"00", b"01"])
def test_a_head_that_came_without_a_context_before_may_come_with_one(
    traces: Traces, flags: bytes
) -> None:
    heads, cold = reader(traces), reader(traces)
    whole = head(7, flags=flags)
    start = whole.index(b"traceparent")
    plain = heads.request(whole[:start] + whole[whole.index(b"\r\n", start) + 2 :])
    quick, slow = heads.request(whole), cold.request(whole)
    assert quick.origin is plain
    assert sorted(quick.upstream.split(b"\r\n")) == sorted(slow.upstream.split(b"\r\n"))
    assert (quick.context is None) is (slow.context is None) is (traces is Traces.OFF)
    if quick.context is not None:
        assert (quick.context.trace_id, quick.context.state) == (b"%032x" % 7, b"")


@pytest.mark.parametrize("traces", list(Traces))
def test_new_contexts_push_no_other_head_out_of_the_cache(traces: Traces) -> None:
    heads = reader(traces)
    plain = head(1).replace(b"traceparent", b"x-other")
    kept = heads.request(plain)
    for number in range(5000):
        heads.request(head(number + 1))
    assert heads.known_request(plain) is kept


@pytest.mark.parametrize("traces", list(Traces))
def test_what_such_heads_teach_is_kept_with_the_head_without_it(traces: Traces) -> None:
    heads = reader(traces)
    plans = [heads.request(head(number)) for number in range(1, 3 * LEARNT_WITHIN)]
    origins = {id(plan.origin) for plan in plans[-LEARNT_WITHIN:]}
    assert len(origins) == 1
    assert None not in {plan.origin for plan in plans[-LEARNT_WITHIN:]}


def test_limits_hold_for_the_head_with_its_context() -> None:
    heads = HeadReader(HeadLimits(fields=4), traces=Traces.STRIP)
    for number in range(1, 2 * LEARNT_WITHIN):
        heads.request(head(number, b"x: y\r\n"))
    assert heads.plan(head(1000, b"x: y\r\nz: z\r\n")) is None
