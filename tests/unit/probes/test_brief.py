"""Brief conversations: what becomes of a plain connection, step by step."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Iterator

import pytest

from lb.domain.backend import Address
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.health.port import Finding
from lb.probes.brief import BriefClientCall, answer_of_loss
from lb.probes.plan import ProbeAnswer


class Until:
    """A conversation that is over when the server has said so many bytes; it repeats each."""

    def __init__(self, size: int) -> None:
        self.answer: ProbeAnswer | None = None
        self.heard = b""
        self._size = size

    def opening(self) -> bytes:
        return b""

    def receive(self, data: bytes) -> bytes:
        self.heard += data
        if len(self.heard) >= self._size:
            self.answer = ProbeAnswer(Finding.READY, "enough")
        return data


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


class Call:
    """A `BriefClientCall` with one listener, and the other end of it."""

    def __init__(self, listener: socket.socket, opening: bytes, client_call: Until | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[ProbeAnswer] = self.loop.create_future()
        address = Address("127.0.0.1", listener.getsockname()[1])
        self.client_call = BriefClientCall(self.loop, address, opening, client_call, self.outcome)
        self._listener = listener

    async def accepted(self) -> socket.socket:
        self.client_call.begin()
        return (await self.loop.sock_accept(self._listener))[0]

    async def read(self, other: socket.socket, size: int) -> bytes:
        read = b""
        while len(read) < size:
            read += await self.loop.sock_recv(other, size - len(read))
        return read


async def test_the_opening_goes_out_and_replies_follow_until_there_is_an_answer(
    listener: socket.socket,
) -> None:
    client_call = Until(4)
    call = Call(listener, b"hello", client_call)
    with await call.accepted() as other:
        assert await call.read(other, 5) == b"hello"
        await call.loop.sock_sendall(other, b"ab")
        assert await call.read(other, 2) == b"ab"
        await call.loop.sock_sendall(other, b"cd")
        assert await call.outcome == ProbeAnswer(Finding.READY, "enough")
        call.client_call.close()
        assert await call.loop.sock_recv(other, 10) == b""
    assert client_call.heard == b"abcd"


async def test_an_opening_that_no_buffer_holds_arrives_whole(listener: socket.socket) -> None:
    opening = bytes(range(256)) * 2**16
    call = Call(listener, opening, Until(1))
    with await call.accepted() as other:
        assert await call.read(other, len(opening)) == opening
        await call.loop.sock_sendall(other, b"!")
        assert (await call.outcome).finding is Finding.READY
    call.client_call.close()


async def test_connecting_alone_is_enough_without_a_conversation(listener: socket.socket) -> None:
    call = Call(listener, b"", None)
    call.client_call.begin()
    assert (await call.outcome).finding is Finding.READY
    call.client_call.close()


async def test_a_closed_port_refuses(listener: socket.socket) -> None:
    call = Call(listener, b"hello", Until(1))
    listener.close()
    call.client_call.begin()
    with pytest.raises(UpstreamError) as caught:
        await call.outcome
    assert caught.value.outcome is Outcome.CONNECT_REFUSED
    call.client_call.close()


@pytest.mark.parametrize("said", [b"", b"a"])
async def test_a_reset_refuses_only_before_the_first_byte(
    listener: socket.socket, said: bytes
) -> None:
    client_call = Until(2)
    call = Call(listener, b"hello", client_call)
    other = await call.accepted()
    await call.read(other, len(b"hello"))
    if said:
        await call.loop.sock_sendall(other, said)
        await call.read(other, len(said))
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()
    assert (await call.outcome).finding is (Finding.ERROR if said else Finding.REFUSED)
    call.client_call.close()


async def test_a_connection_that_ends_without_an_answer_is_an_error(
    listener: socket.socket,
) -> None:
    call = Call(listener, b"hello", Until(1))
    with await call.accepted() as other:
        await call.read(other, 5)
        other.shutdown(socket.SHUT_WR)
        assert (await call.outcome).finding is Finding.ERROR
    call.client_call.close()


async def test_nothing_is_taken_once_the_outcome_is_known(listener: socket.socket) -> None:
    client_call = Until(1)
    call = Call(listener, b"hello", client_call)
    with await call.accepted() as other:
        assert await call.read(other, 5) == b"hello"
        call.outcome.set_result(ProbeAnswer(Finding.TIMEOUT))
        await call.loop.sock_sendall(other, b"late")
        await asyncio.sleep(0)
        call.client_call.close()
    assert client_call.heard == b""


def test_what_tls_says_of_a_loss_is_passed_on() -> None:
    answer = answer_of_loss(ssl.SSLError(1, "[SSL: BAD] bad"), heard=False)
    assert answer.finding is Finding.ERROR
    assert answer.detail.startswith("connection closed without an answer: ")


async def test_an_address_that_nobody_can_connect_to_is_told_at_once() -> None:
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[ProbeAnswer] = loop.create_future()
    client_call = BriefClientCall(loop, Address("255.255.255.255", 1), b"", None, outcome)
    client_call.begin()
    assert outcome.done(), "the kernel refuses to connect to the broadcast address"
    with pytest.raises(UpstreamError):
        outcome.result()
    client_call.close()


async def test_an_interface_that_is_not_there_is_no_connection() -> None:
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[ProbeAnswer] = loop.create_future()
    call = BriefClientCall(loop, Address("fe80::1%none", 80), b"", None, outcome)
    call.begin()
    call.close()
    with pytest.raises(UpstreamError) as raised:
        await outcome
    assert raised.value.outcome is Outcome.CONNECT_FAILED
