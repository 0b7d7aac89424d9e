"""Accepted connections without a network: who gets them, and who is turned away how."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lb.net.connection_limiter import ConnectionLimiter
from lb.net.iteration import ROOM, IterationBudget
from lb.net.timers import TimerWheel
from lb.net.tls.accept import TlsAcceptor
from lb.net.tls.server import ServerTls
from tests.fakes.hello import make_hello
from tests.fakes.tls import World
from tests.unit.net.tls.test_transport import App, Wire


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Door:
    """An acceptor with one connection."""

    def __init__(self, world: World) -> None:
        loop = asyncio.get_running_loop()
        self.timers = TimerWheel(loop)
        self.failures = 0
        tls = ServerTls("https", world.options(), ("http/1.1", "h2"))
        self.acceptor = TlsAcceptor(
            tls,
            {"http/1.1": App, "h2": App},
            App,
            self.timers,
            IterationBudget(loop),
            5.0,
            self._fail,
        )
        self.connection = self.acceptor()
        self.wire = Wire()
        self.connection.connection_made(self.wire)

    def _fail(self) -> None:
        self.failures += 1


async def test_a_known_protocol_begins_the_handshake(world: World) -> None:
    door = Door(world)
    hello = make_hello("localhost", ("h2",))
    door.connection.data_received(hello[:40])
    assert not door.wire.out
    door.connection.data_received(hello[40:])
    assert door.wire.out[0] == 0x16
    assert (len(door.timers), len(door.acceptor.shaking)) == (1, 1)
    door.acceptor.close()
    assert door.wire.calls == ["abort"]
    door.connection.connection_lost(None)
    assert (len(door.timers), len(door.acceptor.shaking), door.failures) == (0, 0, 0)
    door.timers.close()


async def test_a_handshake_waits_for_its_turn_no_longer_than_it_may_take(world: World) -> None:
    door = Door(world)
    door.acceptor.iteration.spend(ROOM)
    door.connection.data_received(make_hello("localhost", ("h2",)))
    assert not door.wire.out
    door.connection._expire()
    assert door.wire.calls == ["abort"]
    door.connection.connection_lost(None)
    await asyncio.sleep(0)
    assert not door.wire.out
    assert (len(door.acceptor.shaking), door.failures) == (0, 1)
    door.timers.close()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (make_hello("localhost", ("spdy/3",)), bytes((21, 3, 3, 0, 2, 2, 120))),
        (b"\x16\x03\x01\x00\x04\x02\x00\x00\x00", bytes((21, 3, 3, 0, 2, 2, 50))),
        (b"GET / HTTP/1.1\r\n\r\n", b""),
    ],
    ids=["unknown protocol", "no hello", "no TLS"],
)
async def test_others_are_told_so_and_closed(world: World, sent: bytes, said: bytes) -> None:
    door = Door(world)
    door.connection.data_received(sent)
    assert (bytes(door.wire.out), door.wire.calls) == (said, ["close"])
    door.connection.data_received(b"more")
    door.connection.connection_lost(None)
    assert (len(door.timers), len(door.acceptor.shaking), door.failures) == (0, 0, 1)
    door.timers.close()


async def test_there_is_no_identity_without_a_certificate(world: World) -> None:
    door = Door(world)
    assert door.connection.get_extra_info("identity_field") is None
    assert door.connection.get_extra_info("peername") == ("1.2.3.4", 5)
    door.connection.connection_lost(None)
    door.timers.close()


async def test_a_client_may_not_wait_in_more_handshakes_than_it_may_have_connections(
    world: World,
) -> None:
    door = Door(world)
    acceptor = door.acceptor
    door.connection.connection_lost(None)
    acceptor.connection_limiter = ConnectionLimiter(1)
    crowded: list[int] = []
    acceptor.on_crowded = lambda: crowded.append(1)
    wires = [Wire(), Wire()]
    first, second = (acceptor() for _ in wires)
    for connection, wire in zip((first, second), wires, strict=True):
        connection.connection_made(wire)
    assert [wire.calls for wire in wires] == [[], ["abort"]]
    assert len(crowded) == 1
    for connection in (first, second):
        connection.connection_lost(None)
    assert (len(acceptor.connection_limiter), len(acceptor), len(door.timers), door.failures) == (
        0,
        0,
        0,
        0,
    )
    door.timers.close()
