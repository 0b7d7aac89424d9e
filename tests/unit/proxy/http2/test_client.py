"""A backend's connection: streams, answers out of order, GOAWAY, resets and loss."""

from __future__ import annotations

import pytest

from lb.domain.outcome import Outcome
from lb.wire.http2.frames import PREFACE
from tests.fakes.frames import (
    COMPRESSION_ERROR,
    DATA,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    OK_TRAILERS,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RESPONSE_FIELDS,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    WINDOW_UPDATE,
    Frame,
    answer,
    call,
    data,
    goaway,
    headers,
    named,
    ping,
    request_fields,
    rst,
    settings,
    window_update,
)
from tests.fakes.links import GREETING, PaperRelay, Side, frames_of


def heads(frames: list[Frame]) -> list[int]:
    """Streams of the heads that begin a message."""
    return [frame.stream for frame in frames if frame.kind == HEADERS]


async def test_preface_and_settings_come_first() -> None:
    relay = PaperRelay()
    side = relay.backend(greeting=b"")
    pool = relay.relay.pool(relay.backends[0])
    fresh = Side(relay, type(side.link)(pool))  # type: ignore[arg-type, call-arg]
    written = fresh.transport.take()
    assert written.startswith(PREFACE)
    first, second = frames_of(written[len(PREFACE) :])
    assert (first.kind, second.kind) == (SETTINGS, WINDOW_UPDATE)
    assert first.values == relay.relay.options.client_settings()


async def test_first_block_says_that_we_use_no_table() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(call(1), call(3))
    first, second = [frame for frame in backend.gets() if frame.kind == HEADERS]
    assert first.payload == b"\x20" + second.payload


async def test_calls_of_all_clients_share_the_connection_and_find_home() -> None:
    relay = PaperRelay()
    backend, one, two = relay.backend(), relay.client(), relay.client()
    one.sends(call(1))
    two.sends(call(1))
    one.sends(call(3))
    assert heads(backend.gets()) == [1, 3, 5]
    backend.sends(answer(5, b"\0\0\0\0\1c"), answer(3, b"\0\0\0\0\1b"), answer(1, b"\0\0\0\0\1a"))
    bodies = [[(f.stream, f.payload[5:]) for f in s.gets() if f.kind == DATA] for s in (one, two)]
    assert bodies == [[(3, b"c"), (1, b"a")], [(1, b"b")]]
    assert relay.is_clean()


async def test_goaway_sends_what_was_not_taken_elsewhere() -> None:
    relay = PaperRelay(backends=2)
    first, second = relay.backend(0), relay.backend(1)
    client = relay.client()
    client.sends(call(1), call(3), call(5))
    assert heads(first.gets()) == [1, 3]
    first.sends(goaway(1))
    assert len(heads(second.gets())) == 2
    assert relay.outcomes.seen == [("b0", Outcome.REFUSED)]
    assert not first.transport.is_closing()
    first.sends(answer(1))
    assert first.transport.is_closing()
    second.sends(answer(1), answer(3))
    assert {record.grpc_status for record in relay.finished.records} == {0}
    assert relay.is_clean()


async def test_refused_stream_is_replayed_with_its_body() -> None:
    relay = PaperRelay(backends=2)
    first, second = relay.backend(0), relay.backend(1)
    client = relay.client()
    client.sends(call(1, b"\0\0\0\0\5\x0a\3abc"))
    first.sends(rst(1, REFUSED_STREAM))
    assert [f.payload for f in second.gets() if f.kind == DATA] == [b"\0\0\0\0\5\x0a\3abc"]
    second.sends(answer(1))
    (record,) = relay.finished.records
    assert (record.attempts, record.grpc_status) == (2, 0)


async def test_lost_call_fails_where_there_is_nobody_else() -> None:
    """The first stream of a connection: it cannot be the keep-alive race."""
    relay = PaperRelay()
    first, client = relay.backend(), relay.client()
    client.sends(call(1))
    first.goes()
    (head,) = client.gets()
    assert b"grpc-status\x0214" in head.payload
    assert b"backend b0 (grpc) closed the connection" in head.payload
    assert relay.outcomes.seen == [("b0", Outcome.LOST)]
    assert relay.is_clean()


async def test_lost_call_that_may_run_twice_goes_elsewhere_a_little_later() -> None:
    relay = PaperRelay(backends=2)
    first, second, client = relay.backend(0), relay.backend(1), relay.client()
    client.sends(call(1))
    first.goes()
    assert second.gets() == client.gets() == []
    relay.loop.advance(0.1)
    relay.relay.flush()
    assert heads(second.gets()) == [1]
    second.sends(answer(1))
    assert client.gets()
    assert relay.is_clean()


@pytest.mark.parametrize("size", [1_000, 16_384, 65_535])
@pytest.mark.parametrize("ended", [True, False])
async def test_large_message_goes_again_as_it_was(size: int, ended: bool) -> None:
    """In frames that come one by one, or in runs of many."""
    relay = PaperRelay(backends=2)
    wide = settings({INITIAL_WINDOW_SIZE: 10**7}) + window_update(0, 10**7) + SETTINGS_ACK
    first, second, client = relay.backend(0, wide), relay.backend(1, wide), relay.client()
    head = bytes(1) + (600_000).to_bytes(4, "big")
    body = (head + named()[5:] + bytes(range(256)) * 2400)[: 600_000 + 5]
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    frames = [data(1, piece) for piece in pieces[:-1]]
    client.sends(headers(1, request_fields()), b"".join(frames))
    last = data(1, pieces[-1], end=True)
    if ended:
        client.sends(last)
    assert first.gets()
    first.goes()
    relay.loop.advance(0.1)
    if not ended:
        client.sends(last)
    relay.relay.flush()
    got = b"".join(frame.payload for frame in second.gets() if frame.kind == DATA)
    assert got == body
    assert relay.ledger.held > 600_000
    second.sends(answer(1))
    assert client.gets()
    assert relay.is_clean()


