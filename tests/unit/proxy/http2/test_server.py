"""A client's connection: preface, order of streams, limits, idle time and shutdown."""

from __future__ import annotations

import pytest

from lb.domain.outcome import Reason
from lb.proxy.http2.relay import Http2Options
from lb.wire.http2.frames import PREFACE
from tests.fakes.frames import (
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HANG_PATH,
    NO_ERROR,
    PING,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RESPONSE_FIELDS,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    answer,
    call,
    data,
    goaway,
    headers,
    ping,
    request_fields,
    rst,
    settings,
)
from tests.fakes.links import GREETING, PaperRelay, Side


def ended(client: Side) -> bool:
    """Whether the connection was closed, or our side of it ended."""
    return client.transport.eof or client.transport.is_closing()


async def test_we_greet_at_once() -> None:
    relay = PaperRelay()
    side = Side(relay, relay.relay.server_protocol())
    first, second = side.gets()
    assert (first.kind, second.kind) == (SETTINGS, WINDOW_UPDATE)
    assert first.values == relay.relay.options.server_settings()
    assert relay.relay.traffic.connections == relay.relay.traffic.accepted == 1


@pytest.mark.parametrize("step", [1, 5, 100])
async def test_preface_may_come_in_pieces(step: int) -> None:
    relay = PaperRelay()
    client = relay.client(greeting=b"")
    hello = PREFACE + GREETING + ping()
    for start in range(0, len(hello), step):
        client.sends(hello[start : start + step])
    assert client.gets()[-1].kind == PING


@pytest.mark.parametrize("hello", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"\x16"])
async def test_another_preface_ends_the_connection(hello: bytes) -> None:
    """HTTP/1.1, a preface that goes wrong at its end, TLS."""
    relay = PaperRelay()
    client = relay.client(greeting=b"")
    client.sends(hello)
    (last,) = client.gets()
    assert (last.kind, last.code) == (GOAWAY, PROTOCOL_ERROR)
    assert ended(client)
    assert relay.relay.traffic.connection_errors == {Reason.BAD_REQUEST: 1}


async def test_a_client_that_says_nothing_is_cut() -> None:
    relay = PaperRelay(options=Http2Options(head_timeout_s=10.0))
    client = relay.client(greeting=b"")
    client.sends(PREFACE)
    relay.loop.advance(11.0)
    assert client.gets()[-1].kind == GOAWAY
    assert ended(client)
    assert relay.relay.traffic.connection_errors == {Reason.HEAD_TIMEOUT: 1}


async def test_an_idle_client_is_sent_away_and_a_busy_one_stays() -> None:
    relay = PaperRelay(options=Http2Options(head_timeout_s=5.0, client_idle_s=60.0))
    relay.backend()
    idle, busy = relay.client(), relay.client()
    busy.sends(call(1))
    relay.loop.advance(70.0)
    relay.relay.flush()
    assert GOAWAY in [frame.kind for frame in idle.gets()]
    assert ended(idle)
    assert not ended(busy)


async def test_streams_above_the_limit_are_refused() -> None:
    relay = PaperRelay(options=Http2Options(concurrent_streams=2))
    relay.backend()
    client = relay.client()
    client.sends(call(1), call(3), call(5))
    (refusal,) = client.gets()
    assert (refusal.kind, refusal.stream, refusal.code) == (RST_STREAM, 5, REFUSED_STREAM)
    assert relay.dispatcher.open_exchanges == 2


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (headers(2, request_fields()), PROTOCOL_ERROR),
        (headers(1, b"\xbe"), COMPRESSION_ERROR),
        (call(3) + headers(1, request_fields()), PROTOCOL_ERROR),
        (data(2, b"x"), PROTOCOL_ERROR),
        (rst(2), PROTOCOL_ERROR),
    ],
    ids=["even stream", "broken block", "id goes back", "data on even", "reset of even"],
)
async def test_breaking_the_connection_ends_its_calls(frames: bytes, code: int) -> None:
    """Even ids, blocks that cannot be decoded, ids that go back."""
    relay = PaperRelay()
    relay.backend()
    client = relay.client()
    client.sends(frames)
    last = client.gets()[-1]
    assert (last.kind, last.code) == (GOAWAY, code)
    assert ended(client)
    assert relay.is_clean()


@pytest.mark.parametrize(
    "second",
    [
        headers(1, [(b"checksum", b"1")]),
        headers(1, [(b":path", b"/")], end=True),
        headers(1, [(b"Upper", b"1")], end=True),
    ],
)
async def test_bad_trailers_end_their_stream(second: bytes) -> None:
    """Trailers without END_STREAM, with pseudo-fields, with a malformed field."""
    relay = PaperRelay()
    relay.backend()
    client = relay.client()
    client.sends(headers(1, request_fields()), second)
    head, reset = client.gets()
    assert b"grpc-status\x0213" in head.payload
    assert (reset.kind, reset.stream, reset.code) == (RST_STREAM, 1, NO_ERROR)
    assert not ended(client)
    assert relay.is_clean()


