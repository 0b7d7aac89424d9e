"""Requests that a backend never answers, over real sockets: everything else is served."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute
from lb.domain.schedule import Capacity, QueuePlan
from lb.kserve import inference_pb2 as pb
from tests.fakes.gated import HttpSide, Side, grpc_side, http_side, until
from tests.fakes.grpc_server import grpc_channel, path
from tests.fakes.relay import running_relay, snapshot_of
from tests.fakes.stream_backend import StreamClient, step, stream_backend
from tests.wire.http1 import raw_client
from tests.wire.waiting import eventually

SIDES = {"grpc": grpc_side, "http": http_side}
_WITHIN_S = 30.0


async def learn(side: Side, concurrency: int) -> None:
    """Have the scheduler know what executions take."""
    side.schedule(concurrency)
    for gate in side.gates:
        gate.open = True
    for number in range(16):
        assert (await side.ask(f"first-{number}")).code == side.ok


async def serve(side: Side, count: int) -> None:
    """Ask for so many, all of which have to be answered."""
    tasks = [side.ask(f"good-{number}") for number in range(count)]
    async with asyncio.timeout(_WITHIN_S):
        assert {(await task).code for task in tasks} == {side.ok}


@pytest.mark.parametrize("protocol", SIDES)
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("backends", [1, 2])
async def test_everything_else_is_served_beside_lost_requests_whose_clients_wait(
    protocol: str, concurrency: int, backends: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(100), SIDES[protocol](backends) as side:
        await learn(side, concurrency)
        names = [f"lost-{number}" for number in range(backends * concurrency)]
        for gate in side.gates:
            gate.lost.update(names)
        lost = [side.ask(name) for name in names]
        await until(lambda: set(names) <= set(side.seen), "all are there")
        with caplog.at_level(logging.WARNING, logger="lb.proxy.lost"):
            await serve(side, 20)
        # Whose clients wait go on waiting.
        assert not any(task.done() for task in lost)
        found = sum(backend.lost_requests for backend in side.relay.backends)
        assert 0 < found == len(caplog.records)
        assert "given up as lost" in caplog.text
        await serve(side, 20)
        for gate in side.gates:
            gate.release()
        assert {(await task).code for task in lost} == {side.ok}


@pytest.mark.parametrize("protocol", SIDES)
async def test_many_lost_requests_are_found_one_after_the_other(protocol: str) -> None:
    async with asyncio.timeout(100), SIDES[protocol](1) as side:
        await learn(side, 1)
        for number in range(5):
            name = f"lost-{number}"
            side.gates[0].lost.add(name)
            side.ask(name)
            await until(lambda name=name: name in side.seen, name)  # type: ignore[misc]
            await serve(side, 5)
            assert side.relay.backends[0].lost_requests == number + 1


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_an_attempt_whose_client_left_is_ended_when_it_is_overdue(
    concurrency: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(100), http_side(2) as side:
        assert isinstance(side, HttpSide)
        await learn(side, concurrency)
        names = [f"lost-{number}" for number in range(6)]
        for name in names:
            for gate in side.gates:
                gate.lost.add(name)
            async with raw_client(side.relay.port) as client:
                await client.send(side.request(name))
                await until(lambda name=name: name in side.seen, name)  # type: ignore[misc]
                client.reset()
        with caplog.at_level(logging.WARNING, logger="lb.proxy.lost"):
            await serve(side, 20)
            await side.until_clean()
        assert side.relay.idle_upstreams == side.relay.upstream_connections
        assert sum(backend.lost_requests for backend in side.relay.backends) == len(names)
        assert len(caplog.records) == len(names)


async def test_an_attempt_that_is_lost_already_is_ended_as_soon_as_its_client_leaves() -> None:
    async with asyncio.timeout(100), http_side(1) as side:
        assert isinstance(side, HttpSide)
        await learn(side, 1)
        side.gates[0].lost.add("lost")
        async with raw_client(side.relay.port) as client:
            await client.send(side.request("lost"))
            await until(lambda: "lost" in side.seen, "it is there")
            await serve(side, 5)
            assert side.relay.backends[0].lost_requests == 1
            client.reset()
            await eventually(lambda: side.relay.backends[0].in_flight == 0)
        assert side.relay.backends[0].lost_requests == 1


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_messages_of_a_stream_that_are_never_answered_hold_back_nobody(
    concurrency: int,
) -> None:
    plan = QueuePlan(limits={}, default=Capacity(concurrency, instances=concurrency))
    facts = ModelFacts(is_stateful=False, is_decoupled=False, instances=1)
    routes = {b"work": ModelRoute(facts=facts, is_uniform=True, plan=plan)}
    async with asyncio.timeout(100), AsyncExitStack() as stack:
        backend = await stack.enter_async_context(stream_backend("b"))
        relay = await stack.enter_async_context(running_relay(backend.target))
        relay.pool.publish(replace(snapshot_of(relay.backends), routes=routes))
        channel = await stack.enter_async_context(grpc_channel(relay.target))
        infer = channel.unary_unary(
            path("ModelInfer"),
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        for number in range(8):
            await infer(step("work", 0, f"first-{number}"))
        names = [f"lost-{number}" for number in range(concurrency)]
        backend.lost.update(names)
        stream = StreamClient(channel)
        await stream.send(*(step("work", 0, name) for name in names))
        await eventually(lambda: len(backend.seen) == 8 + len(names))
        async with asyncio.timeout(_WITHIN_S):
            for number in range(10):
                await infer(step("work", 0, f"good-{number}"))
        assert relay.backends[0].lost_requests == concurrency
        stream.call.cancel()
        await channel.close()
        await relay.until_clean()
