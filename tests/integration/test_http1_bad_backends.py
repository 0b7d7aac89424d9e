"""What backends should not do: the client gets a clear error or a visible cut, the connection is
never used again, and nothing of one answer reaches the next client."""

from __future__ import annotations

import asyncio

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.outcome import OUTCOME_REASONS, Outcome, Reason
from tests.corpus.backends import ALL, End, Misdeed, Sees
from tests.fakes.http1_setup import Setup
from tests.fakes.relay import running_http1_relay
from tests.wire.http1 import (
    GET,
    Peer,
    Script,
    post,
    raw_client,
    reply,
    scripted_backend,
)
from tests.wire.waiting import eventually

BOTH_LOOPS = True

_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKED = _OK + b"Transfer-Encoding: chunked\r\n\r\n"


def saying(data: bytes, *, step: int = 0, then_close: bool = False) -> Script:
    """A backend that answers every request with these bytes."""

    async def script(peer: Peer) -> None:
        await peer.request()
        if step:
            for at in range(0, len(data), step):
                await peer.send(data[at : at + step])
                await asyncio.sleep(0)
        else:
            await peer.send(data)
        if not then_close:
            await peer.closed()

    return script


_TOO_LARGE = frozenset({"U-12a", "U-12b", "U-12d", "U-16q"})
"""Rows with more fields than we take, or longer ones."""


def outcome_of(row: Misdeed) -> Outcome:
    """How the attempt ends whose backend does that."""
    return Outcome.HEAD_TOO_LARGE if row.id in _TOO_LARGE else Outcome.PROTOCOL_ERROR


_BROKEN_HEADS = [row for row in ALL if row.sees is Sees.ERROR and row.end is End.STAYS]


@pytest.mark.parametrize("step", [0, 1], ids=["at once", "by bytes"])
@pytest.mark.parametrize("row", _BROKEN_HEADS, ids=str)
async def test_broken_head_is_answered_for_the_backend(
    setup: Setup, row: Misdeed, step: int
) -> None:
    backend, relay, client = setup
    if step and len(row.wire) > 10_000:
        step = 4001
    backend.script = saying(row.wire, step=step)
    await client.send(GET)
    answer = await client.answer()
    assert (answer.status, answer.complete) == (502, True), answer.body
    assert len(answer.interim) <= 10
    record = relay.finished.records[0]
    assert record.reason is OUTCOME_REASONS[outcome_of(row)]
    assert relay.outcomes.seen == [("b0", outcome_of(row))]
    assert relay.upstream_connections == 0
    backend.script = saying(reply())
    await client.send(GET)
    assert (await client.answer()).body == b"ok"


_CUT_BODIES = [
    row for row in ALL if row.sees is Sees.CUT and row.end is not End.STAYS and row.is_framed
]
_BROKEN_BODIES = [row for row in ALL if row.sees is Sees.CUT and row.end is End.STAYS]


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("row", _CUT_BODIES, ids=str)
async def test_answer_that_stops_is_never_complete(setup: Setup, row: Misdeed, how: str) -> None:
    backend, relay, client = setup

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(row.wire)
        await eventually(lambda: relay.backends[0].port(AppProtocol.HTTP).last_byte_at > 0)
        if how == "reset":
            await peer.reset()

    backend.script = script
    await client.send(post())
    answer = await client.answer("POST")
    assert answer.status == 200
    assert not answer.complete
    assert await client.is_closed()
    assert backend.connections == 1, "an answer that has begun is not repeated"
    assert relay.finished.records[0].reason is Reason.UPSTREAM_LOST
    assert relay.outcomes.seen == [("b0", Outcome.LOST)]


@pytest.mark.parametrize("step", [0, 1], ids=["at once", "by bytes"])
@pytest.mark.parametrize("row", _BROKEN_BODIES, ids=str)
async def test_broken_chunks_are_never_complete(setup: Setup, row: Misdeed, step: int) -> None:
    backend, relay, client = setup
    backend.script = saying(row.wire, step=step)
    await client.send(GET)
    answer = await client.answer()
    assert answer.status in (200, 502)
    assert answer.status == 502 or not answer.complete
    assert relay.outcomes.seen == [("b0", outcome_of(row))]
    assert relay.upstream_connections == 0


async def test_reset_in_a_body_until_close_is_a_cut(setup: Setup) -> None:
    backend, relay, client = setup

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(_OK + b"\r\nhello")
        await eventually(lambda: relay.backends[0].port(AppProtocol.HTTP).last_byte_at > 0)
        await peer.reset()

    backend.script = script
    await client.send(GET)
    assert not (await client.answer()).complete


