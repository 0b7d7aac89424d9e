"""Slow readers and slow uploaders beside quick ones on shared connections: nobody waits for
another, and what is held stays within its bounds."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import psutil
import pytest

from lb.domain.outcome import Reason
from tests.fakes.pouring import POUR_PATH, pours, sized
from tests.fakes.relay import RunningRelay, running_relay
from tests.wire.frames import (
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    RST_STREAM,
    call,
    data,
    headers,
    named,
    request_fields,
    rst,
    settings,
    window_update,
)
from tests.wire.http2 import Peer, listens, plays, raw_backend, raw_client
from tests.wire.waiting import eventually

BOTH_LOOPS = True
KIB, MIB = 1024, 1024 * 1024
STALLED, FLOWING = 8, 92
RESOURCE_EXHAUSTED = 8
WIDE = {"answer_window": MIB}
"""Answers may run far ahead from their start, so that few streams hold much."""


def pour(stream: int, size: int) -> bytes:
    """A request for `size` bytes."""
    return headers(stream, request_fields(sized(size), path=POUR_PATH), end=True)


def streams(count: int) -> range:
    return range(1, 2 * count, 2)


def memory() -> int:
    """Resident bytes of this process."""
    return psutil.Process(os.getpid()).memory_info().rss


async def read_all(client: Peer, count: int, size: int) -> float:
    """Have `count` answers of `size` bytes; returns the seconds that it took."""
    began = time.monotonic()
    first = 2 + max(client.heads, default=-1)
    wanted = range(first, first + 2 * count, 2)
    client.send(*(pour(stream, size) for stream in wanted))
    while not client.ended.issuperset(wanted):
        await client.until(lambda _: True)
    assert {len(client.bodies[stream]) for stream in wanted} == {size}
    return time.monotonic() - began


async def test_stalled_streams_hold_up_nobody_on_their_connection() -> None:
    async with (
        raw_backend(pours) as backend,
        running_relay(backend.target, options=WIDE) as relay,
        raw_client(relay.port) as stalled,
        raw_client(relay.port, {INITIAL_WINDOW_SIZE: 2**30}) as flowing,
    ):
        flowing.send(window_update(0, 2**30))
        alone = [await read_all(flowing, FLOWING, 256 * KIB) for _ in range(3)]
        stalled.credits = False
        stalled.send(*(pour(stream, 64 * MIB) for stream in streams(STALLED)))
        window = relay.answer_window
        most = STALLED * window
        await eventually(lambda: relay.memory_budget.held >= most - 65_535)
        beside = [await read_all(flowing, FLOWING, 256 * KIB) for _ in range(3)]
        assert len(backend.peers) == 1, "all on one connection"
        assert relay.memory_budget.held <= most
        assert max(each.held for client in relay.clients for each in client.streams) <= window
        assert min(beside) <= 3 * max(alone) + 0.2
        stalled.send(*(rst(stream) for stream in streams(STALLED)))
        await relay.until_clean()


async def test_one_stalled_stream_of_a_client_does_not_stall_its_others() -> None:
    """Their connection to the client is one as well; only the stream's window is shut."""
    async with (
        raw_backend(pours) as backend,
        running_relay(backend.target) as relay,
        raw_client(relay.port, {INITIAL_WINDOW_SIZE: 0}) as client,
    ):
        client.send(window_update(0, 2**30), pour(1, MIB))
        others = streams(100)[1:]
        for stream in others:
            client.send(pour(stream, 50 * KIB), window_update(stream, 50 * KIB))
        while not client.ended.issuperset(others):
            await client.until(lambda _: True)
        assert 1 not in client.bodies
        client.send(window_update(1, MIB))
        await client.until_over(1)
        assert len(client.bodies[1]) == MIB
        await relay.until_clean()


