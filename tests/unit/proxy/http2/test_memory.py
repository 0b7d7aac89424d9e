"""Calls that must give way while other calls end: nobody stumbles over them."""

from __future__ import annotations

import pytest

from lb.domain.backend import AppProtocol
from lb.proxy.http2.options import Http2Options
from tests.fakes.http2_connections import PaperRelay, Side
from tests.wire.frames import (
    HEADERS,
    INITIAL_WINDOW_SIZE,
    METHOD_PATH,
    NO_ERROR,
    PING,
    RESPONSE_FIELDS,
    RST_STREAM,
    SETTINGS_ACK,
    answer,
    call,
    data,
    goaway,
    headers,
    message,
    named,
    ping,
    request_fields,
    settings,
    window_update,
)

STREAM_PATH = METHOD_PATH.replace(b"ModelInfer", b"ModelStreamInfer")
LIVE_PATH = METHOD_PATH.replace(b"ModelInfer", b"ServerLive")


def with_small_and_large_call(relay: PaperRelay) -> tuple[Side, Side]:
    """A reused connection with two calls, of which the second holds twice as much."""
    client, backend = relay.client(), relay.backend()
    client.sends(call(1))
    backend.sends(answer(1))
    client.sends(call(3, named(more=bytes(6000))), call(5, named(more=bytes(13_000))))
    assert len(backend.connection.streams) == 2
    client.gets()
    return client, backend


@pytest.mark.parametrize("loss", ["closed", "goaway"])
async def test_a_replay_may_evict_a_call_of_the_same_lost_connection(loss: str) -> None:
    relay = PaperRelay(ceiling=22_000)
    client, backend = with_small_and_large_call(relay)
    relay.backend()
    if loss == "closed":
        backend.goes()
    else:
        backend.sends(goaway(1))
    heads = [frame.stream for frame in client.gets() if frame.kind == HEADERS]
    assert 5 in heads, "the large call has given way"
    assert not backend.connection.streams
    client.goes()
    assert relay.is_clean()


async def test_an_answer_of_ours_may_have_to_give_way() -> None:
    relay = PaperRelay(ceiling=4)
    client = relay.client(settings({INITIAL_WINDOW_SIZE: 0}) + SETTINGS_ACK)
    client.sends(headers(1, request_fields(path=LIVE_PATH)) + data(1, message(), end=True))
    kinds = [frame.kind for frame in client.gets()]
    assert kinds == [HEADERS, RST_STREAM]
    assert relay.is_clean()


async def test_what_waits_for_the_client_may_evict_its_own_call() -> None:
    relay = PaperRelay(ceiling=20_000)
    client = relay.client(settings({INITIAL_WINDOW_SIZE: 0}) + SETTINGS_ACK)
    backend = relay.backend(greeting=settings({INITIAL_WINDOW_SIZE: 0}) + SETTINGS_ACK)
    client.sends(headers(1, request_fields(path=STREAM_PATH)), data(1, named()))
    backend.sends(headers(1, RESPONSE_FIELDS), data(1, bytes(15_000)))
    client.gets()
    client.sends(data(1, bytes(6_000)))
    assert [frame.kind for frame in client.gets()] == [RST_STREAM]
    assert RST_STREAM in [frame.kind for frame in backend.gets()]
    assert relay.is_clean()


async def test_of_a_question_that_we_answer_little_is_held_however_long_it_is() -> None:
    relay = PaperRelay()
    client = relay.client()
    client.sends(headers(1, request_fields(path=LIVE_PATH)), data(1, bytes(4000)))
    assert relay.memory_budget.held <= 4096
    client.sends(data(1, bytes(4000)))
    head, reset = client.gets()
    assert b"grpc-status\x018" in head.payload
    assert (reset.kind, reset.code) == (RST_STREAM, NO_ERROR)
    assert relay.memory_budget.held == 0
    assert relay.is_clean()


async def test_an_upload_that_nobody_reads_any_more_is_credited() -> None:
    relay = PaperRelay(options=Http2Options(stream_window=70_000, stream_window_max=70_000))
    client = relay.client(settings({INITIAL_WINDOW_SIZE: 10}) + SETTINGS_ACK)
    backend = relay.backend(greeting=settings({INITIAL_WINDOW_SIZE: 0}) + SETTINGS_ACK)
    client.sends(headers(1, request_fields()), 5 * data(1, bytes(14_000)))
    backend.sends(answer(1, message(bytes(100))))
    frames = client.gets()
    assert sum(frame.increment for frame in frames if frame.kind == 8 and frame.stream == 1) > 0
    client.sends(data(1, bytes(14_000)), window_update(1, 1000))
    assert client.gets()[-1].kind == RST_STREAM
    assert relay.is_clean()


