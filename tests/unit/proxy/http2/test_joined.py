"""However a call ends, nothing of it is left."""

from __future__ import annotations

import pytest

from lb.domain.outcome import Outcome, Reason
from lb.proxy.http2.relay import Http2Options
from lb.wire.grpc.status import GrpcStatus
from tests.fakes.frames import (
    CANCEL,
    RESPONSE_FIELDS,
    RST_STREAM,
    answer,
    call,
    data,
    headers,
    message,
    named,
    request_fields,
    rst,
)
from tests.fakes.links import PaperRelay


async def test_deadline_ends_the_call_on_both_sides() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(call(1, None, (b"grpc-timeout", b"2S")))
    backend.gets()
    relay.loop.advance(2.1)
    relay.relay.flush()
    (head,) = client.gets()
    assert b"grpc-status\x014" in head.payload
    assert [(f.kind, f.code) for f in backend.gets()] == [(RST_STREAM, CANCEL)]
    assert relay.outcomes.seen == [("b0", Outcome.DEADLINE)]
    assert relay.is_clean()


@pytest.mark.parametrize("begins_with", ["whole", "message", "end"])
@pytest.mark.parametrize(("asked", "own_s"), [(b"9S", 2.0), (b"2S", 9.0)])
async def test_the_shorter_time_ends_a_call_that_has_two(
    asked: bytes, own_s: float, begins_with: str
) -> None:
    relay = PaperRelay(options=Http2Options(request_timeout_s=own_s))
    relay.backend()
    client = relay.client()
    head = request_fields((b"grpc-timeout", asked))
    if begins_with == "whole":
        client.sends(call(1, None, (b"grpc-timeout", asked)))
    elif begins_with == "message":
        client.sends(headers(1, head))
        client.sends(data(1, named(), end=True))
    else:
        client.sends(headers(1, head, end=True))
    (exchange,) = (pipe.owner for link in relay.links for pipe in link.streams.values())
    assert exchange.due - exchange.started_at == 2.0
    relay.loop.advance(1.9)
    assert relay.outcomes.seen == []
    relay.loop.advance(0.2)
    assert relay.outcomes.seen == [("b0", Outcome.DEADLINE)]
    assert relay.is_clean()


async def test_deadline_after_the_answer_began_resets_the_stream() -> None:
    relay = PaperRelay(options=Http2Options(request_timeout_s=2.0))
    backend, client = relay.backend(), relay.client()
    client.sends(call(1))
    backend.sends(headers(1, RESPONSE_FIELDS), data(1, message()))
    client.gets()
    relay.loop.advance(2.1)
    relay.relay.flush()
    assert [(f.kind, f.code) for f in client.gets()] == [(RST_STREAM, CANCEL)]
    assert relay.is_clean()


async def test_an_answered_call_has_no_deadline_any_more() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    pending = len(relay.timers)
    client.sends(call(1, None, (b"grpc-timeout", b"2S")))
    assert len(relay.timers) == pending + 1
    backend.sends(answer(1))
    assert len(relay.timers) == pending


async def test_cancelling_reaches_the_backend() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(call(1))
    backend.gets()
    client.sends(rst(1, CANCEL))
    assert [(f.kind, f.code) for f in backend.gets()] == [(RST_STREAM, CANCEL)]
    (record,) = relay.finished.records
    assert (record.grpc_status, record.reason) == (GrpcStatus.CANCELLED, Reason.CLIENT_GONE)
    assert relay.is_clean()


async def test_bytes_that_cannot_be_held_end_the_call() -> None:
    relay = PaperRelay(ceiling=50_000)
    client = relay.client()
    relay.backend()
    client.link.pause_writing()
    client.sends(call(1))
    (pool,) = [relay.relay.pool(each) for each in relay.backends]
    backend = pool.links[0]
    backend.data_received(headers(1, RESPONSE_FIELDS) + data(1, bytes(60_000)))
    relay.relay.flush()
    assert client.gets()[-1].kind == RST_STREAM
    (record,) = relay.finished.records
    assert record.reason is Reason.MEMORY
    assert relay.is_clean()
