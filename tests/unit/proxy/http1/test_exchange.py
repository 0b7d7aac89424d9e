"""One request: attempts, answers, ends. Whatever happens, the accounts are right."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lb.domain.outcome import Outcome, Reason
from lb.domain.schedule import Capacity, QueuePlan
from lb.proxy.http1.options import Http1Options
from lb.proxy.http1.server import Http1ServerConnection
from tests.fakes.gated import FACTS
from tests.fakes.http1_sides import FakeTransport, Sides
from tests.fakes.relay import snapshot_of

_GET = b"GET /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n"
_POST = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
_CHUNK = b"8000\r\n{}%b\r\n" % bytes(0x8000 - 2)
"""So much of a body that its request waits, though there may be more to come."""
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_lost_race_is_repeated_once_on_a_new_connection() -> None:
    sides = Sides(backends=2)
    _, dead = sides.upstream(0)
    _, other = sides.upstream(1)
    server, client = sides.client()
    server.data_received(_POST)
    dead.lose()
    assert len(sides.tasks) == 0
    sides.waits.advance(0.1)
    assert other.take() == b"", "it may be as dead as the first"
    assert len(sides.tasks) == 1
    assert client.take() == b""
    assert sides.outcomes.seen == [("b0", Outcome.STALE)]
    await sides.tasks.aclose()
    client.lose()
    assert sides.is_clean()


@pytest.mark.parametrize("begun", [False, True])
async def test_loss_before_the_answer_goes_again_elsewhere(begun: bool) -> None:
    sides = Sides(backends=2)
    connection, backend = sides.upstream(0)
    server, client = sides.client()
    server.data_received(_POST)
    # A head alone is no answer to an inference yet.
    connection.data_received(_STREAM + b"1\r\na\r\n" if begun else _STREAM)
    backend.lose(ConnectionResetError("reset"))
    sides.waits.advance(0.1)
    assert len(sides.tasks) == (0 if begun else 1), "it dials another backend"
    assert client.ended == ("close" if begun else "")
    await sides.tasks.aclose()
    client.lose()
    assert sides.is_clean()


async def test_request_whose_client_left_does_not_go_again() -> None:
    sides = Sides(backends=2)
    _, backend = sides.upstream(0)
    server, client = sides.client()
    server.data_received(_POST)
    backend.lose()
    client.lose()
    sides.waits.advance(1.0)
    assert len(sides.tasks) == len(sides.dispatcher.reruns) == 0
    assert sides.is_clean()


async def test_answer_that_was_too_fast_for_its_client_is_not_read_for_nobody() -> None:
    sides = Sides()
    connection, backend = sides.upstream()
    server, client = sides.client()
    server.data_received(_POST)
    connection.data_received(_STREAM + b"1\r\na\r\n")
    server.pause_writing()
    client.lose()
    assert backend.ended == "abort"
    assert sides.is_clean()


async def test_connection_closes_after_an_answer_that_began_before_the_drain() -> None:
    sides = Sides()
    connection, _ = sides.upstream()
    server, client = sides.client()
    server.data_received(_GET)
    connection.data_received(_STREAM)
    sides.relay.begin_drain()
    connection.data_received(b"0\r\n\r\n")
    assert client.take() == _STREAM + b"0\r\n\r\n"
    assert client.ended == "close"


def _error(status: int, text: str) -> bytes:
    body = b'{"error":"%b"}' % text.encode()
    return b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (404, "Request for unknown model: 'm' is not found"),
        (400, "Request for unknown model: 'm' is not found"),
        (503, "Request for unknown model: 'm' version 1 is not at ready state"),
        (503, "Exceeds maximum queue size"),
        (503, "Server exiting"),
        (404, "Unable to find shared memory region: 'r'"),
    ],
)
async def test_what_a_backend_cannot_serve_is_asked_of_another(status: int, text: str) -> None:
    sides = Sides(backends=2)
    told: list[tuple[str, bytes]] = []
    sides.misplaced = lambda backend, model, version: told.append((backend.name, model))
    connection, first = sides.upstream(0)
    server, client = sides.client()
    server.data_received(_POST)
    assert first.take()
    connection.data_received(_error(status, text))
    assert client.take() == b""
    assert not first.ended, "its connection lives on"
    assert sides.outcomes.seen == [("b0", Outcome.NOT_HERE)]
    assert told == ([("b0", b"m")] if "unknown model" in text else [])
    await sides.tasks.aclose()
    client.lose()


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (503, "explicit model load / unload is not allowed if polling is enabled"),
        (403, "Server exiting"),
        (400, "unexpected shape"),
    ],
)
async def test_other_errors_are_the_clients(status: int, text: str) -> None:
    sides = Sides(backends=2)
    connection, _ = sides.upstream(0)
    server, client = sides.client()
    server.data_received(_POST)
    connection.data_received(_error(status, text))
    assert client.take().endswith(text.encode() + b'"}')
    assert not len(sides.tasks)
    assert sides.is_clean()


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("backends", [1, 2])
async def test_what_a_broken_device_fails_is_asked_of_another(status: int, backends: int) -> None:
    sides = Sides(backends=backends)
    connection, first = sides.upstream(0)
    server, client = sides.client()
    server.data_received(_POST)
    assert first.take()
    connection.data_received(_error(status, "CUDA error: an illegal memory access"))
    sides.waits.advance(0.1)
    if backends == 1:
        assert b"CUDA error" in client.take()
        assert sides.outcomes.seen == []
    else:
        assert client.take() == b""
        assert sides.outcomes.seen == [("b0", Outcome.BROKEN)]
        assert len(sides.tasks) == 1
    assert not first.ended, "its connection lives on"
    await sides.tasks.aclose()
    client.lose()
    assert sides.is_clean()


async def test_request_at_a_hung_backend_goes_elsewhere() -> None:
    sides = Sides(backends=2)
    _, first = sides.upstream(0)
    server, client = sides.client()
    server.data_received(_POST)
    port = sides.backends[0].ports[0]
    assert port is not None
    port.is_hung = True
    sides.pool.publish(snapshot_of(sides.backends[1:]))
    assert first.ended, "Triton cannot be told otherwise"
    sides.waits.advance(0.1)
    assert len(sides.tasks) == 1
    assert sides.outcomes.seen == [("b0", Outcome.STALLED)]
    await sides.tasks.aclose()
    client.lose()
    assert sides.is_clean()


async def test_request_at_a_hung_backend_waits_where_there_is_nobody_else() -> None:
    sides = Sides()
    connection, first = sides.upstream(0)
    server, client = sides.client()
    server.data_received(_POST)
    port = sides.backends[0].ports[0]
    assert port is not None
    port.is_hung = True
    sides.pool.publish(snapshot_of(sides.backends))
    assert not first.ended
    connection.data_received(_OK)
    assert client.take() == _OK
    assert sides.is_clean()


async def test_an_attempt_that_is_late_goes_on_where_there_is_nobody_else() -> None:
    sides = Sides()
    connection, first = sides.upstream(0)
    server, client = sides.client()
    server.data_received(_POST)
    sides.relay.under_way()[0].attempt_late()
    assert not first.ended
    connection.data_received(_OK)
    assert client.take() == _OK
    assert sides.relay.under_way() == []


# Waiting


def scheduled(backends: int = 1) -> Sides:
    """Backends that take one request at a time, and have a connection each."""
    sides = Sides(backends=backends)
    plan = QueuePlan(limits={}, default=Capacity(1, instances=1))
    route = replace(sides.pool.current.routes[b"m"], facts=FACTS, plan=plan, is_plain=False)
    sides.pool.publish(replace(snapshot_of(sides.backends), routes={b"m": route}))
    return sides


async def test_who_half_closed_waits_again_where_that_is_served() -> None:
    sides = scheduled(backends=2)
    sides.relay.configure(Http1Options(aborts_on_half_close=False))
    connections = [sides.upstream(0), sides.upstream(1)]
    server, client = sides.client()
    server.data_received(_POST)
    other, _ = sides.client()
    other.data_received(_POST)
    server.eof_received()
    assert server.exchange is not None
    where = sides.backends.index(server.exchange.backend)
    connections[where][1].lose()
    sides.waits.advance(0.1)
    assert server.is_waiting
    assert client.ended == ""
    client.lose()
    assert len(sides.dispatcher.queue) == 0
    await sides.tasks.aclose()


_BINARY = (
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: 2\r\n"
    b"%b\r\n\r\n"
)


def waiting(size: int) -> tuple[Sides, Http1ServerConnection, FakeTransport]:
    """A request that waits, of which 65,536 bytes have come."""
    sides = scheduled()
    sides.memory_budget.resize(1 << 23)
    sides.upstream()
    sides.client()[0].data_received(_POST)
    server, client = sides.client()
    server.data_received(_BINARY % (b"Content-Length: %d" % size) + b"{}" + bytes(65_534))
    assert server.is_waiting
    return sides, server, client


async def test_of_what_waits_no_more_is_read_than_was_counted_for_it() -> None:
    sides, server, client = waiting(4_000_000)
    pieces = 1
    while client.reading:
        server.data_received(bytes(65_536))
        pieces += 1
    assert pieces == 16
    assert 1 << 20 <= sides.memory_budget.held < (1 << 20) + 1000
    client.lose()
    assert sides.memory_budget.held == 0
    assert len(sides.dispatcher.queue) == 0


async def test_nothing_more_is_read_of_what_nothing_was_counted_for() -> None:
    sides = scheduled()
    sides.upstream()
    sides.client()[0].data_received(_POST)
    server, client = sides.client()
    server.data_received(_BINARY % b"Transfer-Encoding: chunked" + _CHUNK)
    assert server.is_waiting
    assert not client.reading
    assert len(sides.relay.paused_clients) == 1
    client.lose()


async def test_a_client_that_stops_sending_while_it_waits_is_given_up() -> None:
    sides, server, client = waiting(100_000)
    sides.now += 30.1
    server._look_at_time()
    assert sides.finished.records[-1].reason is Reason.BODY_TIMEOUT
    assert len(sides.dispatcher.queue) == 0
    client.lose()


async def test_who_expects_to_be_invited_is_before_it_waits_for_its_turn() -> None:
    sides = scheduled()
    connection, backend = sides.upstream()
    sides.client()[0].data_received(_POST)
    backend.take()
    server, client = sides.client()
    expecting = b"Content-Encoding: gzip\r\nExpect: 100-continue\r\nContent-Length: 5"
    server.data_received(_BINARY % expecting)
    assert client.take() == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert client.reading
    assert len(sides.dispatcher.queue) == 0
    server.data_received(b"hello")
    assert server.is_waiting
    connection.data_received(_OK)
    await asyncio.sleep(0.01)
    assert backend.take().endswith(b"\r\n\r\nhello")
    connection.data_received(_OK)
    assert client.take() == _OK


async def test_a_body_that_is_read_after_a_long_wait_has_its_time_again() -> None:
    sides = scheduled()
    connection, _ = sides.upstream()
    sides.client()[0].data_received(_POST)
    server, client = sides.client()
    server.data_received(_BINARY % b"Transfer-Encoding: chunked" + _CHUNK)
    sides.now += 31.0
    server._deadline_timer._expired()
    assert server.is_waiting
    assert server._deadline_timer.due > sides.now + 100.0
    connection.data_received(_OK)
    await asyncio.sleep(0.01)
    assert client.reading
    assert server._deadline_timer.due == sides.now + 30.0
    client.lose()
