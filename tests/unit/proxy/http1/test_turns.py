"""What one connection brings at once does not keep the others waiting."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from lb.net.iteration import ROOM
from tests.fakes.http1_sides import Sides

_LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
_COSTLY = [
    b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nConnection: %b\r\n\r\n"
    % b",".join(b"a%d" % at for at in range(5000)),
    b"GET /v2/health/live?%b HTTP/1.1\r\nHost: a\r\n\r\n" % ("\u00e4".encode() * 3500),
    b"GET /v2/health/live?%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"%25" * 2600),
]
"""Heads of requests that we answer, each of which takes a millisecond."""
_CHUNKED = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
_TINY = b"1\r\nx\r\n"


async def test_pipelined_requests_are_answered_some_at_a_time() -> None:
    sides = Sides()
    server, client = sides.client()
    server.data_received(_LIVE * 100)
    answered = [client.writes]
    assert not client.reading
    while client.writes < 100:
        await asyncio.sleep(0)
        answered.append(client.writes)
    steps = [after - before for before, after in itertools.pairwise(answered)]
    assert max(answered[0], *steps) <= 20
    await asyncio.sleep(0)
    assert client.reading
    client.lose()
    assert sides.is_clean()
    await sides.tasks.aclose()


def most_at_once(counts: list[int]) -> int:
    return max(after - before for before, after in itertools.pairwise([0, *counts]))


async def test_chunks_of_a_request_are_decoded_some_at_a_time() -> None:
    sides = Sides()
    _, backend = sides.upstream()
    server, client = sides.client()
    server.data_received(_CHUNKED)
    server.data_received(_TINY * 40_000)
    assert not client.reading
    exchange = server.exchange
    decoded = [exchange.bytes_in]
    while exchange.bytes_in < 40_000:
        await asyncio.sleep(0)
        decoded.append(exchange.bytes_in)
    assert most_at_once(decoded) <= 2000
    await asyncio.sleep(0)
    assert client.reading
    server.data_received(b"0\r\n\r\n")
    assert backend.written.count(b"x") == 40_000
    client.lose()
    await sides.tasks.aclose()


async def test_few_chunks_are_decoded_at_once() -> None:
    sides = Sides()
    sides.upstream()
    server, client = sides.client()
    server.data_received(_CHUNKED)
    server.data_received(_TINY * 100)
    assert client.reading
    assert server.exchange.bytes_in == 100
    client.lose()
    await sides.tasks.aclose()


@pytest.mark.parametrize("chunk", [_TINY, b"1\r\n\n\r\n"], ids=["crumbs", "lines"])
async def test_chunks_of_an_answer_are_decoded_some_at_a_time(chunk: bytes) -> None:
    sides = Sides()
    upstream, backend = sides.upstream()
    server, client = sides.client()
    server.data_received(b"GET /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n")
    upstream.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    exchange = server.exchange
    upstream.data_received(chunk * 40_000)
    assert not backend.reading
    decoded = [exchange.bytes_out]
    while exchange.bytes_out < 40_000:
        await asyncio.sleep(0)
        decoded.append(exchange.bytes_out)
    assert most_at_once(decoded) <= 2000
    await asyncio.sleep(0)
    assert backend.reading
    upstream.data_received(b"0\r\n\r\n")
    assert client.written.endswith(b"0\r\n\r\n")
    assert sides.is_clean()
    await sides.tasks.aclose()


async def test_an_answer_waits_for_a_slow_client_with_what_was_read_of_it() -> None:
    sides = Sides()
    upstream, backend = sides.upstream()
    server, client = sides.client()
    server.data_received(b"GET /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n")
    upstream.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    upstream.data_received(_TINY * 1500)
    server.pause_writing()
    taken = server.exchange.bytes_out
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (server.exchange.bytes_out, backend.reading) == (taken, False)
    server.resume_writing()
    while not backend.reading:  # noqa: ASYNC110  # a turn of the loop each
        await asyncio.sleep(0)
    assert server.exchange.bytes_out == 1500
    client.lose()
    await sides.tasks.aclose()


async def test_many_connections_share_what_is_done_in_one_iteration() -> None:
    sides = Sides()
    for _ in range(30):
        sides.upstream()
    clients = [sides.client(host=f"10.0.0.{at}") for at in range(30)]
    for server, _ in clients:
        server.data_received(_CHUNKED)
    exchanges = [server.exchange for server, _ in clients]
    for server, _ in clients:
        server.data_received(_TINY * 1000)
    decoded = [sum(exchange.bytes_in for exchange in exchanges)]
    while decoded[-1] < 30_000:
        await asyncio.sleep(0)
        decoded.append(sum(exchange.bytes_in for exchange in exchanges))
    assert most_at_once(decoded) <= 4000
    for _, client in clients:
        client.lose()
    await sides.tasks.aclose()


async def test_a_request_is_answered_while_others_wait_for_an_iteration() -> None:
    sides = Sides()
    busy = [sides.client(host=f"10.0.0.{at}") for at in range(30)]
    for server, _ in busy:
        server.data_received(_LIVE * 1000)
    server, client = sides.client()
    server.data_received(_LIVE)
    assert client.writes == 1
    assert sum(each.writes for _, each in busy) < 200
    for _, each in (*busy, (server, client)):
        each.lose()
    await sides.tasks.aclose()


@pytest.mark.parametrize("head", _COSTLY, ids=["options", "umlauts", "escapes"])
@pytest.mark.parametrize("reads", [1, 2])
async def test_costly_heads_of_many_connections_share_one_iteration(
    head: bytes, reads: int
) -> None:
    sides = Sides()
    clients = [sides.client(host=f"10.0.0.{at}") for at in range(30)]
    if reads == 2:
        for server, _ in clients:
            server.data_received(head[:1000])
        head = head[1000:]
    for server, _ in clients:
        server.data_received(head)
    answered = [sum(client.writes for _, client in clients)]
    assert not clients[-1][1].reading
    # An ordinary request does not wait for them.
    other, its_client = sides.client()
    other.data_received(_LIVE)
    assert its_client.writes == 1
    while answered[-1] < 30:
        await asyncio.sleep(0)
        answered.append(sum(client.writes for _, client in clients))
    assert most_at_once(answered) <= 10
    await asyncio.sleep(0)
    assert all(client.reading for _, client in clients)
    for _, client in (*clients, (other, its_client)):
        client.lose()
    assert sides.is_clean()
    await sides.tasks.aclose()


async def test_a_burst_of_costly_heads_is_read_some_at_a_time() -> None:
    sides = Sides()
    server, client = sides.client()
    server.data_received(_COSTLY[0] * 12)
    answered = [client.writes]
    while client.writes < 12:
        await asyncio.sleep(0)
        answered.append(client.writes)
    assert most_at_once(answered) <= 5
    client.lose()
    await sides.tasks.aclose()


async def test_a_head_costs_by_its_size_and_an_ordinary_one_nothing() -> None:
    sides = Sides()
    server, client = sides.client()
    iteration = sides.relay.iteration
    left = [iteration.left]
    for head in (_LIVE, _LIVE, _COSTLY[2], _COSTLY[0]):
        server.data_received(head)
        left.append(iteration.left)
    spent = [before - after for before, after in itertools.pairwise(left)]
    assert (left[0], spent[:2]) == (ROOM, [0, 0])
    assert 500 <= spent[2] <= spent[3] <= 1000
    assert client.writes == 4
    client.lose()
    await sides.tasks.aclose()
