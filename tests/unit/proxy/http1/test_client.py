"""A backend's connection: answers in pieces, reuse, losses."""

from __future__ import annotations

from lb.domain.outcome import Outcome
from lb.proxy.http1.options import Http1Options
from lb.wire.http1.limits import HeadLimits
from tests.fakes.http1_sides import Sides

_GET = b"GET /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n"
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def test_connection_with_an_unsent_request_is_not_used_again() -> None:
    sides = Sides()
    connection, backend = sides.upstream()
    server, _ = sides.client()
    server.data_received(_GET)
    connection.pause_writing()
    connection.data_received(_OK)
    assert backend.ended == "abort"


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


async def test_limits_of_heads_are_those_of_connections_that_stand_already() -> None:
    sides = Sides()
    connection, _ = sides.upstream()
    server, client = sides.client()
    server.data_received(_GET)
    connection.data_received(_OK[:20])
    connection.data_received(_OK[20:])
    assert client.take() == _OK
    sides.relay.configure(Http1Options(head=HeadLimits(head_bytes=100)))
    server.data_received(_GET)
    connection.data_received(_OK[:17] + b"x: %b\r\n" % (100 * b"y"))
    assert client.take().startswith(b"HTTP/1.1 502 ")
