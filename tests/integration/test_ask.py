"""Calls of our own to servers that are slow or speak TLS, with bodies of many megabytes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from lb.domain.backend import BackendSpec, BackendTls, parse_address
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.net.ask import backend_client as backend_client_module
from lb.net.ask.backend_client import BackendClient
from tests.fakes.grpc_server import grpc_server, path
from tests.fakes.tls import World
from tests.wire.http1 import Peer, reply, scripted_backend

BOTH_LOOPS = True

LONG = 32 << 20


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_long_body_is_not_copied_into_buffers_of_the_transport(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    largest = 0
    may_read = asyncio.Event()

    async def slow(peer: Peer) -> None:
        received = await peer.head()
        await may_read.wait()
        await peer.body(received)
        await peer.send(reply(b"%d" % len(received.body)))

    class Watched(backend_client_module._Connection[Any]):
        def pause_writing(self) -> None:
            nonlocal largest
            assert self._transport is not None
            largest = max(largest, self._transport.get_write_buffer_size())
            super().pause_writing()
            may_read.set()

    monkeypatch.setattr(backend_client_module, "_Connection", Watched)
    async with scripted_backend(slow) as backend:
        spec = BackendSpec(name="a", http=parse_address(backend.target))
        answer = await BackendClient().http(spec, b"POST", b"/", (), bytes(LONG), timeout_s=30)
    assert answer.body == b"%d" % LONG
    assert 0 < largest < 1 << 20


async def test_http_is_asked_over_verified_connections(world: World) -> None:
    async def count(peer: Peer) -> None:
        received = await peer.request()
        await peer.send(reply(b"%d" % len(received.body)))

    async with scripted_backend(count, tls=world.server_context()) as backend:
        address = parse_address(backend.target)
        spec = BackendSpec(name="a", http=address, tls=BackendTls(ca=world.ca))
        answer = await BackendClient().http(spec, b"POST", b"/", (), bytes(LONG), timeout_s=30)
        assert answer.body == b"%d" % LONG
        spec = BackendSpec(name="a", http=address, tls=BackendTls())
        with pytest.raises(UpstreamError, match="certificate verify failed") as error:
            await BackendClient().http(spec, b"GET", b"/", timeout_s=30)
    assert error.value.outcome is Outcome.CONNECT_FAILED


async def test_grpc_is_asked_over_verified_connections(world: World) -> None:
    pair = world.authority.issue("localhost")
    credentials = grpc.ssl_server_credentials([(pair.key, pair.certificate)])
    async with grpc_server(credentials) as (_, target):
        tls = BackendTls(ca=world.ca, server_name="localhost")
        spec = BackendSpec(name="a", grpc=parse_address(target), tls=tls)
        answer = await BackendClient().grpc(
            spec, path("ModelInfer").encode(), bytes(LONG), timeout_s=30
        )
    assert answer.status == 0
    assert len(answer.message) == LONG


async def test_many_questions_at_once_are_answered_each() -> None:
    async with grpc_server() as (service, target):
        spec = BackendSpec(name="a", grpc=parse_address(target))
        backend_client = BackendClient(connect_timeout_s=10.0)
        call = path("ModelInfer").encode()
        answers = await asyncio.gather(
            *(backend_client.grpc(spec, call, b"%d" % at, timeout_s=30) for at in range(100))
        )
    assert [answer.message for answer in answers] == [b"%d" % at for at in range(100)]
    assert service.calls == 100
