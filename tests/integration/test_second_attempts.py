"""Backends that take long, over real sockets: attempts that are given up, and second ones beside
the first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import grpc.aio
import pytest
from aiohttp import web

from lb.domain.backend import AppProtocol
from lb.domain.hedge import HedgeRules
from lb.domain.outcome import Outcome
from tests.fakes import gated
from tests.fakes.clock import FakeLoop
from tests.fakes.gated import Gated, HttpSide, Side, grpc_side, http_side, until
from tests.fakes.relay import (
    HedgeView,
    RunningRelay,
    running_http1_relay,
    running_relay,
    snapshot_of,
)
from tests.wire.http1 import Peer, RawClient, raw_client, reply, scripted_backend
from tests.wire.waiting import eventually

_LIMIT_S = 60.0
_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_MESSAGE = b"\x0a\x01m"
_NAMED_BODY = b'{"id":"7","model_name":"m","outputs":[]}'
_NAMED = reply(_NAMED_BODY)


class Slow(grpc.GenericRpcHandler):
    """Answers at once, over both protocols, unless its gate is closed."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.seen = 0
        self.cancelled = 0

    async def http(self, request: web.Request) -> web.Response:
        body = await request.read()
        await self._wait()
        return web.Response(body=body)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self._call)

    async def _call(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await self._wait()
        return request

    async def _wait(self) -> None:
        self.seen += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@asynccontextmanager
async def http_pair(**options: Any) -> AsyncIterator[tuple[RunningRelay, list[Slow]]]:
    backends = [Slow(), Slow()]
    runners = []
    addresses = []
    for backend in backends:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/v2/models/m/infer", backend.http)
        runners.append(runner := web.AppRunner(app))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        addresses.append("{}:{}".format(*runner.addresses[0][:2]))
    try:
        async with running_http1_relay(*addresses, options=options) as relay:
            yield relay, backends
    finally:
        for backend in backends:
            backend.gate.set()
        for runner in runners:
            await runner.cleanup()


@asynccontextmanager
async def grpc_pair(**options: Any) -> AsyncIterator[tuple[RunningRelay, list[Slow]]]:
    backends = [Slow(), Slow()]
    async with grpc_servers(*backends, **options) as (relay, _):
        yield relay, backends


@asynccontextmanager
async def grpc_servers(
    *backends: Slow,
    **options: Any,
) -> AsyncIterator[tuple[RunningRelay, list[grpc.aio.Server]]]:
    servers = [grpc.aio.server(), grpc.aio.server()]
    ports = []
    for server, backend in zip(servers, backends or (Slow(), Slow()), strict=True):
        server.add_generic_rpc_handlers((backend,))
        ports.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
    try:
        targets = [f"127.0.0.1:{port}" for port in ports]
        async with running_relay(*targets, options=options) as relay:
            yield relay, servers
    finally:
        for server in servers:
            await server.stop(0)


def hedges_of(relay: RunningRelay) -> HedgeView:
    """It knows that answers take 50 ms."""
    hedges = relay.hedge(HedgeRules(least_s=0.05))
    hedges.learn(b"m", 0.05, 30)
    return hedges


@pytest.mark.parametrize("size", [2, 100_000])
async def test_a_late_http_request_is_answered_by_another_backend(size: int) -> None:
    async with asyncio.timeout(_LIMIT_S), http_pair() as (relay, backends):
        backends[0].gate.clear()
        relay.limit_attempts(0.1)
        url = f"http://127.0.0.1:{relay.port}/v2/models/m/infer"
        async with aiohttp.ClientSession() as session:
            for _ in range(4):
                async with session.post(url, data=bytes(size)) as answer:
                    assert (answer.status, len(await answer.read())) == (200, size)
        assert backends[0].seen >= 1
        assert set(relay.outcomes.seen) == {("b0", Outcome.LATE)}


async def test_a_late_grpc_call_is_answered_by_another_backend() -> None:
    async with asyncio.timeout(_LIMIT_S), grpc_pair() as (relay, backends):
        backends[0].gate.clear()
        relay.limit_attempts(0.1)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{relay.port}") as channel:
            ask = channel.unary_unary(_METHOD)
            assert [await ask(_MESSAGE) for _ in range(4)] == [_MESSAGE] * 4
        await eventually(lambda: backends[0].cancelled == backends[0].seen >= 1)


@pytest.mark.parametrize("size", [2, 100_000])
async def test_the_first_of_two_http_answers_counts(size: int) -> None:
    async with asyncio.timeout(_LIMIT_S), http_pair() as (relay, backends):
        hedges = hedges_of(relay)
        backends[0].gate.clear()
        url = f"http://127.0.0.1:{relay.port}/v2/models/m/infer"
        async with aiohttp.ClientSession() as session:
            async with session.post(url, data=bytes(size)) as answer:
                assert (answer.status, len(await answer.read())) == (200, size)
            assert [backend.seen for backend in backends] == [1, 1]
            await eventually(lambda: hedges.won == hedges.count == 1)
            assert relay.backends[0].in_flight == 1, "a Triton computes on"
            backends[0].gate.set()
            await eventually(lambda: relay.backends[0].in_flight == 0)
            async with session.post(url, data=b"again") as answer:
                assert await answer.read() == b"again"
        (first, second) = relay.finished.records
        assert (first.attempts, second.attempts) == (2, 1)
        hedges.stop()
        await eventually(relay.is_clean)


async def test_the_first_of_two_grpc_answers_counts_and_the_other_is_cancelled() -> None:
    async with asyncio.timeout(_LIMIT_S), grpc_pair() as (relay, backends):
        hedges = hedges_of(relay)
        backends[0].gate.clear()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{relay.port}") as channel:
            ask = channel.unary_unary(_METHOD)
            assert await ask(_MESSAGE) == _MESSAGE
            await eventually(lambda: backends[0].cancelled == 1)
            await eventually(lambda: hedges.won == 1)
            backends[0].gate.set()
            assert [await ask(_MESSAGE) for _ in range(4)] == [_MESSAGE] * 4
        assert relay.finished.records[0].attempts == 2
        hedges.stop()
        await relay.until_clean()


async def test_a_hedge_goes_on_alone_when_the_first_server_stops() -> None:
    backends = [Slow(), Slow()]
    async with asyncio.timeout(_LIMIT_S), grpc_servers(*backends) as (relay, servers):
        hedges = hedges_of(relay)
        for backend in backends:
            backend.gate.clear()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{relay.port}") as channel:
            asked = asyncio.ensure_future(channel.unary_unary(_METHOD)(_MESSAGE))
            await until(lambda: all(each.seen for each in backends), "both have it")
            await servers[0].stop(0)
            await until(lambda: not relay.backends[0].in_flight, "the first is over")
            backends[1].gate.set()
            assert await asked == _MESSAGE
        assert [backend.seen for backend in backends] == [1, 1]
        assert [record.attempts for record in relay.finished.records] == [2]
        hedges.stop()
        await relay.until_clean()


SIDES = {"grpc": grpc_side, "http": http_side}


@pytest.fixture(params=SIDES)
async def hedged(request: pytest.FixtureRequest) -> AsyncIterator[Side]:
    """A request x that the first two of three backends have, and a hedger."""
    async with asyncio.timeout(_LIMIT_S), SIDES[request.param](3) as side:
        hedges = hedges_of(side.relay)
        side.ask("x")
        await until(lambda: side.seen == ["x", "x"], "two have it")
        assert not side.gates[2].seen
        yield side
        hedges.stop()


def take_out(side: Side, *, is_hung: bool) -> None:
    """The first backend is down."""
    backends = side.relay.backends
    backends[0].port(side.protocol).is_hung = is_hung
    rest = snapshot_of(backends[1:])
    side.relay.pool.publish(replace(rest, backends=tuple(backends)))


async def until_first_is_over(side: Side) -> None:
    await until(lambda: not side.relay.backends[0].in_flight, "the first is over")


@pytest.mark.parametrize("outcome", [Outcome.LATE, Outcome.STALLED])
async def test_a_hedge_goes_on_alone_when_the_first_backend_is_late_or_silent(
    hedged: Side, outcome: Outcome
) -> None:
    if outcome is Outcome.LATE:
        hedged.relay.limit_attempts(0.05)
    else:
        take_out(hedged, is_hung=True)
    await until_first_is_over(hedged)
    hedged.gates[1].release()
    assert (await hedged.tasks[0]).code == hedged.ok
    assert hedged.seen == ["x", "x"], "there was no third attempt"
    assert hedged.relay.outcomes.seen == [("b0", outcome)]
    assert [record.attempts for record in hedged.records] == [2]


async def test_a_backend_that_dies_of_a_request_which_its_hedge_took_over_counts_as_lost(
    hedged: Side,
) -> None:
    hedged.relay.limit_attempts(0.05)
    await until_first_is_over(hedged)
    take_out(hedged, is_hung=False)
    second = hedged.relay.backends[1].port(hedged.protocol).address
    for transport in hedged.relay.upstream_transports:
        if transport.get_extra_info("peername")[:2] == (second.host, second.port):
            transport.abort()
    assert (await hedged.tasks[0]).code not in (hedged.ok, hedged.late)
    assert hedged.seen == ["x", "x"], "it may have killed two"


async def test_a_hedge_does_not_go_on_with_an_answer_that_the_first_backend_broke_off() -> None:
    has_it = [asyncio.Event(), asyncio.Event()]

    async def break_off(peer: Peer) -> None:
        await peer.request()
        has_it[0].set()
        await has_it[1].wait()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf")
        # The script ends, and closes the connection at once.

    async def hold(peer: Peer) -> None:
        await peer.request()
        has_it[1].set()
        await peer.closed()

    async with (
        asyncio.timeout(_LIMIT_S),
        scripted_backend(break_off) as first,
        scripted_backend(hold) as second,
        running_http1_relay(str(first.target), str(second.target)) as relay,
        raw_client(relay.port) as client,
    ):
        hedges = hedges_of(relay)
        head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"
        await client.send(head + b"x")
        answer = await client.answer("POST")
        assert (answer.status, answer.body, answer.complete) == (200, b"half", False)
        assert hedges.count == 1
        hedges.stop()


async def test_a_hedge_that_was_answered_before_it_was_sent_does_not_go_on() -> None:
    may_close = asyncio.Event()

    async def close_later(peer: Peer) -> None:
        await peer.request()
        await may_close.wait()

    async def answer_early(peer: Peer) -> None:
        await peer.head()
        if peer.backend.connections == 1:
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf")
            await asyncio.Event().wait()  # and reads nothing
        await peer.body(peer.backend.requests[-1])
        await peer.send(reply())

    async with (
        asyncio.timeout(_LIMIT_S),
        scripted_backend(close_later) as first,
        scripted_backend(answer_early) as second,
        running_http1_relay(str(first.target), str(second.target)) as relay,
        raw_client(relay.port) as client,
    ):
        hedges = hedges_of(relay)
        size = 7 << 20
        head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size
        await client.send(head + bytes(size))
        port = relay.backends[1].port(AppProtocol.HTTP)
        await until(lambda: port.bytes_received > 0, "it was answered")
        may_close.set()
        answer = await client.answer("POST")
        assert (answer.status, answer.body) == (200, b"ok")
        assert hedges.count == 1
        hedges.stop()


async def test_no_call_fails_because_a_grpc_server_stops() -> None:
    async with asyncio.timeout(_LIMIT_S), grpc_servers() as (relay, servers):
        answers = 0
        stopped = False

        async def ask_on(channel: grpc.aio.Channel) -> None:
            nonlocal answers
            ask = channel.unary_unary(_METHOD)
            while not stopped:
                assert await ask(_MESSAGE) == _MESSAGE
                answers += 1

        async with grpc.aio.insecure_channel(f"127.0.0.1:{relay.port}") as channel:
            asking = [asyncio.create_task(ask_on(channel)) for _ in range(32)]
            await until(lambda: answers > 200, "answers come")
            await servers[0].stop(_LIMIT_S)  # what runs there is never cut, however slow it is
            before = answers
            await until(lambda: answers > before + 200, "they go on")
            stopped = True
            await asyncio.gather(*asking)
        assert {record.grpc_status for record in relay.finished.records} == {0}


@pytest.fixture(params=SIDES)
async def scheduled(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Side, HedgeView]]:
    """Two backends that run one request of the model at a time each, and its hedges."""
    async with asyncio.timeout(60), SIDES[request.param](2) as side:
        side.schedule()
        hedges = hedges_of(side.relay)
        yield side, hedges
        hedges.stop()