async def test_call_that_lost_two_servers_fails() -> None:
    relay = PaperRelay(backends=3)
    first, second, third, client = *(relay.backend(n) for n in range(3)), relay.client()
    client.sends(call(1))
    first.goes()
    relay.loop.advance(0.1)
    second.goes()
    relay.loop.advance(2.0)  # nobody gives a sign of life
    relay.relay.flush()
    (head,) = client.gets()
    assert b"grpc-status\x0214" in head.payload
    assert third.gets() == []
    assert relay.is_clean()


async def test_call_that_the_client_cancels_does_not_go_again() -> None:
    relay = PaperRelay(backends=2)
    first, second, client = relay.backend(0), relay.backend(1), relay.client()
    client.sends(call(1))
    first.goes()
    client.sends(rst(1))
    relay.loop.advance(1.0)
    relay.relay.flush()
    assert second.gets() == []
    assert relay.is_clean()


async def test_a_reused_connection_that_was_closing_is_a_race() -> None:
    relay = PaperRelay(backends=2)
    first, second, client = relay.backend(0), relay.backend(1), relay.client()
    client.sends(call(1))
    first.sends(answer(1))
    relay.loop.advance(0.1)
    client.sends(call(3))
    first.goes()
    relay.loop.advance(0.1)
    relay.relay.flush()
    assert heads(second.gets()) == [1]
    assert relay.outcomes.seen == [("b0", Outcome.STALE)]


async def test_loss_of_an_idle_connection_is_reported() -> None:
    relay = PaperRelay()
    relay.backend().goes()
    assert relay.outcomes.seen == [("b0", Outcome.LOST)]
    assert relay.backends[0].ports[1].connections == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (headers(3, RESPONSE_FIELDS), PROTOCOL_ERROR),
        (headers(2, RESPONSE_FIELDS), PROTOCOL_ERROR),
        (headers(1, b"\xbe"), COMPRESSION_ERROR),
        (data(3, b"x"), PROTOCOL_ERROR),
        (rst(3), PROTOCOL_ERROR),
    ],
)
async def test_breaking_the_connection_fails_its_calls(frames: bytes, code: int) -> None:
    """Heads, data and resets of streams that we never opened; broken blocks."""
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(call(1))
    backend.gets()
    backend.sends(frames)
    last = backend.gets()[-1]
    assert (last.kind, last.code) == (GOAWAY, code)
    assert relay.outcomes.seen == [("b0", Outcome.PROTOCOL_ERROR)]
    (head,) = client.gets()
    assert b"grpc-status\x0213" in head.payload
    assert relay.is_clean()


@pytest.mark.parametrize(
    "frames",
    [
        headers(1, [(b":status", b"200"), (b"Upper", b"x")]),
        headers(1, OK_TRAILERS),
        headers(1, [(b":status", b"100")], end=True),
        data(1, b"x"),
        headers(1, RESPONSE_FIELDS) + headers(1, RESPONSE_FIELDS),
        headers(1, RESPONSE_FIELDS) + headers(1, OK_TRAILERS),
    ],
    ids=["malformed", "no status", "only 100", "data first", "two heads", "trailers go on"],
)
async def test_breaking_a_stream_fails_its_call_only(frames: bytes) -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(call(1), call(3))
    backend.gets()
    backend.sends(frames)
    (reset,) = backend.gets()
    assert (reset.kind, reset.stream, reset.code) == (RST_STREAM, 1, PROTOCOL_ERROR)
    client.gets()
    backend.sends(answer(3))
    assert {frame.stream for frame in client.gets()} == {3}
    assert relay.is_clean()


async def test_informational_heads_are_dropped() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(call(1))
    backend.sends(headers(1, [(b":status", b"103"), (b"link", b"x")]), answer(1))
    assert [frame.kind for frame in client.gets()] == [HEADERS, DATA, HEADERS]


async def test_repeated_trailers_are_ignored() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(call(1))
    backend.sends(answer(1), headers(1, OK_TRAILERS, end=True), ping())
    client.gets()
    backend.gets()
    client.sends(call(3))
    assert heads(backend.gets()) == [3]


async def test_the_backends_limit_of_streams_is_kept() -> None:
    relay = PaperRelay()
    backend = relay.backend(greeting=settings({MAX_CONCURRENT_STREAMS: 2}) + SETTINGS_ACK)
    client = relay.client()
    assert backend.link.room == 2  # type: ignore[union-attr]
    client.sends(call(1), call(3), call(5))
    assert heads(backend.gets()) == [1, 3]
    backend.sends(answer(1))
    assert heads(backend.gets()) == [5]
    await relay.tasks.aclose()


async def test_a_connection_takes_no_calls_before_its_greeting() -> None:
    relay = PaperRelay()
    backend = relay.backend(greeting=b"")
    assert backend.link.room == 0  # type: ignore[union-attr]
    backend.sends(GREETING)
    assert backend.link.room > 100  # type: ignore[union-attr]
