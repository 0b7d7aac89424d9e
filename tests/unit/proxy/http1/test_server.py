"""A client's connection: requests in pieces, pipelining, pressure, refusals."""

from __future__ import annotations

import asyncio

import pytest

from lb.domain.outcome import Reason
from lb.proxy.http1.options import Http1Options
from lb.proxy.http1.server import State
from tests.fakes.http1_sides import Sides

_GET = b"GET /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n"
_POST = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def test_pipelined_bytes_pause_the_client_and_are_on_the_memory_budget() -> None:
    sides = Sides(Http1Options(buffer_size=10_000))
    connection, backend = sides.upstream()
    server, client = sides.client()
    server.data_received(_GET)
    server.data_received(_GET * 100)
    assert client.reading
    assert sides.memory_budget.held == 0, "as little as this is part of a connection's own cost"
    server.data_received(_GET * 200)
    assert not client.reading
    assert sides.memory_budget.held == len(_GET) * 300
    for _ in range(301):
        connection.data_received(_OK)
    assert client.reading
    assert sides.memory_budget.held == 0
    assert backend.take() == _GET * 301


async def test_client_that_does_not_read_gets_no_further_request_served() -> None:
    sides = Sides()
    connection, backend = sides.upstream()
    server, _ = sides.client()
    server.data_received(_GET)
    server.pause_writing()
    connection.data_received(_OK)
    backend.take()
    server.data_received(_GET)
    assert backend.take() == b""
    server.resume_writing()
    assert backend.take() == _GET


@pytest.mark.parametrize(
    ("wire", "status", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"400", Reason.BAD_REQUEST),
        (b"\x16\x03\x01", b"400", Reason.BAD_REQUEST),
        (b"GET /" + b"a" * 9000, b"414", Reason.HEAD_TOO_LARGE),
        (_POST.replace(b"5\r\n", b"5\r\nExpect: x\r\n"), b"417", Reason.BAD_REQUEST),
        (
            _POST.replace(b"Content-Length: 5", b"Transfer-Encoding: br"),
            b"501",
            Reason.UNSUPPORTED,
        ),
    ],
)
async def test_refusal_is_said_once_then_the_rest_is_thrown_away(
    wire: bytes, status: bytes, reason: Reason
) -> None:
    sides = Sides()
    server, client = sides.client()
    server.data_received(wire)
    answer = client.take()
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"\r\nConnection: close\r\n" in answer
    assert server.state is State.LINGER
    assert client.eof_sent
    assert client.ended == ""
    server.data_received(_GET)
    assert client.take() == b""
    server.eof_received()
    assert client.ended == "close"
    record = sides.finished.records[0]
    assert (record.status, record.reason) == (int(status), reason)
    assert sides.dispatcher.open_exchanges == 0


async def test_lingering_is_bounded() -> None:
    sides = Sides(Http1Options(linger_size=100))
    server, client = sides.client()
    server.data_received(b"\x16")
    server.data_received(b"x" * 100)
    assert client.ended == ""
    server.data_received(b"x")
    assert client.ended == "close"


async def test_forwarding_fields_differ_by_client_not_by_cache() -> None:
    sides = Sides(Http1Options(x_forwarded=True))
    connection, backend = sides.upstream()
    server, _ = sides.client()
    for _ in range(2):
        server.data_received(_GET)
        assert b"\r\nX-Forwarded-For: 10.1.2.3\r\n" in backend.take()
        connection.data_received(_OK)


async def test_eviction_ends_the_request_and_what_is_pipelined_behind_it() -> None:
    sides = Sides()
    connection, backend = sides.upstream()
    server, client = sides.client()
    server.data_received(_POST + _GET)
    server.evict()
    assert client.take().startswith(b"HTTP/1.1 503")
    assert backend.ended == "abort"
    assert server.state is State.LINGER
    assert sides.finished.records[0].reason is Reason.MEMORY
    assert connection.attempt is None
    idle, transport = sides.client()
    idle.evict()
    assert transport.ended == "close"


async def test_what_a_client_does_not_take_is_on_the_memory_budget_until_it_does() -> None:
    sides = Sides()
    server, client = sides.client()
    client.waiting = 70_000
    server.pause_writing()
    await asyncio.sleep(0)
    assert sides.memory_budget.held == 70_000
    client.waiting = 10_000
    server.resume_writing()
    assert sides.memory_budget.held == 0
    client.waiting = 80_000
    server.pause_writing()
    await asyncio.sleep(0)
    client.lose()
    assert sides.memory_budget.held == 0


async def test_eviction_of_a_slow_reader_drops_what_it_did_not_take() -> None:
    sides = Sides()
    _, backend = sides.upstream()
    server, client = sides.client()
    server.data_received(_POST)
    client.waiting = 70_000
    server.pause_writing()
    await asyncio.sleep(0)
    server.evict()
    assert (client.ended, backend.ended) == ("abort", "abort")
    assert sides.memory_budget.held == 0
    assert sides.finished.records[0].reason is Reason.MEMORY
