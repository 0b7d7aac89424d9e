"""The request's way to the backend: chunks gathered, bytes kept and given back."""

from __future__ import annotations

import pytest

from lb.domain.outcome import Reason
from lb.proxy.http1.options import Http1Options
from lb.proxy.http1.request_body import EAGER_CHUNKS, GATHERED_CHUNK
from tests.fakes.http1_sides import Sides

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def _post(size: int) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size


async def test_first_chunks_go_at_once_and_later_ones_are_gathered() -> None:
    sides = Sides()
    _, backend = sides.upstream()
    server, _ = sides.client()
    server.data_received(_CHUNKED)
    assert backend.take() == _CHUNKED
    for _ in range(EAGER_CHUNKS):
        server.data_received(b"1\r\nx\r\n")
        assert backend.take() == b"1\r\nx\r\n"
    for _ in range(GATHERED_CHUNK - 1):
        server.data_received(b"1\r\ny\r\n")
    assert backend.take() == b""
    assert sides.memory_budget.held == GATHERED_CHUNK
    server.data_received(b"1\r\ny\r\n")
    assert backend.take() == b"4000\r\n" + b"y" * GATHERED_CHUNK + b"\r\n"
    server.data_received(b"1\r\nz\r\n")
    server.data_received(b"0\r\n\r\n")
    assert backend.take() == b"1\r\nz\r\n0\r\n\r\n"
    sides.timers.close()


async def test_large_chunks_are_not_gathered() -> None:
    sides = Sides()
    _, backend = sides.upstream()
    server, _ = sides.client()
    server.data_received(_CHUNKED)
    piece = b"8000\r\n" + b"x" * 32768 + b"\r\n"
    for _ in range(EAGER_CHUNKS + 10):
        server.data_received(piece)
        assert backend.take()[-10_000:] == piece[-10_000:]


@pytest.mark.parametrize("pieces", [1, 7, 300])
async def test_kept_bytes_are_counted_and_given_back_at_the_first_byte(pieces: int) -> None:
    sides = Sides()
    connection, _ = sides.upstream()
    server, _ = sides.client()
    wire = _post(21_000) + b"x" * 21_000
    step = len(wire) // pieces
    for at in range(0, len(wire), step):
        server.data_received(wire[at : at + step])
    exchange = server.exchange
    assert exchange is not None
    assert exchange.body.is_retained
    assert sides.memory_budget.held == len(wire)
    connection.data_received(_OK[:-1])
    assert sides.memory_budget.held == 0
    assert not exchange.body.is_retained
    connection.data_received(_OK[-1:])
    assert sides.in_flight == 0


@pytest.mark.parametrize("known", [True, False])
async def test_more_than_may_be_kept_is_not(known: bool) -> None:
    sides = Sides(Http1Options(retained_size=10_000))
    _, backend = sides.upstream()
    server, _ = sides.client()
    wire = _post(20_000) if known else _CHUNKED + b"4e20\r\n"
    server.data_received(wire + b"x" * 6_000)
    server.data_received(b"x" * 6_000)
    exchange = server.exchange
    assert exchange is not None
    assert not exchange.body.is_retained
    assert sides.memory_budget.held == 0
    server.data_received(b"x" * 8_000)
    assert backend.take().count(b"x") == 20_000


async def test_everything_is_kept_while_there_is_no_connection() -> None:
    sides = Sides(Http1Options(retained_size=1_000))
    server, client = sides.client()
    wire = _post(20_000) + b"x" * 19_000
    server.data_received(wire)
    assert sides.memory_budget.held == len(wire)
    assert not client.reading
    exchange = server.exchange
    assert exchange is not None
    assert exchange.body.is_retained
    client.lose()
    assert sides.memory_budget.held == 0
    await sides.tasks.aclose()


@pytest.mark.parametrize("length", [600_000, 200_000])
async def test_nothing_is_kept_where_much_is_held(length: int) -> None:
    """It is known at once that it will not fit, or it turns out on the way."""
    sides = Sides(ceiling=1 << 20)
    sides.upstream()
    server, client = sides.client()
    if length < 524_288:
        sides.upstream()
        other, _ = sides.client()
        other.data_received(_post(500_000) + b"x" * 400_000)
    server.data_received(_post(length) + b"x" * 90_000)
    server.data_received(b"x" * 90_000)
    exchange = server.exchange
    assert exchange is not None
    assert not exchange.body.is_retained
    assert sides.memory_budget.unkept == 1
    client.lose()
    sides.timers.close()


async def test_request_that_does_not_fit_into_memory_is_refused() -> None:
    sides = Sides(ceiling=10_000)
    sides.upstream()
    server, client = sides.client()
    server.data_received(_post(20_000) + b"x" * 19_000)
    assert client.take().startswith(b"HTTP/1.1 503")
    assert sides.finished.records[0].reason is Reason.MEMORY
    assert (sides.memory_budget.held, sides.in_flight) == (0, 0)
    assert sides.dispatcher.open_exchanges == 0


async def test_upload_waits_again_while_its_request_is_sent_anew() -> None:
    sides = Sides()
    _, backend = sides.upstream()
    server, client = sides.client()
    server.data_received(
        _post(20_000).replace(b"POST /", b"POST /v2/models/m/infer") + b"x" * 9_000
    )
    assert client.reading
    backend.lose()
    assert not client.reading
    sides.waits.advance(0.1)
    assert not client.reading
    assert sides.memory_budget.held > 9_000
    client.lose()
    assert sides.memory_budget.held == 0
    await sides.tasks.aclose()
