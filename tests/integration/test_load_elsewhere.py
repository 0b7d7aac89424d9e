"""What Tritons say of their speed and of what others do there, over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from lb.domain.schedule import ModelBackendView
from lb.simulator.gpu import SimulatedGpu
from lb.simulator.process import Ports, Simulator
from lb.simulator.server import SimulatedTriton
from tests.fakes.balancer import Balancer, running_balancer
from tests.wire.waiting import eventually

ONES = {"datatype": "INT32", "shape": [1, 16], "data": [1] * 16}
SIMPLE = {"inputs": [{"name": "INPUT0", **ONES}, {"name": "INPUT1", **ONES}]}
SLEEPY = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [30]}]}
PATIENCE_S = 90.0
_TRIES = 4
_OURS = 20
LEARNT_S = 25.0
"""Until what is learnt is no chance any more, on a busy machine."""


async def infer(
    client: aiohttp.ClientSession, address: str, model: str = "simple", body: object = SIMPLE
) -> None:
    async with client.post(f"http://{address}/v2/models/{model}/infer", json=body) as answer:
        assert answer.status == 200, await answer.text()


class Scene:
    """Tritons that may also be reached past the balancer."""

    def __init__(self, tritons: list[Simulator], client: aiohttp.ClientSession) -> None:
        self.tritons = tritons
        self.client = client
        self.others: list[asyncio.Task[None]] = []

    def direct(self, number: int) -> str:
        ports = self.tritons[number].ports
        return f"{ports.host}:{ports.http_port}"

    def served(self) -> list[int]:
        return [each.triton.counters["simple"].success for each in self.tritons]

    def let_others(self, number: int, clients: int, model: str, body: object) -> None:
        """Have others send their next request whenever they have an answer."""

        async def repeat() -> None:
            while True:
                await infer(self.client, self.direct(number), model, body)

        self.others = [asyncio.ensure_future(repeat()) for _ in range(clients)]

    async def end_others(self) -> None:
        for each in self.others:
            each.cancel()
        await asyncio.gather(*self.others, return_exceptions=True)

    def config(self) -> dict[str, Any]:
        return {
            "listen": {"http": "127.0.0.1:0"},
            "scheduling": {"max_requests_per_backend": "auto", "load_poll_interval": "100ms"},
            "backends": [
                {
                    "name": f"t{number}",
                    "http": self.direct(number),
                    "metrics": f"{each.ports.host}:{each.ports.metrics_port}",
                }
                for number, each in enumerate(self.tritons)
            ],
        }


@asynccontextmanager
async def scene(*speeds: float) -> AsyncIterator[Scene]:
    """A Triton of each speed, each with a GPU of its own."""
    async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
        tritons = []
        for number, speed in enumerate(speeds):
            gpu = SimulatedGpu(f"GPU-{number}", interval_s=0.2)
            triton = SimulatedTriton(("simple", "sleeper"), speed, gpu)
            tritons.append(await stack.enter_async_context(Simulator(triton, Ports())))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        made = Scene(tritons, client)
        try:
            yield made
        finally:
            await made.end_others()


def lane(balancer: Balancer, name: str) -> ModelBackendView:
    return next(each for each in balancer.model_backends() if each.backend.name == name)


async def test_a_start_knows_how_fast_tritons_are_that_have_served_others() -> None:
    async with scene(0.01, 0.2) as made:  # slow enough that a busy machine changes little
        for number in range(2):
            for _ in range(12):
                await infer(made.client, made.direct(number))
        before = made.served()
        async with running_balancer(made.config()) as balancer:
            for _ in range(8):
                await infer(made.client, balancer.address("http"))
            assert [lane(balancer, name).learnt for name in ("t0", "t1")] == [0, 8]
            assert 0.1 < lane(balancer, "t0").expected_s < 2.0
        assert made.served() == [before[0], before[1] + 8]


@pytest.mark.parametrize(
    ("clients", "model", "body"),
    [(4, "sleeper", SLEEPY), (12, "simple", SIMPLE)],
    ids=["on its device", "of the same model"],
)
async def test_where_others_are_busy_our_requests_are_fewer_until_they_leave(
    clients: int, model: str, body: object
) -> None:
    # So slow that what a busy machine adds to a request is little beside what Triton takes.
    async with scene(0.02, 0.02) as made, running_balancer(made.config()) as balancer:
        address = balancer.address("http")
        record = balancer.product.control.directory.find("t0")

        def is_alone() -> bool:
            load = record.load
            return load is not None and load.others == 0.0 and lane(balancer, "t0").slowed < 1.2

        # Two at a time: one after the other they may all go to the Triton that chance made faster.
        while sum(each.learnt > 5 for each in balancer.model_backends()) < 2:
            await asyncio.gather(infer(made.client, address), infer(made.client, address))
        # Where a machine stands still meanwhile, the other Triton looks slow, ours come here and
        # learn how fast this one is all the same. So the others come again.
        for _ in range(_TRIES):
            # What we did there ourselves makes nobody slower, also a while later.
            await eventually(is_alone, LEARNT_S)
            made.let_others(0, clients, model, body)
            await eventually(lambda: lane(balancer, "t0").slowed > 1.3, LEARNT_S)
            assert record.load is not None
            assert record.load.devices[0].memory_total is not None
            before = made.served()[1]
            for _ in range(_OURS):
                await infer(made.client, address)
            theirs = made.served()[1] - before
            await made.end_others()
            if theirs >= _OURS * 0.7:
                break
        else:
            pytest.fail("others kept none of our requests away")
        await eventually(lambda: lane(balancer, "t0").slowed < 1.2, LEARNT_S)
