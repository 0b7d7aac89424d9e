"""Dialing: outcomes by failure, several addresses of one name, Unix sockets."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lb.domain.backend import Address
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.net.dial import dial


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def _port(server: socket.socket) -> int:
    return int(server.getsockname()[1])


class _Resolving:
    """The running loop with a resolver that gives what the test says."""

    def __init__(self, answer: list[str] | Exception) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer = answer
        self.lookups = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        self.lookups += 1
        if isinstance(self._answer, Exception):
            raise self._answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in self._answer]


async def _outcome(loop: Any, address: Address, timeout_s: float = 30.0) -> Outcome:
    with pytest.raises(UpstreamError) as caught:
        await dial(loop, address, asyncio.Protocol, timeout_s)
    return caught.value.outcome


async def test_connection_is_made_without_delay_of_small_writes(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    address = Address("127.0.0.1", _port(listener))
    transport, protocol = await dial(loop, address, asyncio.Protocol, 30.0)
    try:
        assert isinstance(protocol, asyncio.Protocol)
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    finally:
        transport.close()


async def test_closed_port_is_refused(listener: socket.socket) -> None:
    port = _port(listener)
    listener.close()
    loop = asyncio.get_running_loop()
    assert await _outcome(loop, Address("127.0.0.1", port)) is Outcome.CONNECT_REFUSED


async def test_silent_host_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        # The kernel drops further SYNs while the accept queue is full.
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        loop = asyncio.get_running_loop()
        outcome = await _outcome(loop, Address("127.0.0.1", _port(server)), 0.2)
        for filler in fillers:
            filler.close()
    assert outcome is Outcome.CONNECT_TIMEOUT


async def test_connection_that_was_made_while_the_process_stood_still_is_taken(
    listener: socket.socket,
) -> None:
    """The kernel accepts in the meantime; the time-out is due when the process goes on."""
    loop = asyncio.get_running_loop()
    dialling = asyncio.ensure_future(
        dial(loop, Address("127.0.0.1", _port(listener)), asyncio.Protocol, 0.2)
    )
    await asyncio.sleep(0)  # it has begun
    loop.call_soon(time.sleep, 0.5)
    transport, _ = await dialling
    transport.close()


async def test_every_address_of_a_name_is_tried_and_names_are_resolved_at_every_dial(
    listener: socket.socket,
) -> None:
    loop = _Resolving(["127.0.0.9", "127.0.0.1"])
    for _ in range(2):
        transport, _ = await dial(
            loop, Address("triton.test", _port(listener)), asyncio.Protocol, 30.0
        )
        transport.close()
    assert loop.lookups == 2


async def test_name_whose_addresses_all_refuse_is_refused(listener: socket.socket) -> None:
    port = _port(listener)
    listener.close()
    loop = _Resolving(["127.0.0.1", "127.0.0.9"])
    assert await _outcome(loop, Address("triton.test", port)) is Outcome.CONNECT_REFUSED


@pytest.mark.parametrize(
    "answer", [socket.gaierror(-2, "unknown"), UnicodeError("label too long"), []]
)
async def test_unresolvable_name_is_a_failed_connect(answer: list[str] | Exception) -> None:
    outcome = await _outcome(_Resolving(answer), Address("triton.test", 80))
    assert outcome is Outcome.CONNECT_FAILED


async def test_a_unix_socket_whose_queue_is_full_is_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as filler:
        server.bind(path)
        server.listen(0)
        filler.connect(path)
        loop = asyncio.get_running_loop()
        assert await _outcome(loop, Address(path=path), 0.05) is Outcome.CONNECT_TIMEOUT
        dialling = asyncio.ensure_future(dial(loop, Address(path=path), asyncio.Protocol, 30.0))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not dialling.done()
        server.accept()[0].close()
        transport, _ = await dialling
        transport.write(b"here")
        with server.accept()[0] as accepted:
            accepted.setblocking(False)
            assert await loop.sock_recv(accepted, 10) == b"here"
        transport.close()


async def test_unix_socket_is_dialed(tmp_path: Path) -> None:
    path = str(tmp_path / "backend.sock")
    loop = asyncio.get_running_loop()
    assert await _outcome(loop, Address(path=path)) is Outcome.CONNECT_REFUSED
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        transport, _ = await dial(loop, Address(path=path), asyncio.Protocol, 30.0)
        accepted, _ = server.accept()
        transport.close()
        accepted.close()
