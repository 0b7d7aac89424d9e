"""What one connection brings at once does not keep the others waiting."""

from __future__ import annotations

import asyncio
import itertools

from tests.fakes.http1_sides import Sides

_LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
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


async def test_after_very_many_chunks_of_a_request_others_have_their_turn() -> None:
    sides = Sides()
    sides.upstream()
    server, client = sides.client()
    server.data_received(_CHUNKED)
    server.data_received(_TINY * 1000)
    assert not client.reading
    await asyncio.sleep(0)
    assert client.reading
    server.data_received(_TINY * 10)
    assert client.reading
    client.lose()
    await sides.tasks.aclose()


async def test_after_very_many_chunks_of_an_answer_others_have_their_turn() -> None:
    sides = Sides()
    upstream, backend = sides.upstream()
    server, client = sides.client()
    server.data_received(b"GET /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n")
    upstream.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    upstream.data_received(_TINY * 4000)
    assert not backend.reading
    await asyncio.sleep(0)
    assert backend.reading
    upstream.data_received(_TINY * 4000 + b"0\r\n\r\n")
    await asyncio.sleep(0)
    assert client.written.count(b"x") == 8000
    assert sides.is_clean()
    await sides.tasks.aclose()
