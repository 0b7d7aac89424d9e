"""Facts that only the socket knows, on both event loops."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvloop

from lb.net.sockets import (
    PeerEnd,
    acknowledged_bytes,
    peer_end,
    read_peer_end,
    read_rest,
    read_unacknowledged,
    reset_on_close,
    unacknowledged,
    unsent_bytes,
)
from tests.fakes.deaf import make_deaf
from tests.wire.waiting import eventually

Runner = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Runner:
    return uvloop.run if request.param == "uvloop" else asyncio.run


class _Protocol(asyncio.Protocol):
    """Keeps what `read_rest` finds when the connection is lost."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.rest: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self.transport is not None
        self.rest = read_rest(self.transport, 1 << 20)


@asynccontextmanager
async def _connected() -> AsyncIterator[tuple[_Protocol, asyncio.Transport, socket.socket]]:
    """A protocol, its transport, and the plain socket at the other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_connection(_Protocol, host, port)
        peer, _ = server.accept()
    try:
        yield protocol, transport, peer
    finally:
        transport.abort()
        peer.close()


def test_unsent_bytes_fall_as_the_peer_reads(run: Runner) -> None:
    async def check() -> None:
        async with _connected() as (_, transport, peer):
            size = 32 << 20
            transport.write(b"x" * size)
            before = unsent_bytes(transport)
            assert before > transport.get_write_buffer_size()
            taken = len(peer.recv(4 << 20))
            await eventually(lambda: unsent_bytes(transport) < before)
            assert taken > 0

    run(check())


def test_acknowledged_bytes_grow_with_what_the_peer_takes_however_much_waits(run: Runner) -> None:
    async def check() -> None:
        async with _connected() as (_, transport, peer):
            transport.write(b"x" * (32 << 20))
            before, waiting = acknowledged_bytes(transport), unsent_bytes(transport)
            taken = 0
            while taken < 8 << 20:
                size = len(peer.recv(1 << 20))
                taken += size
                transport.write(b"x" * (size + 1))
                await asyncio.sleep(0)
            await eventually(lambda: acknowledged_bytes(transport) > before)
            # In this order: what is acknowledged meanwhile is counted twice, and not left out.
            assert unsent_bytes(transport) + acknowledged_bytes(transport) >= taken + waiting

    run(check())


def test_reset_is_seen_by_the_peer(run: Runner) -> None:
    async def check() -> None:
        async with _connected() as (protocol, transport, peer):
            reset_on_close(transport)
            transport.close()
            await eventually(lambda: protocol.rest is not None)
            with pytest.raises(ConnectionResetError):
                peer.recv(1)

    run(check())


def test_what_came_before_a_reset_can_be_read(run: Runner) -> None:
    async def check() -> None:
        async with _connected() as (protocol, transport, peer):
            transport.pause_reading()
            transport.write(b"x" * 1000)
            peer.recv(1)
            peer.send(b"answer")
            peer.close()  # with unread bytes, so this is a reset
            while protocol.rest is None:
                transport.write(b"more")
                await asyncio.sleep(0.001)
            assert protocol.rest == b"answer"

    run(check())


def test_transports_without_a_socket_have_nothing_to_say() -> None:
    class Bare(asyncio.Transport):
        def get_write_buffer_size(self) -> int:
            return 7

    assert unsent_bytes(Bare()) == 7
    assert read_rest(Bare(), 10) == b""
    reset_on_close(Bare())
    assert Bare().get_extra_info("socket") is None


def test_what_a_deaf_peer_does_not_acknowledge_is_seen_once_it_was_sent_again(run: Runner) -> None:
    async def check() -> None:
        async with _connected() as (_, transport, peer):
            transport.write(b"heard")
            await eventually(lambda: acknowledged_bytes(transport) >= 5)
            assert unacknowledged(transport) is None
            make_deaf(peer)
            transport.write(b"unheard")
            await eventually(lambda: unacknowledged(transport) is not None)
            sent = unacknowledged(transport)
            assert sent is not None
            assert 0.1 < sent.silent_s < 60.0
            assert sent.resent_s <= sent.silent_s

    run(check())


def test_a_kernel_that_says_less_says_nothing() -> None:
    assert read_unacknowledged(b"") is None
    assert read_unacknowledged(bytes(59)) is None


def test_what_was_sent_once_may_still_be_on_its_way() -> None:
    info = bytearray(b"\x01" * 232)
    assert read_unacknowledged(info) is not None
    info[2] = 0  # `tcpi_retransmits`
    assert read_unacknowledged(info) is None


def test_a_fin_is_seen_without_reading(run: Runner) -> None:
    async def check() -> None:
        async with _connected() as (_, transport, peer):
            transport.pause_reading()
            assert peer_end(transport) is None
            peer.send(b"all")
            peer.shutdown(socket.SHUT_WR)
            await eventually(lambda: peer_end(transport) is not None)
            assert peer_end(transport) is PeerEnd.FIN

    run(check())


def test_a_reset_is_seen_without_reading(run: Runner) -> None:
    async def check() -> None:
        async with _connected() as (_, transport, peer):
            transport.pause_reading()
            peer.send(b"some")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            await eventually(lambda: peer_end(transport) is not None)
            assert peer_end(transport) is PeerEnd.RESET

    run(check())


def test_a_kernel_that_says_less_knows_of_no_end() -> None:
    assert read_peer_end(b"") is None
    assert read_peer_end(b"\x08" + bytes(59)) is PeerEnd.FIN
    assert read_peer_end(b"\x07" + bytes(59)) is PeerEnd.RESET
    assert read_peer_end(b"\x01" + bytes(59)) is None
