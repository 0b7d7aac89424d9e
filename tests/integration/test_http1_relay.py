"""HTTP/1.1 through the relay: what is legal arrives as it was sent, both ways."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from ipaddress import ip_network

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.client import TrustedProxies
from lb.domain.outcome import Reason
from tests.fakes.http1_setup import Setup
from tests.fakes.relay import running_http1_relay
from tests.wire.http1 import (
    GET,
    INFER,
    Peer,
    post,
    post_chunked,
    raw_client,
    reply,
    scripted_backend,
)
from tests.wire.waiting import eventually

BOTH_LOOPS = True


async def test_request_and_answer_pass_unchanged(setup: Setup) -> None:
    backend, relay, client = setup

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 Fine\r\nX-oDD:a\r\ncontent-LENGTH: 3\r\n\r\nabc")
        await peer.closed()

    backend.script = script
    request = post(b"hello", b"X-Request-Id: r-1\r\nx-ODD:  b\r\n")
    await client.send(request)
    answer = await client.answer()
    assert (answer.status, answer.body, answer.complete) == (200, b"abc", True)
    assert answer.fields[b"x-odd"] == b"a"
    received = backend.requests[0]
    assert received.head + received.body == request
    record = relay.finished.records[0]
    assert (record.method, record.path) == (b"POST", b"/v2/models/simple/infer")
    assert (record.model, record.request_id) == (b"simple", b"r-1")
    assert (record.bytes_in, record.bytes_out, record.status) == (5, 3, 200)
    assert (record.attempts, record.reason) == (1, None)
    assert 0 < record.started_at <= record.placed_at <= record.connected_at
    assert record.connected_at <= record.first_byte_at <= record.ended_at
    assert record.client.startswith("127.0.0.1:")


async def test_connections_are_kept_on_both_sides(setup: Setup) -> None:
    backend, relay, client = setup
    for _ in range(5):
        await client.send(GET)
        assert (await client.answer()).body == b"ok"
    assert backend.connections == 1
    assert relay.traffic.accepted == 1
    assert relay.backends[0].port(AppProtocol.HTTP).connects == 1


@pytest.mark.parametrize("step", [0, 1, 7])
@pytest.mark.parametrize("size", [0, 1, 100_000])
async def test_bodies_of_known_length_arrive(setup: Setup, step: int, size: int) -> None:
    backend, _, client = setup
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    if step and size > 1000:
        body = body[:700]
    await client.send(post(body), step=step)
    assert (await client.answer()).complete
    assert backend.requests[0].body == body


@pytest.mark.parametrize("step", [0, 1, 5])
async def test_chunked_bodies_are_chunked_anew_without_extensions_and_trailers(
    setup: Setup, step: int
) -> None:
    backend, _, client = setup
    wire = (
        INFER + b"Transfer-Encoding: chunked\r\nTrailer: x\r\n\r\n"
        b"5;ext=1\r\nhello\r\n1\r\n,\r\n6\r\n world\r\n0\r\nx: y\r\n\r\n"
    )
    await client.send(wire, step=step)
    assert (await client.answer()).complete
    assert backend.requests[0].body == b"hello, world"
    assert backend.requests[0].field(b"trailer") is None
    if not step:
        assert backend.requests[0].chunks == 1


async def test_storm_of_tiny_chunks_becomes_few(setup: Setup) -> None:
    backend, _, client = setup
    body = bytes(range(256)) * 200
    await client.send(post_chunked(*(body[at : at + 1] for at in range(len(body)))))
    assert (await client.answer()).complete
    assert backend.requests[0].body == body
    assert backend.requests[0].chunks <= 64


async def test_chunks_sent_slowly_are_gathered(setup: Setup) -> None:
    backend, relay, client = setup
    head, _, chunks = post_chunked(*(b"%03d" % number for number in range(300))).partition(
        b"\r\n\r\n"
    )
    await client.send(head + b"\r\n\r\n")
    for at in range(0, len(chunks), 8):
        await client.send(chunks[at : at + 8])
        await asyncio.sleep(0)
    assert (await client.answer()).complete
    assert backend.requests[0].body == b"".join(b"%03d" % number for number in range(300))
    assert backend.requests[0].chunks <= 64
    assert relay.memory_budget.held == 0


async def test_gathered_chunks_do_not_wait_for_the_next_one(setup: Setup) -> None:
    backend, _, client = setup
    head, _, _ = post_chunked().partition(b"\r\n\r\n")
    await client.send(head + b"\r\n\r\n")
    await eventually(lambda: len(backend.requests) == 1)
    for _ in range(40):
        await client.send(b"1\r\nx\r\n")
        await asyncio.sleep(0.002)
    await eventually(lambda: len(backend.requests[0].body) == 40)
    await client.send(b"0\r\n\r\n")
    assert (await client.answer()).complete


@pytest.mark.parametrize("chunks", [[b"a"], [b"hello", b", ", b"world"], [b"x" * 100_000, b"y"]])
async def test_chunked_answers_arrive(setup: Setup, chunks: list[bytes]) -> None:
    backend, _, client = setup

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for chunk in chunks:
                await peer.send(b"%x;e\r\n%b\r\n" % (len(chunk), chunk))
            await peer.send(b"0\r\nX-Sum: 7\r\nContent-Length: 9\r\n\r\n")

    backend.script = script
    for _ in range(2):
        await client.send(GET)
        answer = await client.answer()
        assert (answer.body, answer.complete) == (b"".join(chunks), True)
        assert answer.trailers == {b"x-sum": b"7"}
    assert backend.connections == 1


async def test_events_are_passed_on_as_they_come_and_timed(setup: Setup) -> None:
    backend, relay, client = setup
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for number in range(3):
            await peer.send(b"b\r\ndata: {%d}\n\n\r\n" % number)
            await go_on.wait()
            go_on.clear()
        await peer.send(b"0\r\n\r\n")
        await peer.closed()

    backend.script = script
    await client.send(post(b"{}").replace(b"/infer", b"/generate_stream"))
    await client.reader.readuntil(b"\r\n\r\n")
    for number in range(3):
        event = await client.reader.readuntil(b"\n\n\r\n")
        assert event == b"b\r\ndata: {%d}\n\n\r\n" % number
        go_on.set()
    assert await client.reader.readuntil(b"\r\n\r\n") == b"0\r\n\r\n"
    usage = relay.finished.meter.traffic[AppProtocol.HTTP].models[b"simple"]
    assert sum(usage.first_answers.counts) == 1
    assert sum(usage.intervals.counts) == 2


async def test_answer_until_close_is_chunked_and_the_client_stays(setup: Setup) -> None:
    backend, _, client = setup

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\nhello")

    backend.script = script
    for _ in range(2):
        await client.send(GET)
        answer = await client.answer()
        assert (answer.body, answer.complete) == (b"hello", True)
        assert answer.fields[b"transfer-encoding"] == b"chunked"
    assert backend.connections == 2


async def test_head_answers_have_no_body(setup: Setup) -> None:
    backend, _, client = setup

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")

    backend.script = script
    for _ in range(3):
        await client.send(GET.replace(b"GET", b"HEAD"))
        answer = await client.answer("HEAD")
        assert (answer.status, answer.fields[b"content-length"], answer.body) == (200, b"5", b"")
    assert backend.connections == 1


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_bodyless_statuses_have_no_body(setup: Setup, status: bytes) -> None:
    backend, _, client = setup

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(b"HTTP/1.1 " + status + b"\r\nETag: x\r\n\r\n")

    backend.script = script
    for _ in range(2):
        await client.send(GET)
        answer = await client.answer()
        assert (answer.status, answer.body) == (int(status[:3]), b"")
    assert backend.connections == 1


async def test_pipelined_requests_are_answered_in_order_one_at_a_time(setup: Setup) -> None:
    backend, _, client = setup
    under_way = 0

    async def script(peer: Peer) -> None:
        nonlocal under_way
        while True:
            received = await peer.request()
            under_way += 1
            assert under_way == 1
            await asyncio.sleep(0)
            under_way -= 1
            await peer.send(reply(received.target + received.body))

    backend.script = script
    wire = b"".join(
        b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n%d" % (number, number % 10)
        for number in range(50)
    )
    await client.send(wire)
    for number in range(50):
        assert (await client.answer()).body == b"/%d%d" % (number, number % 10)


async def test_body_of_get_is_consumed(setup: Setup) -> None:
    backend, _, client = setup
    get = b"GET /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
    await client.send(get + get.replace(b"/1 ", b"/2 "))
    assert (await client.answer()).complete
    assert (await client.answer()).complete
    assert [request.target for request in backend.requests] == [b"/1", b"/2"]


async def test_many_pipelined_requests_wait_in_bounded_memory(setup: Setup) -> None:
    backend, relay, client = setup
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await gate.wait()
            await peer.send(reply())

    backend.script = script
    count = 6_000
    sending = asyncio.ensure_future(client.send(GET * count))
    await eventually(lambda: relay.memory_budget.held > 64 * 1024)
    most = 0
    for _ in range(50):
        most = max(most, relay.memory_budget.held)
        await asyncio.sleep(0)
    assert most <= 64 * 1024 + 262_144
    gate.set()
    for _ in range(count):
        assert (await client.answer()).complete
    await sending
    assert len(backend.requests) == count


@pytest.mark.parametrize("has_begun", [False, True])
async def test_client_that_half_closes_is_gone(setup: Setup, *, has_begun: bool) -> None:
    backend, relay, client = setup

    async def script(peer: Peer) -> None:
        await peer.request()
        if has_begun:
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhell")
        await peer.closed()

    backend.script = script
    await client.send(GET + GET)
    await eventually(lambda: len(backend.requests) == 1)
    if has_begun:
        await client.reader.readuntil(b"hell")
    client.half_close()
    assert await client.is_closed()
    await eventually(lambda: len(relay.finished.records) == 1)
    assert relay.finished.records[0].reason is Reason.CLIENT_GONE
    assert len(backend.requests) == 1


async def test_what_we_answer_ourselves_reaches_a_client_that_half_closes(setup: Setup) -> None:
    _, _, client = setup
    await client.send(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
    client.half_close()
    assert (await client.answer()).status == 200
    assert await client.is_closed()


async def test_client_that_half_closes_still_gets_its_answer_where_that_is_set(
    setup: Setup,
) -> None:
    backend, relay, client = setup
    relay.configure(aborts_on_half_close=False)
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await gate.wait()
        await peer.send(reply())
        await peer.closed()

    backend.script = script
    await client.send(GET)
    client.half_close()
    await eventually(lambda: len(backend.requests) == 1)
    gate.set()
    assert (await client.answer()).body == b"ok"
    assert await client.is_closed()


@pytest.mark.parametrize(
    ("last", "status"),
    [(b"", None), (b"GET / HT", 400), (INFER + b"Content-Length: 5\r\n\r\nhell", 400)],
)
async def test_pipelined_requests_are_answered_after_a_half_close(
    setup: Setup, last: bytes, status: int | None
) -> None:
    _, relay, client = setup
    relay.configure(aborts_on_half_close=False)
    await client.send(GET + GET + last)
    client.half_close()
    for _ in range(2):
        assert (await client.answer()).body == b"ok"
    if status is not None:
        assert (await client.answer()).status == status
    assert await client.is_closed()
    assert len(relay.finished.records) == (2 if status is None else 3)


async def test_connection_close_is_obeyed_and_announced(setup: Setup) -> None:
    backend, _, client = setup
    await client.send(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + GET)
    answer = await client.answer()
    assert (answer.body, answer.fields[b"connection"]) == (b"ok", b"close")
    assert await client.is_closed()
    assert len(backend.requests) == 1
    assert backend.requests[0].field(b"connection") is None


async def test_backend_that_closes_does_not_close_the_client(setup: Setup) -> None:
    backend, _, client = setup

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply(fields=b"Connection: close\r\n"))

    backend.script = script
    for _ in range(3):
        await client.send(GET)
        answer = await client.answer()
        assert answer.body == b"ok"
        assert b"connection" not in answer.fields
    assert backend.connections == 3


# HTTP/1.0


async def test_http10_client_gets_a_body_without_chunks_and_a_close(setup: Setup) -> None:
    backend, _, client = setup

    async def script(peer: Peer) -> None:
        while True:
            received = await peer.request()
            assert received.head.startswith(b"GET / HTTP/1.1\r\n")
            await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await peer.send(b"5\r\nhello\r\n0\r\n\r\n")

    backend.script = script
    await client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert await client.reader.read(-1) == (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello")


async def test_http10_client_may_keep_its_connection(setup: Setup) -> None:
    _, _, client = setup
    for _ in range(2):
        await client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        answer = await client.answer()
        assert (answer.body, answer.fields[b"connection"]) == (b"ok", b"keep-alive")
    await client.send(b"GET / HTTP/1.0\r\n\r\n")
    assert (await client.answer()).fields[b"connection"] == b"close"
    assert await client.is_closed()


# Expect: 100-continue


async def test_continue_is_answered_here_and_not_passed_on(setup: Setup) -> None:
    backend, _, client = setup
    await client.send(post(b"", b"Expect: 100-continue\r\n").replace(b": 0", b": 5"))
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert len(backend.requests) == 1
    await client.send(b"hello")
    answer = await client.answer()
    assert (answer.body, answer.interim) == (b"ok", [])
    assert backend.requests[0].body == b"hello"
    assert backend.requests[0].field(b"expect") is None


async def test_client_that_does_not_wait_gets_no_continue(setup: Setup) -> None:
    backend, _, client = setup
    await client.send(post(b"hello", b"Expect: 100-continue\r\n"))
    assert (await client.answer()).interim == []
    assert backend.requests[0].body == b"hello"


async def test_final_answer_instead_of_continue_ends_the_connection(setup: Setup) -> None:
    backend, relay, client = setup

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(reply(status=b"417 No"))
        await peer.closed()

    backend.script = script
    await client.send(post(b"", b"Expect: 100-continue\r\n").replace(b": 0", b": 5"))
    answer = await client.answer()
    assert answer.status == 417
    assert answer.fields[b"connection"] == b"close"
    assert await client.is_closed()
    assert relay.upstream_connections == 0


async def test_interim_answers_are_passed_on_but_continue_is_not(setup: Setup) -> None:
    backend, _, client = setup

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + reply()
        )
        await peer.closed()

    backend.script = script
    await client.send(GET)
    answer = await client.answer()
    assert (answer.body, answer.interim) == (b"ok", [103])


# Forwarding fields


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("known", [False, True])
async def test_client_is_named_only_if_asked_for(known: bool, trusted: bool) -> None:
    proxies = TrustedProxies((ip_network("127.0.0.1"),) if trusted else ())
    options = {"x_forwarded": known, "forwarded": known, "trusted_proxies": proxies}
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=options) as relay,
        raw_client(relay.port) as client,
    ):
        for _ in range(2):
            claims = b"\r\nX-Forwarded-For: 6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\n\r\n"
            await client.send(GET.replace(b"\r\n\r\n", claims))
            assert (await client.answer()).complete
    for received in backend.requests:
        believed = trusted or not known
        appended = b"6.6.6.6, 127.0.0.1" if trusted else b"127.0.0.1"
        assert received.field(b"x-forwarded-for") == (appended if known else b"6.6.6.6")
        assert received.field(b"x-real-ip") == (b"6.6.6.6" if believed else None)
        assert received.field(b"x-forwarded-proto") == (b"http" if known else None)
        forwarded = b'for=127.0.0.1;proto=http;host="a"' if known else None
        assert received.field(b"forwarded") == forwarded


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 60_000, 1_000_000])
async def test_our_hop_marker_comes_last_and_the_body_whole(setup: Setup, size: int) -> None:
    backend, relay, client = setup
    own, other = (b"triton-lb-%016x" % number for number in (1, 2))
    relay.use_identity(own)
    body = bytes(number % 251 for number in range(size))
    for field in (b"", b"CDN-Loop: a.cdn, " + other + b"\r\n"):
        wire = post(body, field)
        await client.send(wire)
        assert (await client.answer()).status == 200
        received = backend.requests[-1]
        sent = wire[: wire.index(b"\r\n\r\n") + 2]
        assert received.head == sent + b"cdn-loop: " + own + b"\r\n\r\n"
        assert received.body == body
    await client.send(post(body, b"CDN-Loop: " + own + b"\r\n"))
    assert (await client.answer()).status == 508
    assert len(backend.requests) == 2


@pytest.mark.parametrize("may_have_run", [False, True])
async def test_a_balancer_is_told_that_a_request_did_not_run_if_no_backend_had_it(
    may_have_run: bool,
) -> None:
    async def take_and_close(peer: Peer) -> None:
        await peer.request()

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        refusing = f"127.0.0.1:{closed.getsockname()[1]}"
        async with scripted_backend(take_and_close) as losing, AsyncExitStack() as stack:
            targets = [losing.target, refusing] if may_have_run else [refusing]
            relay = await stack.enter_async_context(running_http1_relay(*targets))
            relay.use_identity(b"triton-lb-fedcba9876543210")
            client = await stack.enter_async_context(raw_client(relay.port))
            for _ in range(4):  # whichever is the first
                await client.send(post(b"{}", b"CDN-Loop: triton-lb-0123456789abcdef\r\n"))
                answer = await client.answer("POST")
                assert answer.status in (502, 503)
                why = answer.fields.get(b"triton-lb-not-run")
                assert why == (None if may_have_run else b"connect_refused")
            await eventually(relay.is_clean)