def lanes(side: Side) -> list[int]:
    return side.queue.in_flight


async def sent_twice(
    side: Side, hedges: HedgeView
) -> tuple[asyncio.Task[gated.Outcome], Gated, HedgeView]:
    """A request with a hedge beside it, which is not sent before it is known where it ran first."""
    hedges.stop()
    task = await side.asked("a")
    (first,) = (gate for gate in side.gates if gate.seen)
    hedges = hedges_of(side.relay)
    await until(lambda: side.seen == ["a", "a"], "it was sent twice")
    return task, first, hedges


async def test_a_hedge_of_a_scheduled_request_has_a_place_where_it_runs(
    scheduled: tuple[Side, HedgeView],
) -> None:
    side, hedges = scheduled
    task, first, hedges = await sent_twice(side, hedges)
    assert lanes(side) == [1, 1]
    waiting = await side.asked("b")
    assert len(side.queue) == 1, "there is no room beside a hedge"
    (second,) = (gate for gate in side.gates if gate is not first)
    second.release()
    assert (await task).code == side.ok
    await until(lambda: "b" in side.seen, "it left its place")
    for gate in side.gates:
        gate.open = True
        gate.release()
    assert (await waiting).code == side.ok
    await until(lambda: hedges.won == hedges.count == 1, "it has won")
    record = next(each for each in side.records if each.attempts == 2)
    assert record.queue_why == ""
    await until(lambda: not any(lanes(side)), "nobody has a place any more")


