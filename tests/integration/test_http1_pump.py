"""Long bodies with a length: they pass from socket to socket (`lb.net.splice`), and everything
that can happen to a request still does."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.outcome import Outcome
from lb.net.splice import MOST
from tests.fakes.clock import FakeLoop
from tests.fakes.http1_setup import Setup, http1_setup
from tests.fakes.relay import RunningRelay, running_http1_relay
from tests.wire.http1 import (
    GET,
    Peer,
    post,
    raw_client,
    reply,
    scripted_backend,
)
from tests.wire.waiting import eventually

BOTH_LOOPS = True

_BODY = random.Random(1).randbytes(3 << 20)
_LONG = 64 << 20


async def _echo(peer: Peer) -> None:
    while True:
        received = await peer.request()
        await peer.send(reply(received.body))


async def _send_until_pumped(
    relay: RunningRelay, send: Callable[[bytes], Awaitable[object]]
) -> int:
    """Send of a long body until a pump moves it; returns how much that was."""
    sent = 0
    while not relay.pumps:
        await send(bytes(100_000))
        sent += 100_000
        await asyncio.sleep(0)
    return sent


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    # What is kept for another attempt does not pass unseen.
    async with http1_setup(_echo, {"retained_size": 65536}) as made:
        yield made


async def test_long_bodies_pass_unchanged_both_ways(setup: Setup) -> None:
    backend, relay, client = setup
    for number in range(3):
        body = _BODY[number:]
        sending = asyncio.ensure_future(client.send(post(body)))
        answer = await client.answer("POST")
        await sending
        assert answer.complete
        assert answer.body == body
        assert backend.connections == 1
        record = relay.finished.records[number]
        assert (record.bytes_in, record.bytes_out) == (len(body), len(body))
    port = relay.backends[0].port(AppProtocol.HTTP)
    assert port.bytes_sent == port.bytes_received == sum(len(_BODY) - n for n in range(3))


async def test_bodies_that_come_and_go_in_bits_pass_unchanged(setup: Setup) -> None:
    backend, _, client = setup
    pick = random.Random(2)

    async def script(peer: Peer) -> None:
        received = await peer.head()
        while len(received.body) < len(_BODY):
            received.body += await peer.reader.read(pick.choice((1, 1000, 70_000, 1 << 20)))
        at = 0
        await peer.send(reply(b"")[:-4].replace(b": 0", b": %d" % len(_BODY)) + b"\r\n\r\n")
        while at < len(_BODY):
            size = pick.choice((100, 5000, 300_000))
            await peer.send(_BODY[at : at + size])
            at += size
            await asyncio.sleep(0)

    backend.script = script
    sending = asyncio.ensure_future(client.send(post(_BODY), step=40_000))
    answer = await client.answer("POST")
    await sending
    assert backend.requests[0].body == _BODY
    assert answer.body == _BODY


async def test_a_client_that_leaves_an_answer_leaves_the_connection_to_others(setup: Setup) -> None:
    backend, relay, client = setup
    await client.send(post(b"", size=5) + b"hello")
    assert (await client.answer("POST")).body == b"hello"

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % _LONG)
        sent = await _send_until_pumped(relay, peer.send)
        await eventually(lambda: len(relay.finished.records) == 2)
        await peer.send(bytes(_LONG - sent))
        await peer.request()
        await peer.send(reply(b"after"))

    backend.script = script
    async with raw_client(relay.port) as other:
        # The first connection to the backend is taken, so this one opens the scripted one.
        (upstream,) = relay.upstream_transports
        upstream.abort()
        await eventually(lambda: not relay.upstream_transports)
        await other.send(post(b"hello"))
        reading = asyncio.ensure_future(other.reader.read(-1))
        await eventually(lambda: relay.pumps == 1)
        other.reset()
        await asyncio.gather(reading, return_exceptions=True)
        await eventually(relay.is_clean)
    await client.send(post(b"again"))
    assert (await client.answer("POST")).body == b"after"
    assert backend.connections == 2


@pytest.mark.parametrize("how", ["closes", "resets"])
async def test_a_backend_that_goes_in_an_answer_cuts_it(setup: Setup, how: str) -> None:
    backend, relay, client = setup

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % _LONG)
        await _send_until_pumped(relay, peer.send)
        if how == "resets":
            await peer.reset()

    backend.script = script
    await client.send(GET)
    answer = await client.answer()
    assert not answer.complete
    assert answer.body == bytes(len(answer.body))
    await eventually(relay.is_clean)
    assert relay.outcomes.seen == [("b0", Outcome.LOST)]


@pytest.mark.parametrize("then", ["reads on", "stops reading", "closes"])
async def test_early_answers_arrive_although_the_upload_goes_on(setup: Setup, then: str) -> None:
    backend, relay, client = setup

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.reader.readexactly(1 << 20)
        await peer.send(reply(b"too much", status=b"400 Bad Request"))
        if then == "reads on":
            await peer.closed()
        elif then == "stops reading":
            await asyncio.Event().wait()

    backend.script = script
    uploading = asyncio.ensure_future(client.send(post(bytes(24 << 20))))
    answer = await client.answer("POST")
    assert (answer.status, answer.body) == (400, b"too much")
    await asyncio.gather(uploading, return_exceptions=True)
    assert relay.finished.records[0].status == 400


async def test_a_client_that_leaves_its_upload_leaves_nothing(setup: Setup) -> None:
    backend, relay, _ = setup
    async with raw_client(relay.port) as other:
        await other.send(post(b"", size=_LONG))
        await _send_until_pumped(relay, other.send)
        other.reset()
    await eventually(relay.is_clean)
    async with raw_client(relay.port) as other:
        await other.send(post(b"", size=_LONG))
        await _send_until_pumped(relay, other.send)
        other.half_close()
        assert (await other.answer("POST")).status == 400
    await eventually(relay.is_clean)
    assert backend.requests[0].body == b""


async def test_what_comes_after_an_answer_is_not_passed_on(setup: Setup) -> None:
    backend, _, client = setup

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply(_BODY) + b"more")
        await peer.closed()

    backend.script = script
    for number in range(2):
        await client.send(GET)
        answer = await client.answer()
        assert answer.body == _BODY
        assert backend.connections == number + 1


async def test_more_long_answers_at_once_than_there_are_pumps_all_arrive() -> None:
    count = MOST + 8

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(reply(_BODY))

    async def ask(port: int) -> bytes:
        async with raw_client(port) as client:
            await client.send(GET)
            await client.reader.readuntil(b"\r\n\r\n")
            return await client.reader.readexactly(len(_BODY))

    async with scripted_backend(script) as backend, running_http1_relay(backend.target) as relay:
        bodies = await asyncio.gather(*(ask(relay.port) for _ in range(count)))
        assert bodies == [_BODY] * count
        await eventually(relay.is_clean)


async def test_slow_readers_whose_answers_are_pumped_hold_a_pipe_at_most() -> None:
    size = 1 << 30
    connections = MOST - 2

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while True:
            await peer.send(bytes(1 << 20))

    async with scripted_backend(script) as backend, running_http1_relay(backend.target) as relay:
        socks = [socket.create_connection(("127.0.0.1", relay.port)) for _ in range(connections)]
        for sock in socks:
            sock.sendall(GET)
        await eventually(lambda: relay.pumps == connections, 30)
        await eventually(
            lambda: (
                all(client.is_paused for client in relay.clients)
                and relay.client_connections == connections
            ),
            30,
        )
        for _ in range(5):
            await asyncio.sleep(0)
        # What a pipe holds, and what its sink's transport was given to wait with.
        assert 0 < relay.memory_budget.held <= connections * (262_144 + 16_384)
        for sock in socks:
            sock.close()
        await eventually(relay.is_clean)
        assert (relay.memory_budget.held, relay.pumps) == (0, 0)


async def test_a_backend_that_takes_an_upload_slowly_is_not_given_up() -> None:
    size = 24 << 20
    time = FakeLoop()

    async def script(peer: Peer) -> None:
        received = await peer.head()
        left = size
        while left:
            took = len(await peer.reader.read(min(left, 200_000)))
            left -= took
            time.advance(0.01)
        await peer.send(reply(b"taken"))
        assert received.body == b""

    async with (
        scripted_backend(script) as backend,
        running_http1_relay(backend.target, options={"body_timeout_s": 0.25}, loop=time) as relay,
        raw_client(relay.port) as client,
    ):
        sending = asyncio.ensure_future(client.send(post(bytes(size))))
        assert (await client.answer("POST")).body == b"taken"
        await sending