@asynccontextmanager
async def slow_readers(relay: RunningRelay, count: int) -> AsyncIterator[list[Peer]]:
    """Clients of 50 calls each that never take more than 1,000 bytes of an answer."""
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(count // 50):
            client = await stack.enter_async_context(
                raw_client(relay.port, {INITIAL_WINDOW_SIZE: 1000})
            )
            client.credits = False
            client.send(*(pour(stream, 8 * MIB) for stream in streams(50)))
            clients.append(client)
        yield clients


@asynccontextmanager
async def slow_uploads(relay: RunningRelay, count: int, size: int) -> AsyncIterator[list[Peer]]:
    """Clients of 50 calls each that send what their windows allow and want to send more."""
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(count // 50):
            client = await stack.enter_async_context(raw_client(relay.port))
            for stream in streams(50):
                client.send(headers(stream, request_fields()), data(stream, named()))
                for _ in range(size // 16_000):
                    client.send(data(stream, bytes(16_000)))
            clients.append(client)
        yield clients


async def test_slow_readers_and_uploaders_hold_one_window_each() -> None:
    window = 64 * KIB
    options = {"stream_window": window, "stream_window_max": 16 * window, "answer_window": window}
    async with (
        raw_backend(pours) as reading,
        raw_backend(plays(listens), {INITIAL_WINDOW_SIZE: 0}) as stuck,
        running_relay(reading.target, options=options) as down,
        running_relay(stuck.target, options=options) as up,
    ):
        before = memory()
        async with slow_readers(down, 200), slow_uploads(up, 200, 48_000):
            await eventually(lambda: down.memory_budget.held >= 200 * (window - 1000))
            await eventually(lambda: up.memory_budget.held >= 200 * 2 * 48_000)
            assert down.memory_budget.held <= 200 * window
            assert up.memory_budget.held <= 200 * 2 * window, "a window that waits, and its copy"
            held = down.memory_budget.held + up.memory_budget.held
            assert memory() - before <= 2 * held + 32 * MIB
            assert down.open_requests == up.open_requests == 200
        await down.until_clean()
        await up.until_clean()


async def test_at_the_ceiling_new_calls_are_refused_and_the_largest_gives_way() -> None:
    ceiling = 2 * MIB
    async with (
        raw_backend(pours) as backend,
        running_relay(backend.target, ceiling=ceiling, options=WIDE) as relay,
        raw_client(relay.port) as client,
        raw_client(relay.port) as other,
    ):
        client.credits = False
        client.send(pour(1, 300 * KIB), pour(3, 8 * MIB))
        await eventually(lambda: relay.memory_budget.held >= MIB + 200 * KIB)
        assert relay.memory_budget.evictions == 0
        client.send(pour(5, 700 * KIB), pour(7, 8 * MIB))
        await client.until_kind(RST_STREAM)
        assert client.resets == {3: 11}, "the largest"
        assert relay.memory_budget.held <= ceiling
        assert relay.memory_budget.evictions == 1
        await eventually(lambda: relay.finished.records)
        assert relay.finished.records[0].reason is Reason.MEMORY
        client.send(rst(1), rst(5), rst(7))
        await relay.until_clean()
        other.send(pour(1, 100))
        await other.until_over(1)
        assert other.status(1) == 0


async def test_near_the_ceiling_new_calls_are_refused_until_there_is_room() -> None:
    async with (
        raw_backend(pours) as backend,
        running_relay(backend.target, ceiling=MIB) as relay,
        raw_client(relay.port) as client,
        raw_client(relay.port) as other,
    ):
        client.credits = False
        client.send(pour(1, 990 * KIB))
        await eventually(lambda: relay.memory_budget.is_short)
        other.send(pour(1, 100), call(3))
        await other.until_over(1)
        await other.until_over(3)
        assert (other.status(1), other.status(3)) == (RESOURCE_EXHAUSTED, RESOURCE_EXHAUSTED)
        client.send(window_update(0, MIB), window_update(1, MIB))
        await client.until_over(1)
        other.send(pour(5, 100))
        await other.until_over(5)
        assert other.status(5) == 0
        await relay.until_clean()


async def test_many_streams_that_wait_do_not_move_into_the_transport() -> None:
    """What a transport holds is on nobody's account, so it must be little."""
    options = {"concurrent_streams": 200, "answer_window": MIB}
    async with (
        raw_backend(pours) as backend,
        running_relay(backend.target, options=options) as relay,
        raw_client(relay.port) as client,
    ):
        client.credits = False
        client.send(*(pour(stream, 256 * KIB) for stream in streams(200)))
        await eventually(lambda: relay.memory_budget.held >= 200 * 256 * KIB - 65_535)
        client.writer.transport.pause_reading()
        client.send(settings({INITIAL_WINDOW_SIZE: 2**20}), window_update(0, 2**30))
        most = 0
        async with asyncio.timeout(30):
            while not relay.clients[0].is_paused:
                await asyncio.sleep(0)
                most = max(most, relay.clients[0].transport.get_write_buffer_size())
        assert len(relay.clients) == 1
        assert most <= MIB + 512 * KIB
        client.credits = True
        client.writer.transport.resume_reading()
        while not client.ended.issuperset(streams(200)):
            await client.until(lambda _: True)
        await relay.until_clean()


@pytest.mark.parametrize("connections", [1, 10])
async def test_a_client_that_does_not_read_its_socket_holds_one_window_per_stream(
    connections: int,
) -> None:
    """Windows wide open, TCP full: what the transport does not take waits in the pipes."""
    window = 256 * KIB
    options = {"stream_window_max": window, "answer_window": window}
    async with (
        raw_backend(pours) as backend,
        running_relay(backend.target, options=options) as relay,
        AsyncExitStack() as stack,
    ):
        clients = []
        for _ in range(connections):
            client = await stack.enter_async_context(
                raw_client(relay.port, {INITIAL_WINDOW_SIZE: 2**30})
            )
            client.writer.transport.pause_reading()
            # By itself the kernel may take all of it: up to 32 MiB for a socket that nobody reads.
            client.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB
            )
            client.send(window_update(0, 2**30))
            client.send(*(pour(stream, 8 * MIB) for stream in streams(4)))
            clients.append(client)
        await eventually(lambda: relay.memory_budget.held >= 4 * connections * window * 3 // 4)
        assert relay.memory_budget.held <= 4 * connections * window
        unsent = [each.transport.get_write_buffer_size() for each in relay.clients]
        assert max(unsent) <= MIB + 512 * KIB
        for client in clients:
            client.writer.transport.resume_reading()
        for client in clients:
            while not client.ended.issuperset(streams(4)):
                await client.until(lambda _: True)
            assert {len(body) for body in client.bodies.values()} == {8 * MIB}
        await relay.until_clean()


async def test_the_window_of_a_quick_reader_grows_and_of_a_slow_one_stays() -> None:
    async with (
        raw_backend(pours) as backend,
        running_relay(backend.target) as relay,
        raw_client(relay.port, {INITIAL_WINDOW_SIZE: 2**30}) as client,
    ):
        client.send(window_update(0, 2**30), pour(1, 16 * MIB))
        grown = 0
        while 1 not in client.ended:
            await client.until(lambda _: True)
            windows = [each.window for one in relay.clients for each in one.streams]
            grown = max(grown, *windows, 0)
        assert grown == relay.stream_window_max
        assert len(client.bodies[1]) == 16 * MIB
        await relay.until_clean()


async def test_a_hundred_calls_over_three_streams_at_a_time_all_end() -> None:
    async with (
        raw_backend(pours, {MAX_CONCURRENT_STREAMS: 3}) as backend,
        running_relay(backend.target) as relay,
        raw_client(relay.port, {INITIAL_WINDOW_SIZE: 2**30}) as client,
    ):
        client.send(window_update(0, 2**30))
        await asyncio.wait_for(read_all(client, 100, 100 * KIB), 20)
        await relay.until_clean()
        assert all(isinstance(peer, Peer) for peer in backend.peers)
