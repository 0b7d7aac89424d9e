"""Connections of aiohttp sessions, to servers that answer strangely."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from lb.net.http_sessions import SteadyConnector

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nright"


@asynccontextmanager
async def answering(answers: Callable[[], bytes]) -> AsyncIterator[str]:
    """A server that answers every request so, and its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(answers())
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_endless_interim_answers_are_an_error() -> None:
    heads = 0

    class Counting(SteadyConnector):
        """Counts the heads that come."""

        def __init__(self) -> None:
            super().__init__()
            make = self._factory

            def counting() -> object:
                connection = make()
                feed = connection.feed_data

                def count(data: object, size: int = 0) -> None:
                    nonlocal heads
                    heads += 1
                    feed(data, size)

                connection.feed_data = count
                return connection

            self._factory = counting

    timeout = aiohttp.ClientTimeout(total=30)
    async with (
        answering(lambda: INTERIM * 100_000) as url,
        aiohttp.ClientSession(connector=Counting(), timeout=timeout) as session,
    ):
        with pytest.raises(aiohttp.ClientPayloadError, match="endless interim answers"):
            await session.get(url)
    assert heads < 100


@pytest.mark.parametrize("count", [0, 1, 10])
async def test_an_answer_may_follow_some_interim_ones_each_time(count: int) -> None:
    async with (
        answering(lambda: INTERIM * count + ANSWER) as url,
        aiohttp.ClientSession(connector=SteadyConnector()) as session,
    ):
        for _ in range(3):
            async with session.get(url) as response:
                assert (response.status, await response.read()) == (200, b"right")


async def test_long_heads_and_bodies_come_whole() -> None:
    fields = b"".join(b"X-%d: %b\r\n" % (n, b"v" * 100) for n in range(50))
    body = bytes(range(256)) * 2000
    answer = b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (fields, len(body), body)
    async with (
        answering(lambda: answer) as url,
        aiohttp.ClientSession(connector=SteadyConnector(force_close=True)) as session,
        session.get(url) as response,
    ):
        assert response.headers["x-49"] == "v" * 100
        assert await response.read() == body
