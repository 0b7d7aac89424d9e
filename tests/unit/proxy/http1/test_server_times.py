"""A client's connection below its requests: time and ends."""

from __future__ import annotations

import socket

from lb.domain.outcome import Outcome, Reason
from lb.proxy.http1.server import Http1ServerConnection
from tests.fakes.http1_sides import FakeTransport, Sides

_GET = b"GET /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n"
_POST = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def _look(server: Http1ServerConnection) -> None:
    """The alarm rings."""
    server._look_at_time()


async def test_a_client_with_too_many_connections_loses_the_newest() -> None:
    sides = Sides()
    sides.relay.parts.connection_limiter.limit = 1
    _, first = sides.client()
    server, second = sides.client()
    assert (first.ended, second.ended) == ("", "abort")
    server.data_received(_GET)
    assert second.take() == b""
    assert sides.traffic.connection_errors == {Reason.TOO_MANY_CONNECTIONS: 1}
    first.lose()
    second.lose()
    assert len(sides.relay.parts.connection_limiter) == 0


async def test_head_has_its_time_from_its_first_byte() -> None:
    sides = Sides()
    server, client = sides.client()
    sides.now += 5
    server.data_received(_GET[:10])
    sides.now += 9.9
    server.data_received(_GET[10:11])
    _look(server)
    assert client.take() == b""
    sides.now += 0.2
    _look(server)
    assert client.take().startswith(b"HTTP/1.1 408")
    assert sides.finished.records[0].reason is Reason.HEAD_TIMEOUT


async def test_idle_time_counts_from_the_last_answer() -> None:
    sides = Sides()
    connection, _ = sides.upstream()
    server, client = sides.client()
    for _ in range(3):
        sides.now += 600
        _look(server) if server.served else None
        server.data_received(_GET)
        sides.now += 600
        _look(server)
        connection.data_received(_OK)
    assert client.ended == ""
    sides.now += 619
    _look(server)
    assert client.ended == ""
    sides.now += 2
    _look(server)
    assert client.ended == "close"


async def test_body_must_go_on_while_it_is_wanted() -> None:
    sides = Sides()
    connection, _ = sides.upstream()
    server, client = sides.client()
    server.data_received(_POST[:-3])
    for _ in range(2):
        sides.now += 29
        server.data_received(_POST[-3:-2] if server.exchange else b"")
        _look(server)
    connection.pause_writing()
    sides.now += 1000
    _look(server)
    assert client.take() == b"", "the backend is slow, not the client"
    connection.resume_writing()
    sides.now += 29
    _look(server)
    assert client.take() == b""
    sides.now += 2
    _look(server)
    assert client.take().startswith(b"HTTP/1.1 408")
    assert sides.finished.records[0].reason is Reason.BODY_TIMEOUT
    assert sides.outcomes.seen == [("b0", Outcome.CANCELLED)]


async def test_a_backend_that_is_faster_than_its_reader_makes_no_stalled_reader() -> None:
    sides = Sides()
    connection, _ = sides.upstream()
    server, client = sides.client()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    with own, peer:
        client._extra["socket"] = own  # type: ignore[attr-defined]
        server.data_received(_GET)
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        client.waiting = 300
        server.pause_writing()
        for waiting in (400, 500, 600):
            own.send(b"taken")
            assert peer.recv(5) == b"taken"
            sides.now += 29
            client.waiting = waiting
            _look(server)
        assert client.ended == ""
        sides.now += 31
        _look(server)
        assert client.ended == "abort"


async def test_small_answer_that_is_not_taken_does_not_stay_for_the_idle_time() -> None:
    sides = Sides()
    connection, _ = sides.upstream()
    server, client = sides.client()
    server.data_received(_GET)
    client.waiting = 40
    connection.data_received(_OK)
    sides.now += 31
    _look(server)
    assert client.ended == "abort"
    assert sides.finished.records[0].reason is None


async def test_closing_must_be_possible_in_time() -> None:
    sides = Sides()
    server, client = sides.client()
    client.waiting = 100
    server.close()
    assert client.ended == "close"
    sides.now += 31
    _look(server)
    assert client.ended == "abort"


async def test_lost_connection_is_looked_at_no_more() -> None:
    sides = Sides()
    server, client = sides.client()
    client.lose()
    sides.now += 1000
    _look(server)
    server.write([b"x"])
    server.close()
    assert isinstance(client, FakeTransport)
    assert client.written == b""
