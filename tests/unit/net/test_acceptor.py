"""Listeners that pause, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from lb.domain.backend import Address
from lb.net.acceptor import Acceptor, AcceptShare
from lb.net.connection_limiter import ConnectionLimiter
from lb.net.listeners import bind, bound_address
from lb.net.tasks import TaskOwner
from tests.wire.waiting import eventually

Scenario = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def play(scenario: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(scenario)

    return play


def _host(transport: asyncio.BaseTransport) -> str:
    """The address of a client; empty for one of a Unix socket."""
    peer = transport.get_extra_info("peername")
    return peer[0] if isinstance(peer, tuple) else ""


class Guest(asyncio.Protocol):
    """Echoes."""

    def __init__(self, house: House) -> None:
        self._house = house

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._house.guests.add(self)
        self._house.arrived.append(_host(transport))
        self._house.entered.set()
        self._house.most = max(self._house.most, len(self._house.guests))

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._house.guests.discard(self)


class Shares(list["Share"]):
    """What the processes of a test have accepted."""


class Share:
    """What one of them has accepted. Nobody has more than one connection more than another one."""

    def __init__(self, all_of_them: Shares) -> None:
        self._all = all_of_them
        self.count = 0
        self._all.append(self)

    def room(self) -> int:
        return min([each.count for each in self._all]) + 1 - self.count

    def accepted(self, count: int) -> None:
        self.count += count


class House:
    """A listener with room for some."""

    def __init__(
        self, rooms: int, address: Address | None = None, share: AcceptShare | None = None
    ) -> None:
        self.share = share
        self.guests: set[Guest] = set()
        self.arrived: list[str] = []
        """Addresses of clients, in the order in which their connections got protocols."""
        self.limiter = ConnectionLimiter()
        self.refused = 0
        self.rooms = rooms
        self.most = 0
        self.entered = asyncio.Event()
        self.listener = bind("test", address or Address("127.0.0.1", 0))
        self.address = bound_address(self.listener, address or Address("127.0.0.1", 0))
        self.tasks = TaskOwner()
        self.acceptor = self.make_acceptor(self.listener)

    def make_acceptor(self, listener: socket.socket) -> Acceptor:
        return Acceptor(
            "test",
            listener,
            lambda: Guest(self),
            self._room,
            self.tasks,
            share=self.share,
            limiter=self.limiter,
            on_refused=self._refuse,
        )

    def _refuse(self) -> None:
        self.refused += 1

    def _room(self) -> int:
        return self.rooms - len(self.guests)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.address.path:
            return await asyncio.open_unix_connection(self.address.path)
        return await asyncio.open_connection(self.address.host, self.address.port)

    async def close(self) -> None:
        self.acceptor.close()
        await self.tasks.aclose()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"x")
    async with asyncio.timeout(30):
        return await reader.read(1)


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("is_unix", [False, True])
def test_connections_without_room_wait_and_none_is_lost(
    run: Callable[[Coroutine[Any, Any, None]], None], tmp_path: Path, is_unix: bool
) -> None:
    async def scenario() -> None:
        address = Address(path=str(tmp_path / "listener.sock")) if is_unix else None
        house = House(5, address)
        await house.acceptor.open()
        clients = [await house.connect() for _ in range(60)]
        for reader, writer in clients:
            assert await ask(reader, writer) == b"x"
            await leave(writer)
        assert house.acceptor.pauses
        assert house.most <= 5 + 16  # those that come before they count
        await house.close()

    run(scenario())


def test_those_inside_are_served_while_others_wait(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def scenario() -> None:
        house = House(1)
        await house.acceptor.open()
        first = await house.connect()
        assert await ask(*first) == b"x"
        others = [await house.connect() for _ in range(50)]
        for _ in range(20):
            assert await ask(*first) == b"x"
        await eventually(lambda: not house.acceptor.is_accepting)
        for _, writer in (first, *others):
            await leave(writer)
        await house.close()

    run(scenario())


def test_a_closed_listener_refuses(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def scenario() -> None:
        house = House(1)
        await house.acceptor.open()
        await house.close()
        with pytest.raises(ConnectionRefusedError):
            await house.connect()
        house.acceptor.close()

    run(scenario())


def test_a_listener_that_is_closed_before_it_has_opened_refuses(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def scenario() -> None:
        house = House(1)
        house.acceptor.begin()
        house.acceptor.close()
        await eventually(lambda: not house.tasks)
        with pytest.raises(ConnectionRefusedError):
            await house.connect()
        assert not house.acceptor.is_accepting
        await house.close()

    run(scenario())


def test_a_listener_of_one_of_several_processes_closes_between_its_turns(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def scenario() -> None:
        house = House(1000, share=Share(Shares()))
        waiting = flood(house, 3)
        await house.acceptor.open()
        await eventually(lambda: bool(house.arrived))
        house.acceptor.close()
        with pytest.raises(ConnectionRefusedError):
            await house.connect()
        for each in waiting:
            each.close()
        await house.close()

    run(scenario())


def test_a_listener_closes_while_it_is_paused(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def scenario() -> None:
        house = House(1)
        await house.acceptor.open()
        clients = [await house.connect() for _ in range(3)]
        await eventually(lambda: not house.acceptor.is_accepting)
        await house.close()
        for _, writer in clients:
            with contextlib.suppress(ConnectionResetError):
                await leave(writer)
        with pytest.raises(ConnectionRefusedError):
            await house.connect()

    run(scenario())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_listener_survives_that_no_descriptor_is_left(loop: str) -> None:
    # In a process of its own: threads of this one need descriptors too.
    command = [sys.executable, "-m", "tests.unit.net.scarce", loop]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "refused, then served\n"), done.stderr


def test_connections_that_come_at_once_are_for_all_who_accept_in_turns(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def scenario() -> None:
        board = Shares()
        house, other = House(100, share=Share(board)), House(100, share=Share(board))
        other.acceptor.close()
        other.acceptor = other.make_acceptor(house.listener.dup())
        clients = [await house.connect() for _ in range(4)]  # they wait in the kernel's queue
        await house.acceptor.open()
        await other.acceptor.open()
        for reader, writer in clients:
            assert await ask(reader, writer) == b"x"
        assert house.guests
        assert other.guests
        more = [await house.connect() for _ in range(100)]
        for reader, writer in more:
            assert await ask(reader, writer) == b"x"
        assert abs(len(house.guests) - len(other.guests)) <= 1
        for _, writer in (*clients, *more):
            await leave(writer)
        await house.close()
        await other.close()

    run(scenario())


FLOOD = "127.0.0.2"
"""Another client than the one of `House.connect`, which is 127.0.0.1."""


def flood(house: House, count: int) -> list[socket.socket]:
    """Connections that wait in the kernel's queue, since the listener is not open yet."""
    address = house.address.host, house.address.port
    return [
        socket.create_connection(address, timeout=30, source_address=(FLOOD, 0))
        for _ in range(count)
    ]


def test_a_client_that_floods_a_listener_delays_only_itself(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def scenario() -> None:
        house = House(1000)
        flooding = flood(house, 200)
        good = await house.connect()
        await house.acceptor.open()
        assert await ask(*good) == b"x"
        assert house.arrived.index("127.0.0.1") < 50
        await eventually(lambda: len(house.arrived) == 201)
        assert house.refused == 0
        await leave(good[1])
        for each in flooding:
            each.close()
        await house.close()

    run(scenario())


def test_connections_beyond_the_limit_of_a_client_get_no_protocol(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def scenario() -> None:
        house = House(1000)
        house.limiter.limit = 2
        flooding = flood(house, 40)
        good = await house.connect()
        await house.acceptor.open()
        assert await ask(*good) == b"x"
        await eventually(lambda: house.refused + len(house.arrived) == 41)
        assert house.refused == house.acceptor.refused >= 30
        for each in flooding[-30:]:
            assert each.recv(1) == b""
        await leave(good[1])
        for each in flooding:
            each.close()
        await house.close()

    run(scenario())
