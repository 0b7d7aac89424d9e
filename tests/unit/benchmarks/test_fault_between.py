"""What stands between a balancer and its backends disturbs exactly as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from benchmarks.faults.between import NO_FAULT, Between, Fault
from tests.wire.waiting import eventually

PATIENCE_S = 30.0
PAUSE_S = 0.2
"""For what must not happen."""


@asynccontextmanager
async def echo_behind() -> AsyncIterator[Between]:
    """A server that sends back what it gets, behind what disturbs."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionResetError:
            pass  # some faults are resets
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, Between(server.sockets[0].getsockname()[1], Random(1)) as between:
        yield between


async def dial(between: Between) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", between.port)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    """Send and read as many bytes back."""
    writer.write(data)
    return await asyncio.wait_for(reader.readexactly(len(data)), PATIENCE_S)


async def stays_silent(reader: asyncio.StreamReader) -> bool:
    try:
        await asyncio.wait_for(reader.read(1), PAUSE_S)
    except TimeoutError:
        return True
    return False


async def test_without_fault_all_passes_unchanged() -> None:
    data = bytes(range(256)) * 4096
    async with echo_behind() as between:
        reader, writer = await dial(between)
        assert await ask(reader, writer, data) == data
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        writer.close()


@pytest.mark.parametrize("fault", [Fault(black_hole=True), Fault(stop_reading=True)])
async def test_bytes_that_go_nowhere_close_no_connection(fault: Fault) -> None:
    async with echo_behind() as between:
        reader, writer = await dial(between)
        await ask(reader, writer, b"before")
        between.set(fault)
        writer.write(b"lost")
        assert await stays_silent(reader)
        writer.close()


async def test_a_connection_that_lost_bytes_does_not_go_on() -> None:
    async with echo_behind() as between:
        reader, writer = await dial(between)
        await ask(reader, writer, b"before")
        between.set(Fault(black_hole=True))
        writer.write(b"lost")
        assert await stays_silent(reader)
        between.set(NO_FAULT)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(1), PATIENCE_S)
        writer.close()


async def test_bytes_that_waited_arrive_once_it_reads_again() -> None:
    async with echo_behind() as between:
        between.set(Fault(stop_reading=True))
        reader, writer = await dial(between)
        writer.write(b"held")
        assert await stays_silent(reader)
        between.set(NO_FAULT)
        assert await asyncio.wait_for(reader.readexactly(4), PATIENCE_S) == b"held"
        writer.close()


async def test_refused_connections_end_at_once_and_open_ones_stay() -> None:
    async with echo_behind() as between:
        reader, writer = await dial(between)
        await ask(reader, writer, b"before")
        between.set(Fault(refuse=True))
        assert await ask(reader, writer, b"still") == b"still"
        late_reader, late_writer = await dial(between)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(late_reader.read(1), PATIENCE_S)
        late_writer.close()
        writer.close()


async def test_a_shut_port_refuses_until_it_listens_again() -> None:
    async with echo_behind() as between:
        reader, writer = await dial(between)
        await ask(reader, writer, b"before")
        between.shut()
        with pytest.raises(ConnectionRefusedError):
            await dial(between)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(1), PATIENCE_S)
        await between.listen()
        again, other = await dial(between)
        assert await ask(again, other, b"again") == b"again"
        other.close()
        writer.close()


async def test_connection_is_reset_after_so_many_bytes() -> None:
    async with echo_behind() as between:
        between.set(Fault(reset_after=100))
        reader, writer = await dial(between)
        assert await ask(reader, writer, bytes(99)) == bytes(99)
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(1), PATIENCE_S)
        assert between.resets == 1
        writer.close()


async def test_doomed_connections_are_reset_in_mid_request() -> None:
    async with echo_behind() as between:
        reader, writer = await dial(between)
        await ask(reader, writer, b"before")
        between.reset_share(1.0, within_bytes=50)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await ask(reader, writer, bytes(100))
        writer.close()


async def test_answers_end_in_their_midst() -> None:
    async with echo_behind() as between:
        between.set(Fault(half_close_after=10))
        reader, writer = await dial(between)
        writer.write(bytes(100))
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == bytes(10)
        writer.close()


async def test_one_bit_changes() -> None:
    async with echo_behind() as between:
        between.set(Fault(corrupt_after=5))
        reader, writer = await dial(between)
        assert await ask(reader, writer, bytes(10)) == b"\0\0\0\0\x10\0\0\0\0\0"
        assert await ask(reader, writer, bytes(10)) == bytes(10)
        writer.close()


async def test_bytes_come_late() -> None:
    async with echo_behind() as between:
        between.set(Fault(latency_s=0.1))
        reader, writer = await dial(between)
        began = asyncio.get_running_loop().time()
        await ask(reader, writer, b"slow")
        assert asyncio.get_running_loop().time() - began >= 0.2
        writer.close()


async def test_bytes_that_come_late_are_no_fewer() -> None:
    """What is sent is under way at once: nothing waits until what went before it is there."""
    async with echo_behind() as between:
        between.set(Fault(latency_s=3600.0))
        _, writer = await dial(between)
        writer.transport.set_write_buffer_limits(0)
        writer.write(bytes(12 << 20))
        await writer.drain()  # more than the buffers of both sockets hold
        writer.close()


async def test_bytes_come_at_a_rate() -> None:
    async with echo_behind() as between:
        between.set(Fault(bytes_per_s=10_000))
        reader, writer = await dial(between)
        began = asyncio.get_running_loop().time()
        await ask(reader, writer, bytes(1000))
        assert asyncio.get_running_loop().time() - began >= 0.1
        writer.close()


async def test_nothing_is_open_after_connections_ended() -> None:
    async with echo_behind() as between:
        reader, writer = await dial(between)
        await ask(reader, writer, b"x")
        assert between.open_connections == 1
        writer.close()
        await writer.wait_closed()
        await eventually(lambda: not between.open_connections)