async def test_cut_is_a_reset_where_the_end_of_the_connection_is_the_end(setup: Setup) -> None:
    backend, relay, client = setup

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(_CHUNKED + b"5\r\nhello\r\n")
        await eventually(lambda: relay.backends[0].port(AppProtocol.HTTP).last_byte_at > 0)

    backend.script = script
    await client.send(b"GET / HTTP/1.0\r\n\r\n")
    with pytest.raises(ConnectionResetError):
        await client.reader.read(-1)


@pytest.mark.parametrize("row", [row for row in ALL if row.surplus], ids=str)
@pytest.mark.parametrize("step", [0, 3])
async def test_bytes_behind_an_answer_reach_nobody(setup: Setup, row: Misdeed, step: int) -> None:
    backend, relay, client = setup
    backend.script = saying(row.wire + row.surplus, step=step)
    for _ in range(3):
        await client.send(GET.replace(b"GET", row.method))
        answer = await client.answer(row.method.decode())
        assert (answer.status, answer.complete) == (row.status, True)
        assert answer.body == row.body
        await eventually(lambda: relay.upstream_connections == 0)
    assert backend.connections == 3


async def test_unsolicited_bytes_close_an_idle_connection(setup: Setup) -> None:
    backend, relay, client = setup
    speak = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply())
        await speak.wait()
        await peer.send(reply(b"evil"))
        await peer.closed()

    backend.script = script
    await client.send(GET)
    assert (await client.answer()).body == b"ok"
    assert relay.idle_upstreams == 1
    speak.set()
    await eventually(lambda: relay.upstream_connections == 0)
    await client.send(GET)
    assert (await client.answer()).body == b"ok"


async def test_backend_that_speaks_before_it_is_asked_answers_nothing_later(setup: Setup) -> None:
    """What it says at once is at best an answer to the first request; never one to the next."""
    backend, relay, client = setup

    async def script(peer: Peer) -> None:
        await peer.send(reply(b"early"))
        await peer.request()
        await peer.send(reply())
        await peer.closed()

    backend.script = script
    seen = []
    for _ in range(4):
        await client.send(GET)
        seen.append((await client.answer()).body)
        await eventually(lambda: relay.upstream_connections == 0)
    assert all(body in (b"early", b"ok") or body.startswith(b'{"error"') for body in seen)
    assert backend.connections >= 4, "no connection that spoke unasked is used twice"


async def test_second_answer_never_meets_a_pipelined_request(setup: Setup) -> None:
    backend, relay, client = setup

    async def script(peer: Peer) -> None:
        received = await peer.request()
        await peer.send(reply(received.target) + reply(b"evil"))
        await peer.closed()

    backend.script = script
    targets = [b"/%d" % number for number in range(20)]
    await client.send(b"".join(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % each for each in targets))
    assert [(await client.answer()).body for _ in targets] == targets
    assert backend.connections == len(targets)
    await eventually(lambda: relay.upstream_connections == 0)


