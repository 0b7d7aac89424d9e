from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random

import aiohttp
import grpc
import pytest

from lb.cli.demo.load import (
    Arrivals,
    Infer,
    Outputs,
    RequestTally,
    grpc_infer,
    http_infer,
    send_one,
)
from lb.simulator.process import Ports, Simulator
from lb.simulator.server import SimulatedTriton


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with Simulator(SimulatedTriton(speed=100), Ports()) as running:
        yield running


async def tallied(infer: Infer, count: int = 3) -> RequestTally:
    tally = RequestTally("HTTP")
    for number in range(count):
        await send_one(infer, tally, [number] * 16, [1] * 16)
    return tally


async def test_right_answers_over_http(simulator: Simulator) -> None:
    async with aiohttp.ClientSession() as session:
        infer = http_infer(session, f"127.0.0.1:{simulator.ports.http_port}")
        tally = await tallied(infer)
    assert (tally.right, tally.total, tally.is_clean) == (3, 3, True)
    assert simulator.triton.counters["simple"].success == 3


async def test_right_answers_over_grpc(simulator: Simulator) -> None:
    target = f"127.0.0.1:{simulator.ports.grpc_port}"
    async with grpc.aio.insecure_channel(target) as channel:
        tally = await tallied(grpc_infer(channel))
    assert (tally.right, tally.total, tally.is_clean) == (3, 3, True)


async def test_refused_requests_have_failed_over_http() -> None:
    async with (
        Simulator(SimulatedTriton(["sleeper"]), Ports()) as simulator,
        aiohttp.ClientSession() as session,
    ):
        tally = await tallied(http_infer(session, f"127.0.0.1:{simulator.ports.http_port}"))
    assert (tally.failed, tally.right, tally.is_clean) == (3, 0, False)
    assert "404" in tally.problem


async def test_refused_requests_have_failed_over_grpc() -> None:
    async with Simulator(SimulatedTriton(["sleeper"]), Ports()) as simulator:
        target = f"127.0.0.1:{simulator.ports.grpc_port}"
        async with grpc.aio.insecure_channel(target) as channel:
            tally = await tallied(grpc_infer(channel))
    assert tally.failed == 3
    assert tally.problem == "NOT_FOUND: Request for unknown model: 'simple' is not found"


@pytest.mark.parametrize("outputs", [{}, {"OUTPUT0": [1], "OUTPUT1": [2]}])
async def test_other_outputs_are_wrong(outputs: Outputs) -> None:
    async def infer(first: Sequence[int], second: Sequence[int]) -> Outputs:
        return outputs

    tally = await tallied(infer)
    assert (tally.wrong, tally.is_clean) == (3, False)


@pytest.mark.parametrize("error", [KeyError("outputs"), ValueError("no JSON")])
async def test_answer_that_cannot_be_read_is_wrong(error: Exception) -> None:
    async def infer(first: Sequence[int], second: Sequence[int]) -> Outputs:
        raise error

    tally = await tallied(infer)
    assert (tally.wrong, tally.failed) == (3, 0)
    assert tally.problem.startswith("answer without the outputs")


async def test_without_a_time_requests_arrive_until_it_is_cancelled() -> None:
    enough = asyncio.Event()
    tally = RequestTally("HTTP")

    async def infer(first: Sequence[int], second: Sequence[int]) -> Outputs:
        if tally.total == 10:
            enough.set()
        return {}

    arrivals = Arrivals([((infer, tally),)], Random(1))
    sending = asyncio.create_task(arrivals.send(10_000.0))
    await asyncio.wait_for(enough.wait(), 30)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert tally.total >= 10


def test_quantiles_are_over_the_latest_answers() -> None:
    tally = RequestTally("HTTP")
    assert tally.quantile_ms(0.5) is None
    tally.recent_s.extend(number / 1000 for number in range(100))
    assert (tally.quantile_ms(0.5), tally.quantile_ms(0.99), tally.quantile_ms(1)) == (50, 99, 99)