async def test_a_hedge_that_would_wait_is_not_sent(scheduled: tuple[Side, HedgeView]) -> None:
    side, hedges = scheduled
    hedges.stop()  # a slow machine may take long until both run
    tasks = [await side.asked(name) for name in ("a", "b")]
    hedges = hedges_of(side.relay)
    await asyncio.sleep(0.3)  # several looks at what might be hedged
    assert sorted(side.seen) == ["a", "b"]
    assert lanes(side) == [1, 1]
    for gate in side.gates:
        gate.release()
    assert [(await task).code for task in tasks] == [side.ok] * 2
    assert (hedges.count, len(hedges)) == (0, 0)
    hedges.stop()


async def test_a_request_that_is_faster_than_its_hedge_takes_that_ones_place_back(
    scheduled: tuple[Side, HedgeView],
) -> None:
    side, hedges = scheduled
    task, first, hedges = await sent_twice(side, hedges)
    first.release()
    assert (await task).code == side.ok
    await until(lambda: len(hedges) == 0, "the second one is cancelled")
    for gate in side.gates:
        gate.release()
    await until(lambda: not any(lanes(side)), "nobody has a place any more")
    assert (hedges.count, hedges.won) == (1, 0)


async def test_a_queued_request_that_its_hedge_answers_is_logged_as_queued(
    scheduled: tuple[Side, HedgeView],
) -> None:
    side, hedges = scheduled
    hedges.stop()
    for name in ("a", "b", "c"):
        await side.asked(name)
    (ticket,) = side.queue.tickets()
    for gate in side.gates:
        gate.release()
    await until(lambda: "c" in side.seen, "it has begun")
    (first,) = (gate for gate in side.gates if "c" in gate.seen)
    (second,) = (gate for gate in side.gates if gate is not first)
    hedges = hedges_of(side.relay)
    await until(lambda: "c" in second.seen, "it was sent twice")
    second.release()
    assert (await side.tasks[2]).code == side.ok
    assert hedges.won == 1
    (record,) = (each for each in side.records if each.attempts == 2)
    assert (record.queue_position, record.queue_why) == (ticket.position, ticket.wait.value)
    hedges.stop()


