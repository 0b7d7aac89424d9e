"""Bodies that are held in place of being read by their transport, on real sockets and both event
loops."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from lb.net.intake import Intake
from lb.net.splice import LEAST, MOST, Pumps
from lb.net.stored import MOST_PIPES, KernelPipe
from lb.wire.rope import Held, in_memory
from tests.unit.net.test_splice import BODY, Side
from tests.wire.waiting import eventually

Runner = Callable[[Coroutine[Any, Any, None]], None]
TAIL = 4096


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Runner:
    return uvloop.run if request.param == "uvloop" else asyncio.run


class Source:
    """A connection that a body comes from, and the socket of its sender."""

    def __init__(self, pumps: Pumps, side: Side, sender: socket.socket) -> None:
        self.pumps = pumps
        self.side = side
        self.sender = sender
        self.pieces: list[Held] = []
        self.overs = 0
        self.intake: Intake | None = None

    @property
    def taken(self) -> bytes:
        """What came, wherever it lies."""
        return b"".join(in_memory(self.pieces))

    def start(self, size: int = len(BODY)) -> Intake | None:
        def over() -> None:
            self.overs += 1

        self.intake = self.pumps.collect(
            self.side.transport, size, take=self.pieces.append, over=over
        )
        return self.intake

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sender, data)


@asynccontextmanager
async def connected() -> AsyncIterator[Source]:
    """A connection; afterwards no intake is left."""
    loop = asyncio.get_running_loop()
    pumps = Pumps(loop)
    with socket.create_server(("127.0.0.1", 0)) as server:
        _, side = await loop.create_connection(Side, *server.getsockname())
        sender, _ = server.accept()
    sender.setblocking(False)
    source = Source(pumps, side, sender)
    try:
        yield source
    finally:
        if source.intake is not None:
            source.intake.end()
        side.transport.abort()
        sender.close()
        await eventually(lambda: side.lost)
        assert pumps.running == 0
        source.pieces.clear()
        assert pumps.store.pipes == 0
        pumps.close()


@pytest.mark.parametrize("pipes", [0, 1, MOST_PIPES])
def test_a_body_is_stored_as_long_as_there_are_pipes(run: Runner, pipes: int) -> None:
    async def check() -> None:
        async with connected() as source:
            store = source.pumps.store
            others = [store.new_pipe() for _ in range(MOST_PIPES - pipes)]
            assert source.start(3 * len(BODY)) is not None
            sending = asyncio.ensure_future(source.send(3 * BODY))
            await eventually(lambda: len(source.side.read) == TAIL)
            await sending
            assert source.taken == (3 * BODY)[:-TAIL]
            in_pipes = sum(len(piece) for piece in source.pieces if not isinstance(piece, bytes))
            if pipes > 1:
                assert in_pipes == len(source.taken)
            else:
                assert bool(in_pipes) is bool(pipes)
                assert in_pipes < len(source.taken)
            assert all(isinstance(other, KernelPipe) for other in others)
            others.clear()

    run(check())


def test_a_body_is_read_in_order_and_its_end_is_left_to_the_source(run: Runner) -> None:
    async def check() -> None:
        async with connected() as source:
            assert source.start() is not None
            sending = asyncio.ensure_future(source.send(BODY + b"next"))
            await eventually(lambda: len(source.side.read) == TAIL + 4)
            await sending
            assert source.taken == BODY[:-TAIL]
            assert bytes(source.side.read) == BODY[-TAIL:] + b"next"
            assert source.overs == 1

    run(check())


def test_nothing_is_read_while_that_is_not_wanted(run: Runner) -> None:
    async def check() -> None:
        async with connected() as source:
            intake = source.start()
            assert intake is not None
            intake.set_reading(False)
            await source.send(b"first")
            for _ in range(20):
                await asyncio.sleep(0)
            assert not source.taken
            intake.set_reading(True)
            await eventually(lambda: source.taken == b"first")

    run(check())


def test_an_intake_that_is_ended_has_the_source_read_on(run: Runner) -> None:
    async def check() -> None:
        async with connected() as source:
            intake = source.start()
            assert intake is not None
            intake.end()
            intake.end()
            intake.set_reading(False)
            await source.send(b"more")
            await eventually(lambda: bytes(source.side.read) == b"more")
            assert source.overs == 1

    run(check())


def test_it_can_be_ended_by_who_takes_a_piece(run: Runner) -> None:
    async def check() -> None:
        async with connected() as source:
            pieces: list[bytes] = []

            def take(piece: Held) -> None:
                pieces.extend(map(bytes, in_memory([piece])))
                assert intake is not None
                intake.end()

            intake = source.pumps.collect(
                source.side.transport, len(BODY), take=take, over=lambda: None
            )
            await source.send(b"first")
            await eventually(lambda: pieces == [b"first"])
            await source.send(b"second")
            await eventually(lambda: bytes(source.side.read) == b"second")

    run(check())


@pytest.mark.parametrize("is_reset", [False, True])
def test_the_end_of_a_source_is_left_to_its_transport(run: Runner, is_reset: bool) -> None:
    async def check() -> None:
        async with connected() as source:
            assert source.start() is not None
            await source.send(b"some")
            await eventually(lambda: source.taken == b"some")
            if is_reset:
                source.sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                source.sender.close()
                # The read has taken the error, so there may be no more than an end to find.
                await eventually(lambda: source.side.lost or source.side.eof)
            else:
                source.sender.shutdown(socket.SHUT_WR)
                await eventually(lambda: source.side.eof)
            assert source.overs == 1

    run(check())


def test_short_bodies_are_read_the_usual_way_and_very_many_long_ones(run: Runner) -> None:
    async def check() -> None:
        async with connected() as source:
            assert source.start(LEAST - 1) is None
            intakes = [source.start() for _ in range(MOST + 1)]
            assert intakes.pop() is None
            for each in intakes:
                assert each is not None
                each.end()

    run(check())
