"""Bodies that pass the process by, on real sockets and both event loops."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvloop

from lb.net.splice import LEAST, MOST, PIPE_BYTES, Pump, Pumps, is_plain
from tests.fakes.transport import FakeTransport
from tests.wire.waiting import eventually

Runner = Callable[[Coroutine[Any, Any, None]], None]
HIGH = 65536
BODY = bytes(range(251)) * (4 * LEAST // 251)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Runner:
    return uvloop.run if request.param == "uvloop" else asyncio.run


class Side(asyncio.Protocol):
    """One end of the two that a pump joins; what a connection of the relay does with it."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport = FakeTransport()
        self.read = bytearray()
        """What came the usual way."""
        self.eof = False
        self.lost = False
        self.full = False
        self.pump: Pump | None = None
        """Of which this is the sink."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=HIGH)

    def data_received(self, data: bytes) -> None:
        self.read += data

    def eof_received(self) -> bool:
        self.eof = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def pause_writing(self) -> None:
        self.full = True
        if self.pump is not None:
            self.pump.set_reading(False)

    def resume_writing(self) -> None:
        self.full = False
        if self.pump is not None:
            self.pump.set_reading(True)


class Joined:
    """A source and a sink, the sockets of their peers, and a pump between them."""

    def __init__(self, pumps: Pumps, sides: list[Side], peers: list[socket.socket]) -> None:
        self.pumps = pumps
        self.source, self.sink = sides
        self.sender, self.receiver = peers
        self.moved: list[int] = []
        self.overs = 0

    def start(self, size: int) -> Pump | None:
        def over() -> None:
            self.overs += 1
            self.sink.pump = None

        self.sink.pump = self.pumps.start(
            self.source.transport,
            self.sink.transport,
            size,
            high=HIGH,
            moved=self.moved.append,
            over=over,
        )
        return self.sink.pump

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sender, data)

    async def take(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            data = await asyncio.get_running_loop().sock_recv(self.receiver, size - len(got))
            assert data, "ended early"
            got += data
        return bytes(got)


@asynccontextmanager
async def joined() -> AsyncIterator[Joined]:
    """A source and a sink; afterwards no pump is left, and no descriptor."""
    loop = asyncio.get_running_loop()
    pumps = Pumps(loop)
    sides: list[Side] = []
    peers: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(2):
            _, side = await loop.create_connection(Side, *server.getsockname())
            sides.append(side)
            peer, _ = server.accept()
            peer.setblocking(False)
            peers.append(peer)
    try:
        yield Joined(pumps, sides, peers)
    finally:
        for side in sides:
            if side.pump is not None:
                side.pump.end()
            side.transport.abort()
        for peer in peers:
            peer.close()
        await eventually(lambda: all(side.lost for side in sides))
        assert pumps.running == 0
        pumps.close()
        assert pumps.idle == []


def test_a_body_passes_in_order_and_its_end_is_left_to_the_source(run: Runner) -> None:
    async def check() -> None:
        async with joined() as ends:
            assert ends.start(len(BODY)) is not None
            sending = asyncio.ensure_future(ends.send(BODY + b"next"))
            moved = len(BODY) - 4096
            assert await ends.take(moved) == BODY[:moved]
            await sending
            await eventually(lambda: len(ends.source.read) == 4096 + 4)
            assert bytes(ends.source.read) == BODY[moved:] + b"next"
            assert sum(ends.moved) == moved
            assert ends.overs == 1
            assert len(ends.pumps.idle) == 1

    run(check())


def test_what_a_full_sink_leaves_waits_in_the_pipe_until_it_is_taken(run: Runner) -> None:
    async def check() -> None:
        async with joined() as ends:
            size = 64 << 20
            pump = ends.start(size)
            assert pump is not None
            sending = asyncio.ensure_future(ends.send(bytes(size)))
            await eventually(lambda: ends.sink.full)
            seen = sum(ends.moved)
            for _ in range(20):
                await asyncio.sleep(0)
            assert sum(ends.moved) == seen < size
            assert pump.held <= PIPE_BYTES
            assert ends.sink.transport.get_write_buffer_size() <= 16384
            assert len(await ends.take(size - 4096)) == size - 4096
            await sending
            assert ends.overs == 1
            assert pump.held == 0

    run(check())


def test_ending_a_pump_drops_what_it_holds_and_gives_reading_back(run: Runner) -> None:
    async def check() -> None:
        async with joined() as ends:
            size = 64 << 20
            pump = ends.start(size)
            assert pump is not None
            sending = asyncio.ensure_future(ends.send(bytes(size)))
            await eventually(lambda: ends.sink.full and pump.held > 0)
            pump.end()
            pump.end()
            assert (ends.overs, pump.held, ends.pumps.idle) == (1, 0, [])
            ends.source.transport.resume_reading()  # it was not reading: the sink was full
            await sending
            await eventually(lambda: len(ends.source.read) + sum(ends.moved) == size)

    run(check())


def test_ending_a_pump_that_reads_has_the_source_read_on(run: Runner) -> None:
    async def check() -> None:
        async with joined() as ends:
            pump = ends.start(len(BODY))
            assert pump is not None
            pump.end()
            await ends.send(b"more")
            await eventually(lambda: bytes(ends.source.read) == b"more")
            assert len(ends.pumps.idle) == 1

    run(check())


def test_the_end_of_a_source_is_left_to_its_transport(run: Runner) -> None:
    async def check() -> None:
        async with joined() as ends:
            ends.start(len(BODY))
            await ends.send(BODY[:1000])
            assert await ends.take(1000) == BODY[:1000]
            ends.sender.shutdown(socket.SHUT_WR)
            await eventually(lambda: ends.source.eof)
            assert ends.overs == 1

    run(check())


def test_a_sink_that_is_gone_is_left_to_its_transport(run: Runner) -> None:
    async def check() -> None:
        async with joined() as ends:
            ends.start(64 << 20)
            ends.receiver.close()
            sending = asyncio.ensure_future(ends.send(bytes(8 << 20)))
            await eventually(lambda: ends.overs == 1 or ends.sink.lost)
            ends.source.transport.abort()
            await asyncio.gather(sending, return_exceptions=True)
            if ends.sink.pump is not None:
                ends.sink.pump.end()

    run(check())


def test_where_the_system_cannot_bodies_go_the_usual_way(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_options: object) -> int:
        raise OSError(errno.EINVAL, "not here")

    async def check() -> None:
        async with joined() as ends:
            monkeypatch.setattr(os, "splice", refuse)
            assert ends.start(len(BODY)) is not None
            await ends.send(BODY[:1000])
            await eventually(lambda: bytes(ends.source.read) == BODY[:1000])
            assert ends.overs == 1

    run(check())


def test_there_are_so_many_pumps_and_no_more(run: Runner) -> None:
    async def check() -> None:
        async with joined() as ends:
            pumps = [ends.start(len(BODY)) for _ in range(MOST + 1)]
            assert pumps[-1] is None
            for pump in pumps[:-1]:
                assert pump is not None
                pump.end()
            assert len(ends.pumps.idle) == MOST

    run(check())


def test_short_bodies_and_busy_sinks_have_no_pump(run: Runner) -> None:
    async def check() -> None:
        async with joined() as ends:
            assert ends.start(LEAST - 1) is None
            ends.sink.transport.write(bytes(64 << 20))
            assert ends.start(LEAST) is None

    run(check())


def test_only_sockets_of_tcp_without_tls_are_plain(run: Runner) -> None:
    async def check() -> None:
        async with joined() as ends:
            assert is_plain(ends.source.transport)
        assert not is_plain(FakeTransport())
        left, right = socket.socketpair()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_unix_connection(Side, sock=left)
        assert not is_plain(transport)
        transport.abort()
        right.close()

    run(check())