async def test_upgrade_is_never_a_tunnel(setup: Setup) -> None:
    backend, _, client = setup

    async def script(peer: Peer) -> None:
        while True:
            received = await peer.request()
            assert received.field(b"upgrade") is None
            await peer.send(reply(fields=b"Upgrade: websocket\r\nConnection: Upgrade\r\n"))

    backend.script = script
    await client.send(
        GET.replace(b"\r\n\r\n", b"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
    )
    answer = await client.answer()
    assert (answer.status, answer.body) == (200, b"ok")
    assert b"upgrade" not in answer.fields
    await client.send(GET)
    assert (await client.answer()).status == 200


# Losses before an answer


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_loss_on_a_fresh_connection_is_not_repeated(setup: Setup, how: str) -> None:
    backend, relay, client = setup

    async def script(peer: Peer) -> None:
        await peer.request()
        if how == "reset":
            await peer.reset()

    backend.script = script
    await client.send(post())
    answer = await client.answer("POST")
    assert answer.status == 502
    assert answer.body == (
        b'{"error": "backend b0 (http) closed the connection before its answer was complete"}'
    )
    assert len(backend.requests) == 1
    assert relay.outcomes.seen == [("b0", Outcome.LOST)]
    backend.script = saying(reply())
    await client.send(GET)
    assert (await client.answer()).status == 200, "the client's connection lives on"


@pytest.mark.parametrize("body", [b"hello", b"x" * 60_000])
async def test_request_on_a_connection_that_was_closing_is_sent_again(
    setup: Setup, body: bytes
) -> None:
    backend, relay, client = setup

    async def closes_on_the_second(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply())
        await peer.reader.read(1)
        await peer.reset()

    infer = post(body)
    backend.script = closes_on_the_second
    await client.send(infer)
    assert (await client.answer("POST")).status == 200
    backend.script = saying(reply(b"second"))
    await client.send(infer)
    assert (await client.answer("POST")).body == b"second"
    assert relay.outcomes.seen == [("b0", Outcome.STALE)]
    assert relay.finished.records[1].attempts == 2
    assert backend.requests[-1].body == body


@pytest.mark.parametrize("kept", [True, False])
async def test_request_too_large_to_keep_is_not_sent_again(setup: Setup, kept: bool) -> None:
    backend, relay, client = setup
    if not kept:
        relay.configure(retained_size=64 * 1024)

    async def closes_on_the_second(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply())
        await peer.reader.readexactly(80_000)
        await peer.reset()

    backend.script = closes_on_the_second
    await client.send(GET)
    assert (await client.answer()).status == 200
    infer = post(b"x" * 85_000, size=90_000)
    await client.send(infer)
    if kept:
        await eventually(lambda: bool(relay.outcomes.seen))
        backend.script = saying(reply())
        await client.send(b"x" * 5_000)
    answer = await client.answer("POST")
    assert answer.status == (200 if kept else 502)
    assert relay.outcomes.seen == [("b0", Outcome.STALE)]
    assert len(backend.requests[-1].body) == (90_000 if kept else 0)


async def test_control_operation_is_not_repeated_on_a_doubt(setup: Setup) -> None:
    backend, _, client = setup

    async def closes_on_the_second(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply())
        await peer.request()

    backend.script = closes_on_the_second
    load = b"POST /v2/repository/models/m/load HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    await client.send(load)
    assert (await client.answer("POST")).status == 200
    await client.send(load)
    assert (await client.answer("POST")).status == 502
    assert len(backend.requests) == 2


async def test_refused_connection_is_tried_elsewhere(unused_tcp_port: int) -> None:
    async with (
        scripted_backend() as backend,
        running_http1_relay(f"127.0.0.1:{unused_tcp_port}", backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(post())
        assert (await client.answer("POST")).body == b"ok"
        assert relay.outcomes.seen == [("b0", Outcome.CONNECT_REFUSED)]
        port = relay.backends[0].port(AppProtocol.HTTP)
        assert (port.connect_failures, port.connects, port.connections) == (1, 0, 0)
        assert port.in_flight == 0
        assert relay.finished.records[0].attempts == 2


async def test_large_upload_is_tried_elsewhere_when_connecting_fails(unused_tcp_port: int) -> None:
    body = bytes(range(256)) * 4000
    async with (
        scripted_backend() as backend,
        running_http1_relay(f"127.0.0.1:{unused_tcp_port}", backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(post(body))
        assert (await client.answer("POST")).body == b"ok"
        assert backend.requests[0].body == body
        assert relay.memory_budget.held == 0


async def test_no_backend_left_is_said(unused_tcp_port: int) -> None:
    async with (
        running_http1_relay(f"127.0.0.1:{unused_tcp_port}") as relay,
        raw_client(relay.port) as client,
    ):
        for _ in range(2):
            await client.send(post())
            answer = await client.answer("POST")
            assert answer.status == 503
            assert answer.body == b'{"error": "backend b0 (http) refused the connection"}'
        assert relay.finished.records[0].reason is Reason.CONNECT_REFUSED
        assert relay.traffic.accepted == 1


async def test_empty_pool_and_full_backends_are_said() -> None:
    async with running_http1_relay() as relay, raw_client(relay.port) as client:
        await client.send(GET)
        answer = await client.answer()
        assert (answer.status, answer.fields[b"retry-after"]) == (503, b"1")
        assert relay.finished.records[0].reason is Reason.NO_BACKEND
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await gate.wait()
        await peer.send(reply())
        await peer.closed()

    async with (
        scripted_backend(script) as backend,
        running_http1_relay(backend.target, max_in_flight=1) as relay,
        raw_client(relay.port) as first,
        raw_client(relay.port) as second,
    ):
        await first.send(GET)
        await eventually(lambda: len(backend.requests) == 1)
        await second.send(GET)
        assert (await second.answer()).status == 503
        assert relay.finished.records[0].reason is Reason.BACKENDS_FULL
        gate.set()
        assert (await first.answer()).status == 200
