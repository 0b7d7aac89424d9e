"""Backends that take long, over real sockets: attempts that are given up, and second ones beside
the first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import grpc.aio
import pytest
from aiohttp import web

from lb.domain.hedge import HedgeRules
from lb.domain.outcome import Outcome
from tests.fakes.gated import Side, grpc_side, http_side, until
from tests.fakes.http1_backend import eventually
from tests.fakes.relay import HedgeView, RunningRelay, running_http1_relay, running_relay

_LIMIT_S = 20.0
_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_MESSAGE = b"\x0a\x01m"


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
async def http_pair() -> AsyncIterator[tuple[RunningRelay, list[Slow]]]:
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
        async with running_http1_relay(*addresses) as relay:
            yield relay, backends
    finally:
        for backend in backends:
            backend.gate.set()
        for runner in runners:
            await runner.cleanup()


@asynccontextmanager
async def grpc_pair() -> AsyncIterator[tuple[RunningRelay, list[Slow]]]:
    backends = [Slow(), Slow()]
    async with grpc_servers(*backends) as (relay, _):
        yield relay, backends


@asynccontextmanager
async def grpc_servers(
    *backends: Slow,
) -> AsyncIterator[tuple[RunningRelay, list[grpc.aio.Server]]]:
    servers = [grpc.aio.server(), grpc.aio.server()]
    ports = []
    for server, backend in zip(servers, backends or (Slow(), Slow()), strict=True):
        server.add_generic_rpc_handlers((backend,))
        ports.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
    try:
        async with running_relay(*(f"127.0.0.1:{port}" for port in ports)) as relay:
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
        relay.limit_attempts()


async def test_a_late_grpc_call_is_answered_by_another_backend() -> None:
    async with asyncio.timeout(_LIMIT_S), grpc_pair() as (relay, backends):
        backends[0].gate.clear()
        relay.limit_attempts(0.1)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{relay.port}") as channel:
            ask = channel.unary_unary(_METHOD)
            assert [await ask(_MESSAGE) for _ in range(4)] == [_MESSAGE] * 4
        await eventually(lambda: backends[0].cancelled == backends[0].seen >= 1)
        relay.limit_attempts()


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
            await servers[0].stop(1.0)
            before = answers
            await until(lambda: answers > before + 200, "they go on")
            stopped = True
            await asyncio.gather(*asking)
        assert {record.grpc_status for record in relay.finished.records} == {0}


SIDES = {"grpc": grpc_side, "http": http_side}


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


async def test_a_hedge_of_a_scheduled_request_has_a_place_where_it_runs(
    scheduled: tuple[Side, HedgeView],
) -> None:
    side, hedges = scheduled
    task = await side.asked("a")
    (first,) = (gate for gate in side.gates if gate.seen)
    await until(lambda: side.seen == ["a", "a"], "it was sent twice")
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
    tasks = [await side.asked(name) for name in ("a", "b")]
    await asyncio.sleep(0.3)  # several looks at what might be hedged
    assert sorted(side.seen) == ["a", "b"]
    assert lanes(side) == [1, 1]
    for gate in side.gates:
        gate.release()
    assert [(await task).code for task in tasks] == [side.ok] * 2
    assert (hedges.count, len(hedges)) == (0, 0)


async def test_a_request_that_is_faster_than_its_hedge_takes_that_ones_place_back(
    scheduled: tuple[Side, HedgeView],
) -> None:
    side, hedges = scheduled
    task = await side.asked("a")
    (first,) = (gate for gate in side.gates if gate.seen)
    await until(lambda: side.seen == ["a", "a"], "it was sent twice")
    first.release()
    assert (await task).code == side.ok
    await until(lambda: len(hedges) == 0, "the second one is cancelled")
    for gate in side.gates:
        gate.release()
    await until(lambda: not any(lanes(side)), "nobody has a place any more")
    assert (hedges.count, hedges.won) == (1, 0)
