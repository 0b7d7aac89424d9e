"""Streams before simulated Tritons with room for one model each: messages have their models loaded,
and a stream whose requests are answered keeps no model in its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from lb.kserve import inference_pb2 as pb
from lb.simulator.process import Simulator
from tests.fakes.balancer import Balancer, running_balancer
from tests.fakes.grpc_server import grpc_channel
from tests.fakes.stream_backend import StreamClient
from tests.integration.test_standby_models import backend, explicit, loaded, tree
from tests.wire.waiting import eventually

PATIENCE_S = 20.0
"""Less than the half minute for which a model is left in peace that was in use when it was to be
evicted."""
LONG_MS = 60_000
MODELS = ("identity_fp32", "repeat_int32", "simple", "sleeper")
FIRST, SECOND, DECOUPLED = "sleeper", "identity_fp32", "repeat_int32"


def ask(model: str, name: str, sleep_ms: int = 0) -> pb.ModelInferRequest:
    """A request for one of these models; that for `FIRST` takes so long."""
    message = pb.ModelInferRequest(model_name=model, id=name)
    tensors = {
        FIRST: [("INPUT0", "INT32", [1], sleep_ms)],
        SECOND: [("INPUT0", "FP32", [1], 0)],
        DECOUPLED: [("IN", "INT32", [1], 7)],
    }
    if model == DECOUPLED:
        tensors[model] += [(name, "UINT32", [1], 0) for name in ("DELAY", "WAIT")]
    for tensor, datatype, shape, value in tensors[model]:
        message.inputs.add(name=tensor, datatype=datatype, shape=shape)
        message.raw_input_contents.append(value.to_bytes(4, "little"))
    return message


class Setup:
    """A balancer before these Tritons."""

    def __init__(
        self, balancer: Balancer, tritons: list[Simulator], channel: grpc.aio.Channel
    ) -> None:
        self.balancer = balancer
        self.tritons = tritons
        self.channel = channel
        self.stream = StreamClient(channel)

    async def exchange(self, *requests: pb.ModelInferRequest) -> list[str]:
        """Send messages; gives the ids of as many answers, none of which is an error."""
        await self.stream.send(*requests)
        names = []
        for _ in requests:
            answer = await asyncio.wait_for(self.stream.call.read(), PATIENCE_S)
            assert not answer.error_message
            names.append(answer.infer_response.id)
        return names

    async def infer(self, model: str) -> None:
        """A unary request."""
        call = self.channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        await call(ask(model, "unary"), timeout=PATIENCE_S)

    def loaded(self) -> list[set[str]]:
        return [loaded(triton) for triton in self.tritons]

    def uses(self, model: str) -> int:
        """What of a model runs on the first Triton, as evictions see it."""
        directory = self.balancer.product.control.directory
        return directory.model_use(directory.records[0].backend, model.encode()).in_flight


@asynccontextmanager
async def running(count: int = 1) -> AsyncIterator[Setup]:
    placement = {"mode": "on_demand", "max_models": 1, "min_age": "0s", "wait": "60s"}
    async with asyncio.timeout(80), explicit(*MODELS) as first, explicit(*MODELS) as second:
        tritons = [first, second][:count]
        config = tree(
            *(backend(f"gpu-{n}", each.ports) for n, each in enumerate(tritons)),
            placement=placement,
        )
        async with (
            running_balancer(config) as balancer,
            grpc_channel(balancer.address("grpc")) as channel,
        ):
            setup = Setup(balancer, tritons, channel)
            yield setup
            setup.stream.call.cancel()


@pytest.mark.parametrize("count", [1, 2])
async def test_each_message_of_a_stream_has_its_model_loaded(count: int) -> None:
    async with running(count) as setup:
        for number in range(2):
            names = [f"{number}.{model}" for model in (FIRST, SECOND)]
            assert await setup.exchange(ask(FIRST, names[0]), ask(SECOND, names[1])) == names
        assert setup.loaded()[0] <= {FIRST, SECOND}
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_a_stream_whose_requests_are_answered_keeps_no_model() -> None:
    async with running() as setup:
        assert await setup.exchange(ask(FIRST, "a")) == ["a"]
        assert setup.uses(FIRST) == 0
        await setup.infer(SECOND)
        assert setup.loaded() == [{SECOND}]
        assert setup.balancer.product.control.placement.counts().evictions == {"room": 1}
        assert await setup.exchange(ask(FIRST, "b")) == ["b"]
        assert setup.loaded() == [{FIRST}]
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_a_stream_counts_for_the_models_whose_answers_it_waits_for() -> None:
    async with running() as setup:
        await setup.exchange(ask(FIRST, "a"))
        await setup.stream.send(ask(FIRST, "b", LONG_MS))
        await eventually(lambda: setup.uses(FIRST) == 1)
        assert setup.uses(SECOND) == 0


async def test_a_stream_over_several_backends_counts_as_one_over_one_backend() -> None:
    async with running(2) as setup:
        await setup.exchange(ask(FIRST, "a"), ask(SECOND, "b"))
        assert sorted(setup.loaded(), key=str) == sorted([{FIRST}, {SECOND}], key=str)
        directory = setup.balancer.product.control.directory

        def uses(model: str) -> int:
            backends = [record.backend for record in directory.records]
            return sum(directory.model_use(each, model.encode()).in_flight for each in backends)

        assert (uses(FIRST), uses(SECOND)) == (0, 0)
        await setup.stream.send(ask(FIRST, "c", LONG_MS))
        await eventually(lambda: (uses(FIRST), uses(SECOND)) == (1, 0))


async def test_a_stream_counts_for_a_decoupled_model_until_it_is_to_be_evicted() -> None:
    async with running() as setup:
        await setup.stream.send(ask(DECOUPLED, "a"))
        answer = await asyncio.wait_for(setup.stream.call.read(), PATIENCE_S)
        assert answer.infer_response.id == "a"
        assert (setup.uses(DECOUPLED), setup.uses(FIRST)) == (1, 0)
        await setup.infer(
            FIRST
        )  # its stream at the Triton ends, and so it is known that it is idle
        assert setup.loaded() == [{FIRST}]
        await setup.stream.send(ask(DECOUPLED, "b"))
        answer = await asyncio.wait_for(setup.stream.call.read(), PATIENCE_S)
        assert answer.infer_response.id == "b"
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_what_a_stream_asks_for_again_and_again_counts_as_used() -> None:
    """Also messages that go on unseen: such a model is worth more than others."""
    async with running() as setup:
        await setup.exchange(ask(FIRST, "a"))
        used = setup.balancer.product.relay.models_streamed
        used()
        for _ in range(3):
            assert set(used()) == set()
            await setup.exchange(*(ask(FIRST, f"{number}") for number in range(5)))
            assert set(used()) == {FIRST.encode()}
        await setup.exchange(ask(SECOND, "b"), ask(SECOND, "c"))
        assert set(used()) >= {SECOND.encode()}
        await setup.exchange(ask(SECOND, "d"))
        assert set(used()) == {SECOND.encode()}
