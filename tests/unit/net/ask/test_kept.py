"""Calls of our own over connections that are kept."""

from __future__ import annotations

import asyncio

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.net.ask.backend_client import BackendClient
from tests.fakes.grpc_server import grpc_server, path
from tests.unit.net.ask.test_backend_client import spec_of
from tests.wire.http1 import Peer, ScriptedBackend, reply, scripted_backend
from tests.wire.waiting import eventually

LIMIT_S = 30.0


class Kept:
    """Asks a backend over connections that are kept."""

    def __init__(self, backend: ScriptedBackend) -> None:
        self.now = 100.0
        self.backend_client = BackendClient(clock=lambda: self.now)
        self.spec = spec_of(backend.target)

    async def ask(self) -> bytes:
        answer = await self.backend_client.http(
            self.spec, b"POST", b"/", (), b"hello", timeout_s=LIMIT_S
        )
        return answer.body


async def test_one_connection_serves_for_many_calls() -> None:
    async with scripted_backend() as backend:
        kept = Kept(backend)
        for _ in range(5):
            assert await kept.ask() == b"ok"
        assert backend.connections == 1
        assert [each.body for each in backend.requests] == [b"hello"] * 5
        assert backend.requests[0].field(b"connection") is None
        kept.backend_client.close()


async def test_connections_that_wait_hold_no_payload() -> None:
    async with scripted_backend() as backend:
        kept = Kept(backend)
        body = bytearray(1000)
        await kept.backend_client.http(
            kept.spec, b"POST", b"/", (), memoryview(body), timeout_s=LIMIT_S
        )
        body.clear()  # BufferError while somebody has a view of it
        kept.backend_client.close()


async def test_calls_at_the_same_time_have_connections_of_their_own() -> None:
    async with scripted_backend() as backend:
        kept = Kept(backend)
        for _ in range(3):
            assert await asyncio.gather(*(kept.ask() for _ in range(4))) == [b"ok"] * 4
        assert backend.connections == 4
        kept.backend_client.close()


async def test_grpc_messages_beyond_all_windows_pass_one_connection() -> None:
    async with grpc_server() as (service, target):
        backend_client = BackendClient(answer_bytes=2**18, clock=lambda: 0.0)
        spec = spec_of(target, AppProtocol.GRPC)
        for number in range(40):
            message = bytes((number,)) * 200_000
            answer = await backend_client.grpc(
                spec, path("ModelInfer").encode(), message, timeout_s=LIMIT_S
            )
            assert answer.message == message
            failed = await backend_client.grpc(spec, path("Fail").encode(), timeout_s=LIMIT_S)
            assert failed.status == 3
        assert len(service.peers) == 1
        backend_client.close()


@pytest.mark.parametrize(
    "answer",
    [
        reply(fields=b"Connection: close\r\n"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        reply() + b"HTTP/1.1 200 OK\r\n",
    ],
    ids=["close", "HTTP/1.0", "more than was asked for"],
)
async def test_a_connection_that_ends_with_its_answer_is_not_kept(answer: bytes) -> None:
    closed = asyncio.Event()

    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)
        await peer.closed()
        closed.set()

    async with scripted_backend(once) as backend:
        kept = Kept(backend)
        assert await kept.ask() == b"ok"
        await asyncio.wait_for(closed.wait(), LIMIT_S)
        assert await kept.ask() == b"ok"
        assert backend.connections == 2


async def test_a_call_is_made_again_where_the_backend_closed_meanwhile() -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply())
        await peer.head()  # the connection ends under the next request

    async with scripted_backend(once) as backend:
        kept = Kept(backend)
        for _ in range(3):
            assert await kept.ask() == b"ok"
        assert backend.connections == 3
        kept.backend_client.close()


async def test_a_call_is_not_made_again_once_something_came_of_an_answer() -> None:
    async def half(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply())
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Le")

    async with scripted_backend(half) as backend:
        kept = Kept(backend)
        assert await kept.ask() == b"ok"
        with pytest.raises(UpstreamError) as error:
            await kept.ask()
        assert error.value.outcome is Outcome.LOST
        assert backend.connections == 1


async def test_idle_connections_are_closed_after_ten_seconds() -> None:
    closed = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply())
        assert await peer.closed() == b""
        closed.set()

    async with scripted_backend(serve) as backend:
        kept = Kept(backend)
        await kept.ask()
        kept.backend_client.sweep(kept.now + 9.9)
        assert not closed.is_set()
        kept.backend_client.sweep(kept.now + 10.0)
        await asyncio.wait_for(closed.wait(), LIMIT_S)


async def test_a_connection_in_use_is_closed_after_its_call_when_its_backend_leaves() -> None:
    may_answer, closed = asyncio.Event(), asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.request()
        await may_answer.wait()
        await peer.send(reply())
        await peer.closed()
        closed.set()

    async with scripted_backend(serve) as backend:
        kept = Kept(backend)
        call = asyncio.create_task(kept.ask())
        await eventually(lambda: backend.requests)
        kept.backend_client.close_idle(kept.spec)
        may_answer.set()
        assert await call == b"ok"
        await asyncio.wait_for(closed.wait(), LIMIT_S)