@asynccontextmanager
async def broken_off_by_its_hedge(
    loop: FakeLoop,
) -> AsyncIterator[tuple[HttpSide, RawClient, list[Peer]]]:
    """A scheduled request that three backends may have. Its hedge was the first to answer, and was
    lost before any of that had gone on: the client does not know yet what the model is called.
    Gives the backends' ends of its attempts."""
    asked: list[Peer] = []

    async def serve(peer: Peer) -> None:
        while await peer.request():
            asked.append(peer)

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(_LIMIT_S))
        servers = [await stack.enter_async_context(scripted_backend(serve)) for _ in range(3)]
        options = {"variant_names": frozenset({b"name"})}
        relay = await stack.enter_async_context(
            running_http1_relay(*[each.target for each in servers], options=options, loop=loop)
        )
        relay.use_variants(b"name", {"name": "stable", "model": b"m", "weight": 1})
        side = HttpSide(relay, [])
        side.schedule()
        client = await stack.enter_async_context(raw_client(relay.port))
        await client.send(b"POST /v2/models/name/infer HTTP/1.1\r\nHost: a\r\n")
        await client.send(b"Content-Length: 2\r\n\r\n{}")
        await until(lambda: len(asked) == 1, "the first has it")
        hedges = hedges_of(relay)
        loop.advance(0.2)
        await until(lambda: len(asked) == 2, "the hedge is sent")
        await asked[1].send(_NAMED[:-30])
        await until(lambda: hedges.won == 1, "the hedge has won")
        asked[1].writer.close()
        await until(lambda: len(relay.outcomes.seen) == 1, "the hedge is lost")
        yield side, client, asked
        hedges.stop()
        await until(relay.is_clean, "nothing is left")


