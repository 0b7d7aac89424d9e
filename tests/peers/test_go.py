"""What grpc-go and Go's HTTP/2 client do, as raw frames.

grpc-go estimates the bandwidth by a PING with each read of DATA unless one is under way, and
credits in small steps; Go's HTTP/2 client follows the RST_STREAM of a cancelled request by a PING,
which others have taken for an attack.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable

from tests.corpus.http2_play import connected
from tests.fakes.grpc_server import path
from tests.peers.balancer import Balancer
from tests.wire import frames as f
from tests.wire.http2 import Peer, greet

SECONDS = float(os.environ.get("PEERS_SECONDS", "3"))
"""How long cancels go on; a minute in `make peers`."""
BDP_PING = bytes((2, 4, 16, 16, 9, 14, 7, 7))
CANCEL_PING = b"rst+ping"
METHOD = path("ModelInfer").encode()
HANG = path("Hang").encode()
BLOB = path("Blob").encode()
REPEAT = path("Repeat").encode()


class GoPeer:
    """Reads all that comes, and reacts as Go does."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.next_stream = 1
        self.pings = 0
        self._estimating = False
        self._over: dict[int, asyncio.Future[None]] = {}

    def call(self, target: bytes, payload: bytes) -> int:
        """Begin a unary call; returns its stream."""
        stream, self.next_stream = self.next_stream, self.next_stream + 2
        self._over[stream] = asyncio.get_running_loop().create_future()
        head = f.headers(stream, f.request_fields(path=target))
        self.peer.send(head, f.data(stream, f.message(payload), end=True))
        return stream

    async def until_good(self, stream: int) -> None:
        """Wait for the end of a call, which must be good."""
        async with asyncio.timeout(30):
            await self._over[stream]
        assert self.peer.status(stream) == 0, self.peer.heads[stream]

    def cancel(self, stream: int) -> None:
        """As Go does."""
        self.peer.send(f.rst(stream, f.CANCEL), f.ping(CANCEL_PING))

    async def read(self) -> None:
        """Until the connection ends."""
        while (found := await self.peer.next()) is not None:
            assert found.kind != f.GOAWAY, found
            if found.kind == f.DATA and not self._estimating:
                self._estimating = True
                self.pings += 1
                self.peer.send(f.ping(BDP_PING))
            elif found.kind == f.PING:
                if not found.flags & f.ACK:
                    self.peer.send(f.ping(found.payload, ack=True))
                elif found.payload == BDP_PING:
                    self._estimating = False
            over = self._over.get(found.stream)
            if over is not None and found.stream in self.peer.ended and not over.done():
                over.set_result(None)


Work = Callable[[GoPeer], Awaitable[None]]


def play(balancer: Balancer, work: Work, *, is_tls: bool) -> GoPeer:
    """Do the work on one connection, which must be open at the end of it."""
    with balancer.expecting(connections=1):
        return asyncio.run(_play(balancer, work, is_tls=is_tls))


async def _play(balancer: Balancer, work: Work, *, is_tls: bool) -> GoPeer:
    tls = balancer.world.client_context("h2") if is_tls else None
    port = balancer.port("grpcs" if is_tls else "grpc")
    async with connected(port, tls) as peer:
        await greet(peer)
        go = GoPeer(peer)
        reading = asyncio.create_task(go.read())
        try:
            await work(go)
            assert not reading.done(), "the connection was closed"
        finally:
            reading.cancel()
        return go


async def _calls_and_downloads(go: GoPeer) -> None:
    for _ in range(300):
        await go.until_good(go.call(METHOD, b"x"))
    # Per message a WINDOW_UPDATE on the stream, one on the connection, and a PING.
    await go.until_good(go.call(REPEAT, b"3000,10"))
    streams = [go.call(BLOB, b"4000000") for _ in range(4)]
    for stream in streams:
        await go.until_good(stream)


def test_a_ping_for_each_read_of_data(balancer: Balancer, is_tls: bool) -> None:
    go = play(balancer, _calls_and_downloads, is_tls=is_tls)
    assert go.pings > 100


async def _cancels(go: GoPeer) -> None:
    """Fifty calls a second, a third of them cancelled at random, and pairs of RST and PING."""
    chance = random.Random(7)
    until = time.monotonic() + SECONDS

    async def cancelled() -> None:
        stream = go.call(HANG, b"x")
        await asyncio.sleep(chance.uniform(0, 0.2))
        go.cancel(stream)

    async with asyncio.TaskGroup() as tasks:
        while time.monotonic() < until:
            if chance.random() < 0.3:
                tasks.create_task(cancelled())
            else:
                tasks.create_task(go.until_good(go.call(METHOD, b"x")))
            if chance.random() < 0.4:
                go.cancel(go.call(HANG, b"x"))
            await asyncio.sleep(0.02)


def test_cancels_with_a_ping_each(balancer: Balancer, is_tls: bool) -> None:
    play(balancer, _cancels, is_tls=is_tls)


async def _abandon(go: GoPeer) -> None:
    """A caller that gives up gives up all it has asked for."""
    for _ in range(2):
        streams = [go.call(HANG, b"x") for _ in range(60)]
        await asyncio.sleep(0.05)
        for stream in streams:
            go.cancel(stream)
        await asyncio.sleep(0.5)
    await go.until_good(go.call(METHOD, b"after"))


def test_sixty_calls_given_up_at_once(balancer: Balancer, is_tls: bool) -> None:
    play(balancer, _abandon, is_tls=is_tls)