async def test_many_answers_at_once_to_a_client_that_does_not_read_are_no_flood() -> None:
    relay = PaperRelay()
    client, backend = relay.client(), relay.backend()
    client.sends(*(call(stream) for stream in range(1, 2049, 2)))
    client.connection.pause_writing()
    backend.sends(*(answer(stream, bytes(5000)) for stream in range(1, 2049, 2)))
    assert not client.transport.aborted
    client.connection.resume_writing()
    relay.relay.flush()
    assert (
        len([frame for frame in client.gets() if frame.flags & 1 and frame.kind == HEADERS]) == 1024
    )
    assert relay.is_clean()


async def test_a_thousand_pings_without_reading_the_answers_are_too_many() -> None:
    relay = PaperRelay()
    client = relay.client()
    client.connection.pause_writing()
    for _ in range(50):
        client.sends(20 * ping())
        relay.loop.advance(1.0)
    assert not client.transport.aborted
    client.sends(ping())
    assert client.transport.aborted


async def test_pings_are_forgotten_once_the_client_reads() -> None:
    relay = PaperRelay()
    client = relay.client()
    for _ in range(60):
        client.connection.pause_writing()
        client.sends(20 * ping())
        client.connection.resume_writing()
        relay.loop.advance(1.0)
    assert not client.transport.aborted
    assert len([frame for frame in client.gets() if frame.kind == PING]) == 1200


async def test_stalled_holders_give_way_when_memory_stays_short() -> None:
    """They refuse all new work without ever reaching the ceiling; nobody else would end them."""
    relay = PaperRelay(ceiling=80_000)
    stalled = relay.client(settings({INITIAL_WINDOW_SIZE: 0}) + SETTINGS_ACK)
    client, backend = relay.client(), relay.backend()
    stalled.sends(call(1), call(3))
    backend.sends(headers(1, RESPONSE_FIELDS) + data(1, bytes(50_000)))
    backend.sends(headers(3, RESPONSE_FIELDS) + data(3, bytes(25_000)))
    stalled.gets()
    client.sends(call(1))
    assert client.gets()[0].flags & 1, "refused"
    relay.loop.advance(20)
    client.sends(call(3))
    assert stalled.gets() == []
    relay.loop.advance(11)
    relay.relay.flush()
    assert [(f.kind, f.stream, f.code) for f in stalled.gets()] == [(RST_STREAM, 1, 11)]
    client.sends(call(5))
    assert len(backend.connection.streams) == 2
    client.goes()
    stalled.goes()
    assert relay.is_clean()


async def test_stalled_holders_give_way_to_requests_of_http1_alone() -> None:
    relay = PaperRelay(ceiling=80_000)
    stalled = relay.client(settings({INITIAL_WINDOW_SIZE: 0}) + SETTINGS_ACK)
    backend = relay.backend()
    stalled.sends(call(1), call(3))
    backend.sends(headers(1, RESPONSE_FIELDS) + data(1, bytes(50_000)))
    backend.sends(headers(3, RESPONSE_FIELDS) + data(3, bytes(25_000)))
    stalled.gets()
    client = Side(relay, relay.server_protocol(AppProtocol.HTTP))
    client.sends(b"GET /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n")
    assert client.transport.take().startswith(b"HTTP/1.1 503 ")
    relay.loop.advance(31)
    relay.relay.flush()
    assert [(f.kind, f.stream, f.code) for f in stalled.gets()] == [(RST_STREAM, 1, 11)]
    client.goes()
    stalled.goes()
    assert relay.is_clean()


async def test_nobody_gives_way_when_memory_was_short_for_moments() -> None:
    relay = PaperRelay(ceiling=80_000, options=Http2Options(answer_window=100_000))
    slow = relay.client(settings({INITIAL_WINDOW_SIZE: 0}) + SETTINGS_ACK)
    client, backend = relay.client(), relay.backend()
    slow.sends(call(1))
    backend.sends(headers(1, RESPONSE_FIELDS) + data(1, bytes(75_000)))
    client.sends(call(1))
    relay.loop.advance(20)
    slow.sends(window_update(1, 10_000))
    backend.sends(data(1, bytes(10_000)))
    client.sends(call(3))
    slow.gets()
    relay.loop.advance(29)
    relay.relay.flush()
    assert slow.gets() == []
    relay.loop.advance(40)
    relay.relay.flush()
    assert slow.gets()[0].kind == RST_STREAM, "short for long now"