async def test_shutdown_is_in_two_steps() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(call(1))
    relay.relay.begin_drain()
    relay.relay.flush()
    first, token = client.gets()
    assert (first.kind, first.last_stream, first.code) == (GOAWAY, 2**31 - 1, NO_ERROR)
    client.sends(call(3), ping(token.payload, ack=True))
    (second,) = client.gets()
    assert (second.kind, second.last_stream) == (GOAWAY, 3)
    client.sends(call(5))
    assert relay.dispatcher.open_exchanges == 2
    backend.sends(answer(1))
    assert not ended(client)
    backend.sends(answer(3))
    assert ended(client)


async def test_second_step_comes_without_an_answer_too() -> None:
    relay = PaperRelay()
    client = relay.client()
    relay.relay.begin_drain()
    relay.loop.advance(2.1)
    relay.relay.flush()
    assert [frame.kind for frame in client.gets()] == [GOAWAY, PING, GOAWAY]
    assert ended(client)


async def test_a_client_that_connects_while_we_drain_is_told_so() -> None:
    relay = PaperRelay()
    relay.relay.begin_drain()
    side = Side(relay, relay.relay.server_protocol())
    assert GOAWAY in [frame.kind for frame in side.gets()]


async def test_goaway_of_the_client_closes_when_its_calls_are_over() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(call(1), goaway())
    assert not ended(client)
    backend.sends(answer(1))
    assert ended(client)


async def test_a_lost_client_takes_its_calls_with_it() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(call(1), call(3))
    backend.gets()
    client.goes()
    resets = [frame for frame in backend.gets() if frame.kind == RST_STREAM]
    assert [frame.stream for frame in resets] == [1, 3]
    assert relay.is_clean()
    assert relay.relay.traffic.connections == 0
    assert len(relay.timers) == 0


async def test_client_is_named_by_its_address() -> None:
    relay = PaperRelay()
    relay.backend()
    relay.client().sends(call(1))
    relay.client().sends(settings({}))
    (server, _) = sorted(relay.relay.servers, key=lambda link: -len(link.streams))
    assert server.client.name == "127.0.0.1:4711"


# Floods


@pytest.mark.parametrize(
    ("deadline", "age_s", "begun", "counts"),
    [
        (b"", 0.0, False, True),
        (b"", 0.99, False, True),
        (b"", 1.0, False, False),
        (b"", 0.0, True, False),
        (b"500m", 0.24, False, True),
        (b"500m", 0.26, False, False),
        (b"30m", 0.016, False, False),
        (b"12m", 0.0065, False, False),
        (b"2m", 0.0015, False, False),
        (b"2m", 0.0005, False, True),
        (b"1u", 0.0, False, True),
    ],
    ids=[
        "at once",
        "young",
        "old",
        "answered",
        "early",
        "due",
        "short",
        "shorter",
        "tiny",
        "tiny and early",
        "with its head",
    ],
)
async def test_only_resets_that_were_meant_from_the_start_are_a_flood(
    deadline: bytes, age_s: float, begun: bool, counts: bool
) -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    head = request_fields(*([(b"grpc-timeout", deadline)] if deadline else []), path=HANG_PATH)
    streams = range(1, 601, 2)
    client.sends(*(headers(stream, head) for stream in streams))
    if begun:
        backend.sends(*(headers(stream, RESPONSE_FIELDS) for stream in streams))
    relay.loop.advance(age_s)
    client.sends(*map(rst, streams))
    last = client.gets()[-1:]
    cut = [(frame.kind, frame.code) for frame in last if frame.kind == GOAWAY]
    assert cut == ([(GOAWAY, ENHANCE_YOUR_CALM)] if counts else [])
    assert relay.is_clean()


async def test_a_flood_is_counted_once_and_its_calls_are_named_after_it() -> None:
    relay = PaperRelay()
    relay.backend()
    client = relay.client()
    client.sends(call(1), call(3), ping() * 201)
    assert ended(client)
    traffic = relay.finished.meter.traffic[1]
    assert traffic.connection_errors == {Reason.FLOOD: 1}
    assert traffic.reasons == {Reason.FLOOD: 2}
    assert relay.is_clean()


async def test_a_client_near_the_last_stream_id_is_told_to_come_anew() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(call(2**31 - 2**20 + 1))
    assert [(f.kind, f.code) for f in client.gets() if f.kind == GOAWAY] == [(GOAWAY, NO_ERROR)]
    backend.sends(answer(1))
    client.sends(call(2**31 - 1), ping(b"tlbdrain", ack=True))
    backend.sends(answer(3))
    last = [frame for frame in client.gets() if frame.kind == GOAWAY][-1]
    assert (last.last_stream, last.code) == (2**31 - 1, NO_ERROR)
    assert relay.is_clean()
