"""Ends that are not the plain one: early answers, clients that leave, slow peers, time-outs,
draining, memory; and that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest

from lb.domain.backend import AppProtocol, BackendKind, Port
from lb.domain.outcome import Outcome, Reason
from lb.net.splice import MOST
from tests.fakes.clock import FakeLoop
from tests.fakes.http1_setup import Serving, Setup, http1_serving
from tests.fakes.relay import RunningRelay, running_http1_relay, snapshot_of
from tests.wire.http1 import (
    GET,
    Peer,
    RawClient,
    post,
    raw_client,
    reply,
    scripted_backend,
)
from tests.wire.waiting import eventually

BOTH_LOOPS = True


def _port(relay: RunningRelay, index: int = 0) -> Port:
    return relay.backends[index].port(AppProtocol.HTTP)


@pytest.fixture
async def serving() -> AsyncIterator[Serving]:
    """As `setup`, without a client."""
    async with http1_serving() as made:
        yield made


# Early answers


@pytest.mark.parametrize("then", ["reads on", "stops reading", "closes", "resets"])
async def test_early_answer_arrives_although_the_upload_goes_on(setup: Setup, then: str) -> None:
    backend, relay, client = setup

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.reader.readexactly(65536)
        await peer.send(reply(b"too much", status=b"400 Bad Request"))
        if then == "reads on":
            await peer.closed()
            return
        if then == "stops reading":
            await asyncio.sleep(0.2)
        await peer.until_read()  # the end is a reset where something is unread, which discards it
        if then == "resets":
            await peer.reset()

    backend.script = script
    size = 16 << 20
    sending = asyncio.ensure_future(_send_all(client, post(b"", size=size), size))
    answer = await client.answer("POST")
    assert (answer.status, answer.body, answer.complete) == (400, b"too much", True)
    assert answer.fields[b"connection"] == b"close"
    await sending
    assert await client.is_closed()
    await eventually(lambda: relay.upstream_connections == 0)
    assert relay.finished.records[0].reason is None
    assert _port(relay).codes == {400: 1}


async def _send_all(client: RawClient, head: bytes, size: int) -> None:
    """Send a whole upload without looking for the answer, as simple clients do."""
    try:
        await client.send(head)
        for _ in range(size // 65536):
            await client.send(b"x" * 65536)
    except ConnectionError:
        pass


async def test_client_that_reads_late_still_gets_an_early_answer(setup: Setup) -> None:
    backend, _, client = setup

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(reply(b"no", status=b"403 Forbidden"))

    backend.script = script
    await _send_all(client, post(b"", size=8 << 20), 8 << 20)
    assert (await client.answer("POST")).status == 403


async def test_answer_that_begins_early_may_end_after_the_upload(setup: Setup) -> None:
    backend, relay, client = setup

    async def script(peer: Peer) -> None:
        received = await peer.head()
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
        await peer.body(received)
        await peer.send(b"0\r\n\r\n")
        await peer.closed()

    backend.script = script
    await client.send(post(b"", size=10) + b"hello")
    assert b"ok" in await client.reader.readuntil(b"ok\r\n")
    await client.send(b"world")
    assert await client.reader.readuntil(b"0\r\n\r\n") == b"0\r\n\r\n"
    assert await client.is_closed()
    assert backend.requests[0].body == b"helloworld"
    assert relay.finished.records[0].reason is None


# Clients that leave


async def test_inference_on_a_triton_stays_in_flight_when_its_client_leaves(setup: Setup) -> None:
    backend, relay, client = setup
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await gate.wait()
            await peer.send(reply(b"x" * 300_000))

    backend.script = script
    await client.send(post())
    await eventually(lambda: len(backend.requests) == 1)
    client.reset()
    await eventually(lambda: len(relay.finished.records) == 1)
    assert relay.finished.records[0].reason is Reason.CLIENT_GONE
    assert relay.open_requests == 0
    assert not any(client.is_busy for client in relay.clients)
    assert (_port(relay).in_flight, relay.backends[0].in_flight) == (1, 1)
    gate.set()
    await eventually(relay.is_clean)
    assert _port(relay).codes == {200: 1}
    assert relay.idle_upstreams == 1
    async with raw_client(relay.port) as second:
        await second.send(GET)
        assert (await second.answer()).status == 200
    assert backend.connections == 1


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (BackendKind.GENERIC, b"/v2/models/simple/infer"),
        (BackendKind.TRITON, b"/v2/models/simple/generate_stream"),
    ],
)
async def test_other_requests_are_cancelled_when_their_client_leaves(
    kind: BackendKind, path: bytes
) -> None:
    cancelled = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.closed()
        cancelled.set()

    async with (
        scripted_backend(script) as backend,
        running_http1_relay(backend.target, kind=kind) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(post().replace(b"/v2/models/simple/infer", path))
        await eventually(lambda: len(backend.requests) == 1)
        client.reset()
        await asyncio.wait_for(cancelled.wait(), 30)
        await eventually(relay.is_clean)
        assert relay.outcomes.seen == [("b0", Outcome.CANCELLED)]
        assert relay.finished.records[0].reason is Reason.CLIENT_GONE


@pytest.mark.parametrize("chunked", [False, True])
async def test_upload_that_its_client_leaves_is_never_completed(
    setup: Setup, chunked: bool
) -> None:
    backend, relay, client = setup
    seen = bytearray()

    async def script(peer: Peer) -> None:
        await peer.head()
        seen.extend(await peer.closed())

    backend.script = script
    if chunked:
        head = post(b"", size=0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        await client.send(head + b"5\r\nhello\r\n")
    else:
        await client.send(post(b"", size=10) + b"hello")
    await eventually(lambda: len(backend.requests) == 1)
    client.reset()
    await eventually(relay.is_clean)
    assert relay.outcomes.seen == [("b0", Outcome.CANCELLED)]
    await eventually(lambda: b"hello" in seen or not seen)
    assert b"0\r\n\r\n" not in seen


async def test_client_that_leaves_during_its_answer_ends_the_stream(setup: Setup) -> None:
    backend, relay, client = setup

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await peer.send(b"5\r\nevent\r\n")
            await asyncio.sleep(0.005)

    backend.script = script
    await client.send(post().replace(b"/infer", b"/generate_stream"))
    await client.reader.readuntil(b"event")
    client.reset()
    await eventually(relay.is_clean)
    assert relay.outcomes.seen == [("b0", Outcome.CANCELLED)]
    assert relay.upstream_connections == 0


async def test_connection_for_a_client_that_left_meanwhile_is_kept(
    setup: Setup,
) -> None:
    backend, relay, client = setup
    await client.send(post())
    client.reset()
    await eventually(relay.is_clean)
    assert relay.backends[0].in_flight == 0
    assert len(relay.finished.records) in (0, 1)
    await eventually(lambda: relay.client_connections == 0)
    assert backend.failures == []


# Slow peers


async def _bytes_in_flight(relay: RunningRelay) -> int:
    """Payload that came from the backend, once it stops growing."""
    last, same = -1, 0
    while same < 20:
        now = _port(relay).bytes_received
        same = same + 1 if now == last else 0
        last = now
        await asyncio.sleep(0.01)
    return last


def _small_buffers(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    sock.connect_ex(("127.0.0.1", port))
    return sock


async def test_slow_readers_hold_back_their_backend(serving: Serving) -> None:
    backend, relay = serving
    size = 1 << 30
    piece = b"x" * 65536
    connections = 200

    async def script(peer: Peer) -> None:
        # Most of what is on its way is in kernel buffers; keep those of 200 connections small.
        peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await peer.request()
        for client in relay.clients:
            sock = client.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while True:
            await peer.send(piece)

    backend.script = script
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        socks = [stack.enter_context(_small_buffers(relay.port)) for _ in range(connections)]
        for sock in socks:
            await loop.sock_sendall(sock, GET)
        await eventually(lambda: len(backend.requests) == connections, 60)
        await _bytes_in_flight(relay)
        waiting = [client.transport.get_write_buffer_size() for client in relay.clients]
        assert len([size for size in waiting if size]) == connections
        # High-water mark and one read.
        most = 65536 + 262_144
        assert max(waiting) <= most
        # Those whose answers are pumped leave what they do not take in the kernel's sockets.
        assert (connections - MOST) * 65536 < relay.memory_budget.held <= connections * most
    await eventually(relay.is_clean)
    assert relay.memory_budget.held == 0


async def test_slow_backend_holds_back_its_client(setup: Setup) -> None:
    backend, relay, client = setup
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        received = await peer.head()
        await gate.wait()
        await peer.body(received)
        await peer.send(reply())
        await peer.closed()

    backend.script = script
    size = 64 << 20
    sent = 0

    async def upload() -> None:
        nonlocal sent
        await client.send(post(b"", size=size))
        while sent < size:
            await client.send(b"x" * 65536)
            sent += 65536

    uploading = asyncio.ensure_future(upload())
    last, same = -1, 0
    while same < 20:
        same = same + 1 if sent == last else 0
        last = sent
        await asyncio.sleep(0.01)
    assert sent < size
    (upstream,) = relay.upstream_transports
    assert upstream.get_write_buffer_size() <= 65536 + 262_144
    assert relay.memory_budget.held == 0
    gate.set()
    assert (await client.answer("POST")).status == 200
    await uploading
    assert len(backend.requests[0].body) == size


async def test_backend_that_stops_taking_an_upload_is_given_up() -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await asyncio.Event().wait()

    async with (
        scripted_backend(script) as backend,
        running_http1_relay(backend.target, options={"body_timeout_s": 0.3}) as relay,
        raw_client(relay.port) as client,
    ):
        uploading = asyncio.ensure_future(client.send(post(b"", size=64 << 20) + bytes(64 << 20)))
        answer = await client.answer("POST")
        assert answer.status == 504
        assert b"stopped taking the request" in answer.body
        assert relay.outcomes.seen == [("b0", Outcome.STALLED)]
        assert relay.finished.records[0].reason is Reason.UPSTREAM_STALLED
        uploading.cancel()
        await asyncio.gather(uploading, return_exceptions=True)
    await eventually(relay.is_clean)


async def test_client_that_takes_nothing_is_given_up() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await peer.send(b"10000\r\n" + b"x" * 65536 + b"\r\n")

    async with (
        scripted_backend(script) as backend,
        running_http1_relay(backend.target, options={"body_timeout_s": 0.3}) as relay,
    ):
        sock = _small_buffers(relay.port)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, GET)
        await eventually(lambda: len(relay.finished.records) == 1)
        assert relay.finished.records[0].reason is Reason.CLIENT_STALLED
        await eventually(relay.is_clean)
        await eventually(lambda: not relay.client_connections)
        assert relay.outcomes.seen == [("b0", Outcome.CANCELLED)]
        sock.close()


async def test_client_that_takes_its_answer_slowly_gets_all_of_it() -> None:
    body = bytes(range(256)) * 40_000
    time = FakeLoop()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply(body))
        await peer.closed()

    async with (
        scripted_backend(script) as backend,
        running_http1_relay(backend.target, options={"body_timeout_s": 1.0}, loop=time) as relay,
    ):
        sock = _small_buffers(relay.port)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, GET)
        got = bytearray()
        for taken in range(20_000, 600_000, 20_000):  # what its kernel keeps is much less
            while len(got) < taken:
                got += await loop.sock_recv(sock, 65536)
            time.advance(0.4)
        while len(got) < len(body) or not got.endswith(body[-1000:]):
            data = await loop.sock_recv(sock, 1 << 20)
            assert data, "cut although it was reading"
            got += data
        assert got.partition(b"\r\n\r\n")[2] == body
        assert relay.finished.records[0].reason is None
        sock.close()


async def test_client_that_pipelines_without_reading_is_bounded(serving: Serving) -> None:
    backend, relay = serving

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(reply(b"x" * 20_000))

    backend.script = script
    sock = _small_buffers(relay.port)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, GET * 400)
    await _bytes_in_flight(relay)
    (connection,) = relay.clients
    assert connection.transport.get_write_buffer_size() <= 65536 + 262_144
    assert len(backend.requests) < 400
    sock.close()
    await eventually(lambda: not relay.client_connections)


# Time


async def test_request_that_takes_too_long_is_answered() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.closed()

    async with (
        scripted_backend(script) as backend,
        running_http1_relay(backend.target, options={"request_timeout_s": 0.1}) as relay,
        raw_client(relay.port) as client,
    ):
        for _ in range(2):
            await client.send(post().replace(b"POST", b"PUT", 1))
            answer = await client.answer("POST")
            assert answer.status == 504
        assert {record.reason for record in relay.finished.records} == {Reason.DEADLINE}
        assert relay.outcomes.seen == [("b0", Outcome.DEADLINE)] * 2
        await eventually(relay.is_clean)


async def test_inference_on_a_triton_stays_in_flight_when_it_takes_too_long() -> None:
    """It cannot be stopped there, so its place is not free."""
    may_answer = asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await may_answer.wait()
            await peer.send(reply())

    async with (
        scripted_backend(script) as backend,
        running_http1_relay(backend.target, options={"request_timeout_s": 0.1}) as relay,
        raw_client(relay.port) as client,
    ):
        for count in (1, 2):
            await client.send(post())
            assert (await client.answer("POST")).status == 504
            assert (_port(relay).in_flight, relay.backends[0].in_flight) == (count, count)
        may_answer.set()
        await eventually(relay.is_clean)
        assert {record.reason for record in relay.finished.records} == {Reason.DEADLINE}
        assert relay.outcomes.seen == []
        await client.send(post())
        assert (await client.answer("POST")).status == 200


async def test_idle_connections_to_backends_are_closed_in_time() -> None:
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options={"upstream_idle_s": 0.1}) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(GET)
        assert (await client.answer()).status == 200
        assert relay.idle_upstreams == 1
        await eventually(lambda: relay.upstream_connections == 0)
        assert _port(relay).connections == 0


# Pool


async def test_connections_to_a_backend_that_gets_nothing_new_are_closed() -> None:
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            received = await peer.request()
            if received.target == b"/slow":
                await gate.wait()
            await peer.send(reply())

    async with (
        scripted_backend(script) as backend,
        running_http1_relay(backend.target) as relay,
        raw_client(relay.port) as slow,
        raw_client(relay.port) as quick,
    ):
        await slow.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
        await eventually(lambda: len(backend.requests) == 1)
        await quick.send(GET)
        assert (await quick.answer()).status == 200
        assert (relay.idle_upstreams, relay.upstream_connections) == (1, 2)
        relay.pool.publish(snapshot_of([], 2))
        await eventually(lambda: relay.upstream_connections == 1)
        await quick.send(GET)
        assert (await quick.answer()).status == 503
        gate.set()
        assert (await slow.answer()).status == 200
        await eventually(lambda: relay.upstream_connections == 0)


# Own answers and draining


async def test_health_is_answered_here() -> None:
    ready = b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n"
    live = b"GET /v2/health/live?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(ready + live + ready)
        for _ in range(3):
            answer = await client.answer()
            assert (answer.status, answer.body) == (200, b"")
        relay.pool.publish(snapshot_of([], 2))
        await client.send(ready + live)
        assert [(await client.answer()).status for _ in range(2)] == [400, 200]
        assert backend.connections == 0
        await client.send(
            b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhell"
        )
        answer = await client.answer()
        assert (answer.status, answer.fields[b"connection"]) == (200, b"close")
        assert relay.finished.records[0].operation.name == "ServerReady"


async def test_thousand_pipelined_health_checks_do_not_exhaust_the_stack(setup: Setup) -> None:
    _, _, client = setup
    live = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
    await client.send(live * 3000)
    for _ in range(3000):
        assert (await client.answer()).status == 200


async def test_draining_closes_idle_clients_and_finishes_the_others(setup: Setup) -> None:
    backend, relay, client = setup
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await gate.wait()
            await peer.send(reply())

    backend.script = script
    async with raw_client(relay.port) as idle, raw_client(relay.port) as late:
        await client.send(post())
        await late.send(GET[:10])
        await eventually(lambda: len(backend.requests) == 1)
        await eventually(lambda: relay.client_connections == 3)
        relay.begin_drain()
        assert await idle.is_closed()
        assert any(connection.is_busy for connection in relay.clients)
        gate.set()
        answer = await client.answer("POST")
        assert (answer.status, answer.fields[b"connection"]) == (200, b"close")
        assert await client.is_closed()
        assert not any(connection.is_busy for connection in relay.clients)
        await late.send(GET[10:])
        answer = await late.answer()
        assert (answer.status, answer.fields[b"connection"]) == (200, b"close")
        assert await late.is_closed()
    relay.announce_exit()
    async with raw_client(relay.port) as prober:
        await prober.send(b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = await prober.answer()
        assert (answer.status, answer.body) == (503, b'{"error": "Server exiting"}')


async def test_an_answer_that_could_not_say_so_is_not_the_last_one(setup: Setup) -> None:
    """The client may have sent its next request already, on a connection that it thinks is open."""
    backend, relay, client = setup
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc")
        await gate.wait()
        await peer.send(b"def")
        await peer.request()
        await peer.send(reply())

    backend.script = script
    await client.send(post())
    await eventually(lambda: [each.is_answering for each in relay.clients] == [True])
    relay.limit_age(0.01)
    await eventually(lambda: [each.is_leaving for each in relay.clients] == [True])
    gate.set()
    answer = await client.answer("POST")
    assert answer.body == b"abcdef"
    assert b"connection" not in answer.fields
    await client.send(post())
    answer = await client.answer("POST")
    assert (answer.status, answer.fields[b"connection"]) == (200, b"close")
    assert await client.is_closed()


async def test_closing_ends_what_is_under_way() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.closed()

    async with scripted_backend(script) as backend, running_http1_relay(backend.target) as relay:
        async with raw_client(relay.port) as client:
            await client.send(GET)
            await eventually(lambda: len(backend.requests) == 1)
            await relay.aclose()
            assert not (await client.answer()).complete
        assert relay.client_connections == relay.upstream_connections == 0
        assert relay.is_clean()


# Memory


async def test_memory_shortage_ends_the_largest_holder(setup: Setup) -> None:
    backend, relay, client = setup
    relay.memory_budget.ceiling = relay.memory_budget.short_at = 100_000
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await gate.wait()
        await peer.send(reply())
        await peer.closed()

    backend.script = script
    body = b"x" * 60_000
    await client.send(post(b"", size=len(body)) + body)
    await eventually(lambda: len(backend.requests) == 1)
    assert 60_000 < relay.memory_budget.held < 61_000
    async with raw_client(relay.port) as second:
        await second.send(post(b"", size=50_000) + body[:50_000])
        answer = await client.answer("POST")
        assert (answer.status, answer.fields[b"retry-after"]) == (503, b"1")
        assert await client.is_closed()
        assert relay.finished.records[0].reason is Reason.MEMORY
        gate.set()
        assert (await second.answer("POST")).status == 200
    assert relay.memory_budget.evictions == 1


# Leaks


async def test_ten_thousand_requests_leave_nothing(serving: Serving) -> None:
    backend, relay = serving
    async with raw_client(relay.port) as warm:
        await warm.send(post())
        assert (await warm.answer("POST")).complete
    await eventually(lambda: not relay.client_connections)
    gc.collect()
    timers = len(relay.timers)
    tasks = len(asyncio.all_tasks())
    objects = len(gc.get_objects())

    async def run() -> None:
        async with raw_client(relay.port) as client:
            for _ in range(25):
                await client.send(post() * 50)
                expected = len(reply()) * 50
                await client.reader.readexactly(expected)

    await asyncio.gather(*(run() for _ in range(8)))
    assert len(relay.finished.records) == 10_001
    relay.finished.records.clear()
    backend.requests.clear()
    await eventually(lambda: not relay.client_connections)
    await eventually(relay.is_clean)
    assert len(relay.timers) <= timers + 9
    assert relay.traffic.connections == 0
    assert sum(_port(relay).codes.values()) == 10_001
    assert _port(relay).connections == relay.upstream_connections <= 9
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks + 8)
    gc.collect()
    assert len(gc.get_objects()) - objects < 3000
    assert backend.failures == []
