"""Connections to backends without a network: how the handshake ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lb.domain.backend import Address, AppProtocol, BackendTls
from lb.net.iteration import ROOM, IterationBudget
from lb.net.tls.client import ClientTls
from lb.net.tls.connect import DialledTls
from lb.net.tls.contexts import TlsError
from tests.fakes.tls import World
from tests.unit.net.tls.test_transport import App, End, Wire

ADDRESS = Address("localhost", 1)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Dialled:
    """A connection and the backend at its other end."""

    def __init__(
        self, world: World, protocol: AppProtocol, spoken: str, tls: ClientTls | None = None
    ) -> None:
        self.tls = tls or ClientTls(BackendTls(ca=world.ca), protocol)
        loop = asyncio.get_running_loop()
        self.iteration = IterationBudget(loop)
        self.dialled = DialledTls(self.tls, ADDRESS, App, loop, self.iteration)
        self.wire = Wire()
        self.backend = End()
        self.backend.connection_made(self.backend.wire)
        context = world.server_context(spoken)
        self.backend.start(self.backend.make_object(context, server_side=True))

    def connect(self) -> Dialled:
        self.dialled.connection_made(self.wire)
        return self

    def carry(self) -> None:
        while self.wire.out or self.backend.wire.out:
            data, self.wire.out = bytes(self.wire.out), bytearray()
            self.backend.data_received(data)
            data, self.backend.wire.out = bytes(self.backend.wire.out), bytearray()
            self.dialled.data_received(data)


async def test_agreement_makes_the_protocol(world: World) -> None:
    pair = Dialled(world, AppProtocol.GRPC, "h2").connect()
    pair.carry()
    app = await pair.dialled.secured
    assert app.told == ["made"]
    assert pair.dialled.is_open
    pair.dialled.connection_lost(None)
    assert pair.tls.session_for(ADDRESS) is not None


async def test_files_may_change_while_it_connects(world: World) -> None:
    early = Dialled(world, AppProtocol.GRPC, "h2")
    early.tls.load()()
    other = Dialled(world, AppProtocol.GRPC, "h2", early.tls).connect()
    other.carry()
    other.dialled.connection_lost(None)
    assert early.tls.session_for(ADDRESS) is not None
    early.connect().carry()
    assert (await early.dialled.secured).told == ["made"]


async def test_handshakes_with_backends_count_but_do_not_wait(world: World) -> None:
    pair = Dialled(world, AppProtocol.GRPC, "h2").connect()
    pair.iteration.spend(ROOM)
    pair.carry()
    assert pair.dialled.is_open
    assert pair.iteration.left < 0


async def test_another_protocol_is_none(world: World) -> None:
    pair = Dialled(world, AppProtocol.GRPC, "http/1.1").connect()
    pair.carry()
    assert pair.wire.calls == ["close"]
    pair.dialled.connection_lost(None)
    with pytest.raises(TlsError, match="does not offer h2"):
        await pair.dialled.secured
    assert pair.tls.session_for(ADDRESS) is None


async def test_an_end_during_the_handshake_is_told(world: World) -> None:
    pair = Dialled(world, AppProtocol.HTTP, "http/1.1").connect()
    pair.dialled.connection_lost(None)
    with pytest.raises(TlsError, match="the backend closed the connection"):
        await pair.dialled.secured


async def test_nobody_gets_a_connection_that_nobody_waits_for(world: World) -> None:
    pair = Dialled(world, AppProtocol.HTTP, "http/1.1").connect()
    pair.dialled.secured.cancel()
    pair.carry()
    assert pair.wire.calls == ["abort"]
    pair.dialled.connection_lost(None)
    assert pair.dialled.secured.cancelled()
