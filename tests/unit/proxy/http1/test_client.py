"""A backend's connection: answers in pieces, reuse, losses."""

from __future__ import annotations

import asyncio

import pytest

from lb.domain.outcome import Outcome
from lb.proxy.http1.client import write_pieces
from tests.fakes.http1_sides import FakeTransport, Sides

_GET = b"GET /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n"
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def test_pieces_are_written_at_once() -> None:
    transport = FakeTransport(asyncio.Protocol())
    write_pieces(transport, [b"one"])
    write_pieces(transport, [b"a", memoryview(b"b"), b"c"])
    write_pieces(transport, [b"x" * 20_000, b"y"])
    assert transport.writes == 3
    assert transport.take() == b"oneabc" + b"x" * 20_000 + b"y"


async def test_water_mark_is_the_configured_one() -> None:
    _, transport = Sides().upstream()
    assert transport.high == 65536


@pytest.mark.parametrize("cut", range(len(_OK)))
async def test_answer_is_the_same_whatever_the_cut(cut: int) -> None:
    sides = Sides()
    connection, backend = sides.upstream()
    server, client = sides.client()
    server.data_received(_GET)
    assert backend.take() == _GET
    if cut:
        connection.data_received(_OK[:cut])
    connection.data_received(_OK[cut:])
    assert client.take() == _OK
    assert len(sides.relay.upstreams) == 1
    assert sides.in_flight == 0


async def test_heads_that_are_known_take_the_short_way_to_the_same_answer() -> None:
    sides = Sides()
    connection, backend = sides.upstream()
    server, client = sides.client()
    for _ in range(3):
        server.data_received(_GET)
        assert backend.take() == _GET
        connection.data_received(_OK)
        assert client.take() == _OK
    assert backend.ended == client.ended == ""
    assert [record.bytes_out for record in sides.finished.records] == [2, 2, 2]
    assert connection.port.bytes_received == 6


async def test_connection_that_is_not_kept_by_its_backend_is_closed() -> None:
    sides = Sides()
    connection, backend = sides.upstream()
    server, client = sides.client()
    server.data_received(_GET)
    connection.data_received(_OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert client.take() == _OK
    assert backend.ended == "abort"
    assert len(sides.relay.upstreams) == 0


async def test_connection_with_an_unsent_request_is_not_used_again() -> None:
    sides = Sides()
    connection, backend = sides.upstream()
    server, _ = sides.client()
    server.data_received(_GET)
    connection.pause_writing()
    connection.data_received(_OK)
    assert backend.ended == "abort"


async def test_unasked_bytes_close_the_connection() -> None:
    sides = Sides()
    connection, backend = sides.upstream()
    connection.data_received(_OK)
    assert backend.ended == "abort"
    assert len(sides.relay.upstreams) == 0


async def test_idle_connection_that_is_lost_is_reported_once() -> None:
    sides = Sides()
    connection, backend = sides.upstream()
    connection.eof_received()
    backend.lose()
    assert sides.outcomes.seen == [("b0", Outcome.LOST)]
    assert connection.port.connections == 0


async def test_reading_follows_the_client() -> None:
    sides = Sides()
    connection, backend = sides.upstream()
    server, client = sides.client()
    server.data_received(_GET)
    server.pause_writing()
    assert not backend.reading
    server.resume_writing()
    assert backend.reading
    server.pause_writing()
    connection.data_received(_OK)
    assert backend.reading, "the next request may belong to another client"
    assert client.take() == _OK


@pytest.mark.parametrize(
    ("answer", "error", "outcome"),
    [
        (b"", None, Outcome.STALE),
        (b"", ConnectionResetError("reset"), Outcome.STALE),
        (b"HTTP/1.1 2", None, Outcome.LOST),
        (_OK[:-1], None, Outcome.LOST),
        (b"HTTP/1.1 200 OK\r\n\r\nhel", ConnectionResetError("reset"), Outcome.LOST),
    ],
)
async def test_losses_are_told_apart(
    answer: bytes, error: Exception | None, outcome: Outcome
) -> None:
    sides = Sides()
    connection, backend = sides.upstream()
    server, _ = sides.client()
    server.data_received(_GET.replace(b"GET /v2/models/m", b"PUT /other"))
    if answer:
        connection.data_received(answer)
    backend.lose(error)
    assert sides.outcomes.seen == [("b0", outcome)]
    assert sides.in_flight == 0


async def test_body_until_close_ends_with_a_plain_close() -> None:
    sides = Sides()
    connection, backend = sides.upstream()
    server, client = sides.client()
    server.data_received(_GET)
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nhello")
    connection.eof_received()
    assert backend.ended == "abort"
    backend.lose()
    assert client.take().endswith(b"\r\n5\r\nhello\r\n0\r\n\r\n")
    assert sides.outcomes.seen == []


async def test_interim_answers_are_counted_per_request() -> None:
    sides = Sides()
    connection, _ = sides.upstream()
    server, client = sides.client()
    for _ in range(3):
        server.data_received(_GET)
        connection.data_received(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 6)
        connection.data_received(_OK)
        assert client.take().count(b"103") == 6
    server.data_received(_GET)
    connection.data_received(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 11)
    assert client.take().count(b"HTTP/1.1 502") == 1
