"""The sending side of a connection: batching, windows, congestion, and the end."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from tests.fakes.http2_connections import PaperRelay, Side
from tests.wire.frames import (
    DATA,
    GOAWAY,
    INITIAL_WINDOW_SIZE,
    INTERNAL_ERROR,
    OK_TRAILERS,
    PING,
    RESPONSE_FIELDS,
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


async def test_the_connections_window_is_shared_out_in_turns() -> None:
    relay = PaperRelay()
    client = relay.client(settings({INITIAL_WINDOW_SIZE: 10**6}) + SETTINGS_ACK)
    start_answers(relay, client, bytes(60_000), bytes(60_000), bytes(60_000))
    assert sum(size for _, size in sizes(client)) == 65_535
    client.sends(window_update(0, 1000))
    client.sends(window_update(0, 200_000))
    assert {stream for stream, _ in sizes(client)} >= {3, 5}
    assert not client.connection.waiting


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
    client.connection.pause_writing()
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
    client.connection.pause_writing()
    more = (b"x-more", 700 * b"m")
    for stream in range(1, 2049, 2):
        backend.sends(headers(stream, [*RESPONSE_FIELDS, more]))
        backend.sends(headers(stream, [*OK_TRAILERS, more], end=True))
    assert not client.transport.is_closing()


async def test_a_bug_of_ours_ends_its_connection_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = PaperRelay()
    client, other = relay.client(), relay.client()
    sink = SimpleNamespace(finished=lambda record: {}[record])
    monkeypatch.setattr(relay.relay.accounts, "requests", sink)
    with caplog.at_level(logging.ERROR):
        client.sends(call(1), rst(1))
    assert [record.message for record in caplog.records] == ["connection handler failed"]
    last = client.gets()[-1]
    assert (last.kind, last.code) == (GOAWAY, INTERNAL_ERROR)
    other.sends(ping())
    assert [frame.kind for frame in other.gets()] == [PING]


async def test_a_read_of_very_many_frames_leaves_others_their_turn() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(headers(1, request_fields()), data(1, named()))
    backend.gets()
    client.connection.data_received(data(1, message()) * 1000)
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
            client.connection.data_received(data(1, bytes(200_000)))
            assert client.transport.reading
        client.connection.data_received(data(1, bytes(200_000)))
        assert not client.transport.reading
        await asyncio.sleep(0)
        assert client.transport.reading


@pytest.mark.parametrize("pad", [None, 0], ids=["plain", "padded"])
async def test_a_read_of_a_few_large_heads_does_so_too(pad: int | None) -> None:
    """Each may take as long as two hundred frames."""
    relay = PaperRelay()
    client = relay.client()
    client.gets()
    large = [*request_fields(), (b"x", 50_000 * b"x")]
    client.connection.data_received(
        b"".join(headers(stream, large, end=True, pad=pad) for stream in range(1, 21, 2))
    )
    relay.relay.flush()
    assert len(client.gets()) == 1
    assert not client.transport.reading
    client.sends()
    assert len(client.gets()) == 9
    assert client.transport.reading


async def test_a_transport_that_is_gone_stops_no_other_connection() -> None:
    relay = PaperRelay()
    gone, other = relay.client(), relay.client()

    def refuse(_data: bytes) -> None:
        raise RuntimeError("unable to perform operation on a closed handle")

    gone.transport.write = refuse  # type: ignore[method-assign]
    gone.connection.data_received(ping())
    other.connection.data_received(ping())
    relay.relay.flush()
    assert len(other.gets()) == 1
    other.sends(ping())
    assert len(other.gets()) == 1


async def test_initial_windows_that_go_up_and_down_leave_others_their_turn() -> None:
    """Each moves the windows of all streams."""
    relay = PaperRelay()
    client = relay.client(settings({INITIAL_WINDOW_SIZE: 0}) + SETTINGS_ACK)
    start_answers(relay, client, *[bytes(6)] * 1000)
    client.gets()
    up_and_down = [settings({INITIAL_WINDOW_SIZE: size}) for size in (1, 0) * 40]
    assert client.sends(*up_and_down) > 4
    client.sends(settings({INITIAL_WINDOW_SIZE: 6}))
    sent = sizes(client)
    assert {stream for stream, _ in sent} == set(range(1, 2001, 2))
    assert sum(size for _, size in sent) == 6000
