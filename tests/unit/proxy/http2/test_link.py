"""The sending side of a connection: batching, windows, congestion, and the end."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.fakes.frames import (
    DATA,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    INTERNAL_ERROR,
    OK_TRAILERS,
    PING,
    RESPONSE_FIELDS,
    RST_STREAM,
    SETTINGS_ACK,
    answer,
    call,
    data,
    headers,
    message,
    named,
    ping,
    request_fields,
    rst,
    settings,
    window_update,
)
from tests.fakes.links import PaperRelay, Side

NO_WINDOW = settings({INITIAL_WINDOW_SIZE: 0}) + SETTINGS_ACK


def start_answers(relay: PaperRelay, client: Side, *payloads: bytes) -> Side:
    """A call per payload; its answer has begun with that and has not ended."""
    backend = relay.backend()
    for number, payload in enumerate(payloads):
        stream = 2 * number + 1
        client.sends(call(stream))
        backend.sends(headers(stream, RESPONSE_FIELDS), data(stream, payload))
    return backend


def sizes(side: Side) -> list[tuple[int, int]]:
    """Stream and size of the DATA frames that came."""
    return [(f.stream, len(f.payload)) for f in side.gets() if f.kind == DATA]


async def test_all_that_one_read_brings_is_one_write() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.transport.writes.clear()
    backend.transport.writes.clear()
    client.sends(call(1), call(3), call(5))
    assert len(backend.transport.writes) == 1
    backend.sends(answer(5), answer(1), answer(3))
    assert len(client.transport.writes) == 1


async def test_flush_comes_by_itself_at_the_end_of_the_turn() -> None:
    relay = PaperRelay()
    client = relay.client()
    client.link.data_received(ping())
    assert client.gets() == []
    await asyncio.sleep(0)
    assert [frame.kind for frame in client.gets()] == [PING]


async def test_payload_waits_for_the_streams_window() -> None:
    relay = PaperRelay()
    client = relay.client(NO_WINDOW)
    backend = start_answers(relay, client, bytes(100))
    assert sizes(client) == []
    client.sends(window_update(1, 30))
    assert sizes(client) == [(1, 30)]
    backend.sends(headers(1, OK_TRAILERS, end=True))
    client.sends(settings({INITIAL_WINDOW_SIZE: 40}))
    assert sizes(client) == [(1, 40)]
    client.sends(window_update(1, 100))
    *_, payload, trailers = client.gets()
    assert (payload.kind, len(payload.payload)) == (DATA, 30)
    assert (trailers.kind, trailers.ends_stream) == (HEADERS, True)
    assert relay.is_clean()


async def test_a_stream_without_window_does_not_hold_up_the_others() -> None:
    relay = PaperRelay()
    client = relay.client(NO_WINDOW)
    client.sends(window_update(0, 10**6))
    start_answers(relay, client, bytes(100), bytes(200))
    client.sends(window_update(3, 1000))
    assert sizes(client) == [(3, 200)]


async def test_the_connections_window_is_shared_out_in_turns() -> None:
    relay = PaperRelay()
    client = relay.client(settings({INITIAL_WINDOW_SIZE: 10**6}) + SETTINGS_ACK)
    start_answers(relay, client, bytes(60_000), bytes(60_000), bytes(60_000))
    assert sum(size for _, size in sizes(client)) == 65_535
    client.sends(window_update(0, 1000))
    client.sends(window_update(0, 200_000))
    assert {stream for stream, _ in sizes(client)} >= {3, 5}
    assert not client.link.waiting


async def test_frames_are_no_larger_than_the_peer_takes() -> None:
    relay = PaperRelay()
    client = relay.client()
    start_answers(relay, client, bytes(40_000))
    found = sizes(client)
    assert sum(size for _, size in found) == 40_000
    assert max(size for _, size in found) <= 16_384


async def test_payload_waits_while_the_transport_is_full() -> None:
    relay = PaperRelay()
    client = relay.client()
    client.link.pause_writing()
    backend = start_answers(relay, client, bytes(5000))
    assert sizes(client) == []
    assert relay.ledger.held == 5000
    client.link.resume_writing()
    relay.relay.flush()
    assert sizes(client) == [(1, 5000)]
    assert relay.ledger.held == 0
    backend.sends(headers(1, OK_TRAILERS, end=True))
    assert relay.is_clean()


async def test_a_peer_that_asks_and_never_reads_is_cut() -> None:
    """PINGs, not too many of them at once, whose answers it leaves where they are."""
    relay = PaperRelay()
    client = relay.client()
    client.link.pause_writing()
    for _ in range(51):
        assert not client.transport.is_closing()
        client.sends(ping() * 20)
        relay.loop.advance(1.0)
    assert client.transport.aborted


BAD_TIMEOUT = request_fields((b"grpc-timeout", b"x"))
OTHER = request_fields(path=b"/other.Service/Method")
UNREAD = {
    "answers of ours": lambda n: headers(2 * n + 1, BAD_TIMEOUT, end=True),
    "credit for padding": lambda n: data(1, b"12345", pad=0) if n else headers(1, OTHER),
}


@pytest.mark.parametrize("name", UNREAD)
async def test_what_a_client_leaves_unread_is_bounded(name: str) -> None:
    relay = PaperRelay()
    relay.backend()
    client = relay.client()
    client.link.pause_writing()
    client.transport.writes.clear()
    for at in range(0, 400_000, 100):
        client.sends(*map(UNREAD[name], range(at, at + 100)))
        if client.transport.is_closing():
            break
    assert client.transport.aborted
    assert sum(client.transport.writes) < 2.2 * 2**20


async def test_heads_of_all_streams_may_be_left_unread_for_a_while() -> None:
    relay = PaperRelay()
    client = relay.client()
    backend = relay.backend()
    client.sends(*map(call, range(1, 2049, 2)))
    client.link.pause_writing()
    more = (b"x-more", 700 * b"m")
    for stream in range(1, 2049, 2):
        backend.sends(headers(stream, [*RESPONSE_FIELDS, more]))
        backend.sends(headers(stream, [*OK_TRAILERS, more], end=True))
    assert not client.transport.is_closing()


async def test_a_peer_that_asks_much_and_reads_is_answered() -> None:
    relay = PaperRelay()
    client = relay.client()
    for _ in range(100):
        client.sends(ping() * 20)
        relay.loop.advance(1.0)
    assert len(client.gets()) == 2000
    assert not client.transport.is_closing()


@pytest.mark.parametrize("credited", [False, True])
async def test_the_sender_is_credited_for_what_went_out(credited: bool) -> None:
    relay = PaperRelay()
    client = relay.client(NO_WINDOW)
    client.sends(window_update(0, 2**22))
    backend = start_answers(relay, client, bytes(40_000))
    backend.gets()
    if credited:
        client.sends(window_update(1, 40_000))
    updates = [f for f in backend.gets() if f.kind == 8 and f.stream == 1]
    assert bool(updates) is credited


async def test_a_bug_of_ours_ends_its_connection_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = PaperRelay()
    client, other = relay.client(), relay.client()
    monkeypatch.setattr(relay.relay, "decide", lambda head: {}[head])
    with caplog.at_level(logging.ERROR):
        client.sends(call(1))
    assert [record.message for record in caplog.records] == ["connection handler failed"]
    last = client.gets()[-1]
    assert (last.kind, last.code) == (GOAWAY, INTERNAL_ERROR)
    other.sends(ping())
    assert [frame.kind for frame in other.gets()] == [PING]


async def test_after_the_end_nothing_more_is_written() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(call(1))
    client.sends(data(99, b"x"))
    assert client.gets()[-1].kind == GOAWAY
    backend.sends(answer(1))
    assert client.gets() == []
    assert relay.is_clean()


async def test_a_cancelled_call_waits_for_nothing() -> None:
    relay = PaperRelay()
    client = relay.client()
    client.link.pause_writing()
    backend = start_answers(relay, client, bytes(60_000))
    assert client.link.waiting
    client.sends(rst(1))
    assert not client.link.waiting
    assert RST_STREAM in [frame.kind for frame in backend.gets()]
    assert relay.is_clean()


async def test_a_read_of_very_many_frames_leaves_others_their_turn() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(headers(1, request_fields()), data(1, named()))
    backend.gets()
    client.link.data_received(data(1, message()) * 1000)
    relay.relay.flush()
    assert len(backend.gets()) == 128
    assert not client.transport.reading
    client.sends()
    assert len(backend.gets()) == 872
    assert client.transport.reading


async def test_large_reads_in_a_row_leave_others_their_turn() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(headers(1, request_fields()), data(1, named()))
    backend.gets()
    for _ in range(2):
        for _ in range(3):
            client.link.data_received(data(1, bytes(200_000)))
            assert client.transport.reading
        client.link.data_received(data(1, bytes(200_000)))
        assert not client.transport.reading
        await asyncio.sleep(0)
        assert client.transport.reading


@pytest.mark.parametrize("pad", [None, 0], ids=["plain", "padded"])
async def test_a_read_of_a_few_large_heads_does_so_too(pad: int | None) -> None:
    """Each takes as long as a hundred frames."""
    relay = PaperRelay()
    client = relay.client()
    client.gets()
    large = [*request_fields(), (b"x", 50_000 * b"x")]
    client.link.data_received(
        b"".join(headers(stream, large, end=True, pad=pad) for stream in range(1, 21, 2))
    )
    relay.relay.flush()
    assert len(client.gets()) == 2
    assert not client.transport.reading
    client.sends()
    assert len(client.gets()) == 8
    assert client.transport.reading


async def test_a_transport_that_is_gone_stops_no_other_connection() -> None:
    relay = PaperRelay()
    gone, other = relay.client(), relay.client()

    def refuse(_data: bytes) -> None:
        raise RuntimeError("unable to perform operation on a closed handle")

    gone.transport.write = refuse  # type: ignore[method-assign]
    gone.link.data_received(ping())
    other.link.data_received(ping())
    relay.relay.flush()
    assert len(other.gets()) == 1
    other.sends(ping())
    assert len(other.gets()) == 1
