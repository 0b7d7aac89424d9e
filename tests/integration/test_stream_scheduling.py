"""Streams and sequences count as work, over sockets: faster backends get more of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import grpc

from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute
from lb.domain.schedule import Capacity, QueuePlan
from tests.fakes.grpc_server import grpc_channel
from tests.fakes.relay import RunningRelay, running_relay, snapshot_of
from tests.fakes.stream_backend import StreamBackend, StreamClient, step, stream_backend
from tests.wire.waiting import eventually

BOTH_LOOPS = True
PLAN = QueuePlan(limits={}, default=Capacity(1, is_auto=True))
ROUTES = {
    b"work": ModelRoute(
        facts=ModelFacts(is_stateful=False, is_decoupled=False, instances=1),
        is_uniform=True,
        plan=PLAN,
    ),
    b"seq": ModelRoute(facts=ModelFacts(is_stateful=True, is_decoupled=False, idle_s=60.0)),
}


class Setup:
    """A relay before backends whose requests take so long."""

    def __init__(
        self, relay: RunningRelay, backends: list[StreamBackend], channel: grpc.aio.Channel
    ) -> None:
        self.relay = relay
        self.backends = backends
        self.stream = StreamClient(channel)

    @property
    def under_way(self) -> int:
        """Requests that the scheduler knows of."""
        return sum(self.relay.queue.in_flight)


@asynccontextmanager
async def running(*takes_s: float) -> AsyncIterator[Setup]:
    async with AsyncExitStack() as stack:
        backends = [
            await stack.enter_async_context(stream_backend(f"b{n}")) for n in range(len(takes_s))
        ]
        for backend, seconds in zip(backends, takes_s, strict=True):
            backend.takes_s = seconds
        targets = [backend.target for backend in backends]
        relay = await stack.enter_async_context(running_relay(*targets))
        relay.pool.publish(replace(snapshot_of(relay.backends), routes=ROUTES))
        channel = await stack.enter_async_context(grpc_channel(relay.target))
        yield Setup(relay, backends, channel)
        await channel.close()
        await relay.until_clean()


async def test_requests_of_one_stream_are_spread_by_speed_and_answered_in_order() -> None:
    async with running(0.01, 0.1) as setup:
        stream = setup.stream
        served: Counter[str] = Counter()
        for batch in range(6):
            names = [f"{batch}.{number}" for number in range(20)]
            await stream.send(*(step("work", 0, name) for name in names))
            answers = await stream.answers(len(names))
            assert [name for name, _ in answers] == names
            served.update(place for _, place in answers)
        assert setup.under_way == 0
        # Without delays it is ten to one; a busy machine adds the same delay to both times.
        assert served["b0"] > served["b1"] > 0
        assert await stream.end() is grpc.StatusCode.OK


async def test_a_client_that_waits_for_each_answer_keeps_its_backend() -> None:
    async with running(0.001, 0.001) as setup:
        for number in range(30):
            await setup.stream.send(step("work", 0, f"{number}"))
            assert [name for name, _ in await setup.stream.answers(1)] == [f"{number}"]
        assert sorted(backend.streams for backend in setup.backends) == [0, 1]
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_a_client_that_leaves_leaves_nothing_under_way() -> None:
    async with running(0.0, 0.0) as setup:
        for backend in setup.backends:
            backend.gate.clear()
        await setup.stream.send(*(step("work", 0, f"{number}") for number in range(12)))
        await eventually(lambda: setup.under_way == 12)
        setup.stream.call.cancel()
        await eventually(lambda: setup.under_way == 0)


async def test_a_faster_backend_gets_more_sequences() -> None:
    async with running(0.002, 0.05) as setup:
        stream = setup.stream
        for round_ in range(20):
            is_last = round_ == 19
            for number in range(1, 5):
                await stream.send(step("seq", number, start=not round_, end=is_last))
                await stream.answers(1)
        assert setup.relay.open_sequences == 0
        await stream.send(*(step("seq", number, start=True) for number in range(101, 141)))
        await stream.answers(40)
        fast, slow = (backend.open_sequences for backend in setup.relay.backends)
        assert fast + slow == 40
        assert fast > slow > 0
        assert await stream.end() is grpc.StatusCode.OK
