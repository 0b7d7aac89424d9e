"""Traced requests that have several attempts at once, and requests that are traced late."""

from __future__ import annotations

import pytest

from lb.domain.why import Why
from lb.proxy.tracing import Tracer
from lb.telemetry.spans import AttemptSpan, RequestSpan
from lb.telemetry.spans import spans_of as spans_of_record
from tests.fakes.http1_sides import Sides
from tests.fakes.http2_connections import PaperRelay
from tests.fakes.paper_streams import STREAM, PaperStreams, result
from tests.fakes.paper_streams import request as stream_request
from tests.wire.frames import (
    DATA,
    HEADERS,
    RESPONSE_FIELDS,
    answer,
    call,
    data,
    headers,
    request_fields,
    rst,
)

_POST = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_FIELD = b"traceparent"


def spans_of(tracer: Tracer) -> tuple[list[RequestSpan], list[AttemptSpan]]:
    """The spans of requests and of attempts that wait for the collector."""
    found = [span for record in tracer.spans.waiting for span in spans_of_record(record)]
    return (
        [each for each in found if isinstance(each, RequestSpan)],
        [each for each in found if isinstance(each, AttemptSpan)],
    )


def context_of(head: bytes) -> tuple[bytes, bytes]:
    """The ids of the trace and of the attempt that a backend was told; empty without."""
    _, found, rest = head.partition(_FIELD)
    if not found:
        return b"", b""
    parts = rest[rest.index(b"00-") :].split(b"-")
    return parts[1], parts[2]


def hedged_call(ratio: float) -> tuple[Tracer, list[bytes]]:
    """A gRPC call of which the second attempt is the first to answer. Returns the heads that
    backends got."""
    relay = PaperRelay(backends=2)
    tracer = relay.trace(ratio=ratio)
    sides = [relay.backend(0), relay.backend(1)]
    client = relay.client()
    client.sends(call(1))
    (one,) = relay.relay.under_way()
    assert relay.relay.hedge(one)
    relay.flush()
    heads = [next(each.payload for each in side.gets() if each.kind == HEADERS) for side in sides]
    sides[1].sends(answer(1))
    assert [each.kind for each in client.gets()] == [HEADERS, DATA, HEADERS]
    sides[0].sends(rst(1))
    assert relay.is_clean()
    return tracer, heads


def hedged_request(ratio: float) -> tuple[Tracer, list[bytes]]:
    """The same over HTTP/1.1."""
    sides = Sides(backends=2)
    tracer = sides.trace(ratio=ratio)
    upstreams = [sides.upstream(0), sides.upstream(1)]
    server, client = sides.client()
    server.data_received(_POST)
    (one,) = sides.relay.under_way()
    assert sides.relay.hedge(one)
    heads = [transport.take() for _, transport in upstreams]
    for connection, _ in reversed(upstreams):
        connection.data_received(_OK)
    assert client.take() == _OK
    assert sides.is_clean()
    return tracer, heads


@pytest.mark.parametrize("play", [hedged_call, hedged_request])
async def test_a_hedge_has_a_span_of_its_own(play: object) -> None:
    tracer, heads = play(1.0)  # type: ignore[operator]
    (request,), attempts = spans_of(tracer)
    assert {each.why for each in attempts} == {Why.FIRST, Why.HEDGE}
    assert {each.trace_id for each in attempts} == {request.trace_id}
    told = [context_of(head) for head in heads]
    assert {trace for trace, _ in told} == {request.trace_id}
    by_why = {each.why: each.span_id for each in attempts}
    assert [span for _, span in told] == [by_why[Why.FIRST], by_why[Why.HEDGE]]


@pytest.mark.parametrize("play", [hedged_call, hedged_request])
async def test_a_hedged_request_is_traced_though_it_was_not_drawn(play: object) -> None:
    tracer, heads = play(0.0)  # type: ignore[operator]
    (request,), attempts = spans_of(tracer)
    assert request.is_late
    assert {each.why for each in attempts} == {Why.FIRST, Why.HEDGE}
    assert [context_of(head) for head in heads] == [(b"", b"")] * 2, "they had begun before"


async def test_each_backend_of_a_stream_has_a_span() -> None:
    paper = PaperStreams()
    tracer = paper.bench.trace(ratio=1.0)
    paper.client.sends(headers(3, request_fields(path=STREAM)))
    for number, name in enumerate(("1", "2"), 1):
        paper.client.sends(data(3, stream_request("seq", number, name, start=True)))
    heads = [
        next(each.payload for each in side.gets() if each.kind == HEADERS)
        for side in paper.backends
    ]
    for number, side in enumerate(paper.backends, 1):
        side.sends(headers(1, RESPONSE_FIELDS), data(1, result("seq", str(number))))
    paper.client.sends(data(3, end=True))
    paper.end(0, 1)
    requests, attempts = spans_of(tracer)
    (request,) = [each for each in requests if each.attempts]
    assert {context_of(head) for head in heads} == {(s.trace_id, s.span_id) for s in attempts}
    assert {each.trace_id for each in attempts} == {request.trace_id}
    assert [each.backend for each in attempts] == ["b0", "b1"]


async def test_no_more_failures_are_traced_than_may_be_and_none_once_tracing_is_off() -> None:
    relay = PaperRelay()
    tracer = relay.trace(spans_per_s=12)
    side, client = relay.backend(), relay.client()
    failed = headers(1, [*RESPONSE_FIELDS, (b"grpc-status", b"13")], end=True)
    for number in range(10):
        client.sends(call(2 * number + 1))
        side.sends(failed.replace(b"\0\0\0\1", (2 * number + 1).to_bytes(4, "big")))
    requests, attempts = spans_of(tracer)
    assert 0 < len(requests) + len(attempts) < 20
    tracer.spans.waiting.clear()
    tracer.configure(None)
    client.sends(call(21))
    side.sends(failed.replace(b"\0\0\0\1", (21).to_bytes(4, "big")))
    assert client.gets()
    assert not tracer.spans.waiting