@pytest.mark.parametrize("when", ["before the third", "beside the third", "after the third"])
async def test_a_request_that_its_hedge_answered_in_part_runs_on_a_third_backend(when: str) -> None:
    loop = FakeLoop()
    async with broken_off_by_its_hedge(loop) as (side, client, asked):
        if when == "before the third":
            await asked[0].send(_NAMED)
            await until(lambda: not side.relay.in_flight, "the first is over")
        loop.advance(0.2)
        await until(lambda: len(asked) == 3, "the third has it")
        if when == "beside the third":
            await asked[0].send(_NAMED)
            await until(lambda: side.relay.in_flight == 1, "the first is over")
            assert sum(lanes(side)) == 1
        await asked[2].send(_NAMED)
        answer = await client.answer("POST")
        assert (answer.status, answer.body) == (200, _NAMED_BODY.replace(b'"m"', b'"name"'))
        if when == "after the third":
            assert sum(lanes(side)) == 1, "a Triton computes on"
            await asked[0].send(_NAMED)
        await until(lambda: not side.relay.in_flight, "all are over")
        assert not any(lanes(side))
        assert [record.attempts for record in side.records] == [3]


@pytest.mark.parametrize("make_side", [grpc_side, http_side])
async def test_all_that_a_dead_backend_had_is_answered_by_another(
    make_side: Callable[..., AbstractAsyncContextManager[Side]],
) -> None:
    count = 150
    async with asyncio.timeout(_LIMIT_S), make_side(2) as side:
        side.relay.pool.publish(snapshot_of(side.relay.backends[:1]))
        asked = [side.ask(f"x{number}") for number in range(count)]
        await until(lambda: len(side.gates[0].running) == count, "all are at the first")
        side.relay.pool.publish(snapshot_of(side.relay.backends))
        side.gates[1].open = True
        for transport in side.relay.upstream_transports:
            transport.abort()
        assert [(await each).code for each in asked] == [side.ok] * count
        side.gates[0].release()
