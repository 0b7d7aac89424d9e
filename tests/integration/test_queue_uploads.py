"""Uploads over HTTP/1.1 that wait for their turn, longer than what is read of them at first, and
clients that leave meanwhile; over real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lb.domain.outcome import Reason
from lb.wire.memory_budget import MemoryBudget
from tests.corpus.clients import corpus_client
from tests.fakes.gated import HttpSide, http_side, until
from tests.fakes.tls import World, tls_listener

BOTH_LOOPS = True

_PART = 40_000
"""Bytes of a request that make it wait, though there are more to come."""
_RESET = struct.pack("ii", 1, 0)


class Listener:
    """A scheduled model behind one backend that is busy."""

    def __init__(self, side: HttpSide, port: int, world: World | None) -> None:
        self.side = side
        self.port = port
        self.context = None if world is None else world.client_context()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = None if self.context is None else "localhost"
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.context, server_hostname=name
        )

    async def waits(self) -> None:
        await until(lambda: len(self.side.queue) == 1, "it waits")

    async def has_left(self) -> None:
        """The only one that waited has left, and is not run when its turn would have come."""
        side = self.side
        await until(lambda: len(side.queue) == 0, "it has left")
        await until(lambda: side.relay.memory_budget.held == 0, "nothing of it is held")
        last = await side.asked("last")
        side.gates[0].release("first")
        await until(lambda: "last" in side.gates[0].running, "the next one runs")
        side.gates[0].release("last")
        assert (await last).code == side.ok
        assert side.seen == ["first", "last"]
        await side.until_clean()


@asynccontextmanager
async def _listening(world: World | None) -> AsyncIterator[Listener]:
    async with asyncio.timeout(60), http_side() as side:
        assert isinstance(side, HttpSide)
        side.schedule()
        # Requests of this model take a second, so the first one is not thought to be lost while it
        # keeps others waiting for some seconds.
        usual = await side.asked("usual")
        await until(lambda: "usual" in side.gates[0].running, "it runs")
        await asyncio.sleep(1.0)
        side.gates[0].release("usual")
        await usual
        await side.until_clean()
        side.gates[0].seen.clear()
        side.records.clear()
        await side.asked("first")
        if world is None:
            yield Listener(side, side.relay.port, None)
            return
        factories = {"http/1.1": side.relay.accept}
        async with tls_listener(world.options(), factories) as running:
            yield Listener(side, running.port, world)


@pytest.fixture(params=["plain", "tls"])
async def listening(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Listener]:
    async with _listening(World(tmp_path) if request.param == "tls" else None) as listener:
        yield listener


@pytest.fixture
async def plain() -> AsyncIterator[Listener]:
    async with _listening(None) as listener:
        yield listener


async def test_a_client_that_leaves_after_its_upload_is_not_run(listening: Listener) -> None:
    side = listening.side
    request = side.request("gone", size=600_000)
    _, writer = await listening.connect()
    writer.write(request)
    await listening.waits()
    await until(lambda: side.relay.memory_budget.held >= len(request), "all of it is there")
    writer.close()
    await listening.has_left()
    left = next(each for each in side.records if each.reason is not None)
    assert left.reason is Reason.CLIENT_GONE
    assert (left.attempts, left.backend) == (0, None)
    assert left.bytes_in > 600_000


async def test_a_client_that_leaves_in_its_upload_is_not_run(listening: Listener) -> None:
    request = listening.side.request("gone", size=300_000)
    _, writer = await listening.connect()
    writer.write(request[:200_000])
    await listening.waits()
    writer.close()
    await listening.has_left()


@pytest.mark.parametrize("size", [10, 300_000])
async def test_clients_that_close_at_once_are_not_run(listening: Listener, size: int) -> None:
    side = listening.side
    writers = [(await listening.connect())[1] for _ in range(20)]
    for number, writer in enumerate(writers):
        writer.write(side.request(f"gone{number}", size=size))
        writer.close()
    await until(lambda: len(side.records) == len(writers), "all of them have come and gone")
    assert {record.reason for record in side.records} == {Reason.CLIENT_GONE}
    await listening.has_left()


async def test_a_client_that_half_closes_is_answered_where_that_is_set(
    listening: Listener,
) -> None:
    side = listening.side
    side.relay.configure(aborts_on_half_close=False)
    context = listening.context
    async with corpus_client(listening.port, context) as client:
        await client.send(side.request("half", size=300_000))
        client.half_close()
        await listening.waits()
        side.gates[0].open = True
        side.gates[0].release()
        assert (await client.answer("POST")).status == 200
    assert side.seen == ["first", "half"]


async def test_a_client_that_only_ends_its_side_is_answered(plain: Listener) -> None:
    side = plain.side
    side.relay.configure(aborts_on_half_close=False)
    reader, writer = await plain.connect()
    writer.write(side.request("half", size=300_000))
    writer.write_eof()
    await plain.waits()
    side.gates[0].open = True
    side.gates[0].release()
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    assert side.seen == ["first", "half"]
    writer.close()


@pytest.mark.parametrize("size", [300_000, 3 * 2**20])
async def test_an_upload_that_waited_arrives_whole(listening: Listener, size: int) -> None:
    side = listening.side
    reader, writer = await listening.connect()
    writer.write(side.request("long", size=size))
    await listening.waits()
    side.gates[0].open = True
    side.gates[0].release()
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    assert side.seen == ["first", "long"]
    assert side.records[-1].bytes_in > size
    writer.close()


# What is not read from


async def test_a_client_that_leaves_in_chunks_is_not_run(plain: Listener) -> None:
    _, writer = await plain.connect()
    whole = plain.side.request("gone", size=100_000)
    head, _, body = whole.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    chunk = b"%x\r\n%b\r\n" % (len(body), body)
    request = b"\r\n".join((*lines, b"Transfer-Encoding: chunked", b"", b"")) + chunk
    writer.write(request[:50_000])
    await plain.waits()
    writer.write(request[50_000:])
    assert plain.side.relay.unread_clients == 1
    writer.close()
    await plain.has_left()


async def test_a_client_that_resets_a_long_upload_is_not_run(plain: Listener) -> None:
    side = plain.side
    _, writer = await plain.connect()
    writer.write(side.request("gone", size=3 * 2**20))
    await plain.waits()
    await until(lambda: side.relay.unread_clients == 1, "no more of it is read")
    assert side.relay.memory_budget.held < 2 * 2**20
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
    await plain.has_left()


class _Other:
    """Somebody else who holds bytes."""

    held = 0

    def evict(self) -> None:
        raise AssertionError("nothing gives way")


def _fill(memory_budget: MemoryBudget) -> _Other:
    other = _Other()
    memory_budget.take(other, memory_budget.keep_up_to)
    return other


async def test_a_client_that_leaves_while_memory_is_short_is_not_run(plain: Listener) -> None:
    memory_budget = plain.side.relay.memory_budget
    other = _fill(memory_budget)
    request = plain.side.request("gone", size=60_000)
    _, writer = await plain.connect()
    writer.write(request[:_PART])
    await plain.waits()
    writer.write(request[_PART:])
    assert plain.side.relay.unread_clients == 1
    writer.close()
    await until(lambda: len(plain.side.queue) == 0, "it has left")
    memory_budget.release(other, memory_budget.keep_up_to)
    await plain.has_left()


async def test_a_client_that_ends_its_side_while_memory_is_short_is_answered(
    plain: Listener,
) -> None:
    side = plain.side
    side.relay.configure(aborts_on_half_close=False)
    memory_budget = side.relay.memory_budget
    other = _fill(memory_budget)
    request = side.request("half", size=60_000)
    reader, writer = await plain.connect()
    writer.write(request[:_PART])
    await plain.waits()
    writer.write(request[_PART:])
    writer.write_eof()
    await asyncio.sleep(2.2)  # it is looked at every second
    assert len(side.queue) == 1
    side.gates[0].open = True
    side.gates[0].release()
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    memory_budget.release(other, memory_budget.keep_up_to)
    writer.close()


async def test_more_is_read_once_memory_is_short_no_more(plain: Listener) -> None:
    side = plain.side
    memory_budget = side.relay.memory_budget
    other = _fill(memory_budget)
    request = side.request("gone", size=60_000)
    _, writer = await plain.connect()
    writer.write(request[:_PART])
    await plain.waits()
    writer.write(request[_PART:])
    memory_budget.release(other, memory_budget.keep_up_to)
    await until(lambda: memory_budget.held >= len(request), "all of it is there")
    assert side.relay.unread_clients == 0
    writer.close()
    await plain.has_left()
