"""Compressed batches, and compressed answers to their parts: a few bytes that may become many."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import grpc.aio
import pytest

from lb.kserve import inference_pb2 as pb
from tests.fakes.gated import until
from tests.fakes.grpc_server import grpc_backend, grpc_channel, path
from tests.fakes.relay import RunningRelay, running_http1_relay, running_relay
from tests.wire.http1 import Peer, raw_client, reply, scripted_backend

LIMIT_S = 60.0
CEILING = 4 << 20
"""Bytes that the relay may hold: less than what is compressed here."""
LARGE = 8 << 20
PARTS = 3
ROWS = 3
GZIP = grpc.Compression.Gzip


class Backend(grpc.GenericRpcHandler):
    """Answers each part, compressed, with as many zeros as it is told."""

    def __init__(self) -> None:
        self.size = 4

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self._infer)

    async def _infer(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        rows = pb.ModelInferRequest.FromString(request).inputs[0].shape[0]
        answer = pb.ModelInferResponse(model_name="m", model_version="1")
        answer.outputs.add(name="OUT", datatype="UINT8", shape=[rows, self.size])
        answer.raw_output_contents.append(bytes(rows * self.size))
        return answer.SerializeToString()


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
async def relay(backend: Backend) -> AsyncIterator[RunningRelay]:
    async with asyncio.timeout(LIMIT_S), AsyncExitStack() as stack:
        targets = [
            await stack.enter_async_context(grpc_backend(backend, compression=GZIP))
            for _ in range(PARTS)
        ]
        relay = await stack.enter_async_context(running_relay(*targets, ceiling=CEILING))
        relay.split(b"m", 1)
        yield relay
        await until(relay.is_clean, "nothing is left")


async def ask(relay: RunningRelay, size: int = 4) -> bytes:
    """Send a batch, compressed, whose rows have so many bytes each."""
    request = pb.ModelInferRequest(model_name="m")
    request.inputs.add(name="IN", datatype="UINT8", shape=[ROWS, size])
    request.raw_input_contents.append(bytes(ROWS * size))
    async with grpc_channel(relay.target) as channel:
        infer = channel.unary_unary(path("ModelInfer"))
        answer = await infer(request.SerializeToString(), compression=GZIP)
    [found] = pb.ModelInferResponse.FromString(answer).raw_output_contents
    return bytes(found)


async def test_compressed_answers_are_joined(relay: RunningRelay, backend: Backend) -> None:
    for size in (4, 200_000):
        backend.size = size
        assert await ask(relay) == bytes(ROWS * size)


async def test_answers_that_inflate_beyond_the_memory_end_their_batch_alone(
    relay: RunningRelay, backend: Backend
) -> None:
    backend.size = LARGE
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await ask(relay)
    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await until(relay.is_clean, "nothing is left")
    backend.size = 4
    assert await ask(relay) == bytes(ROWS * 4)


async def test_a_batch_that_inflates_beyond_the_memory_ends_alone(relay: RunningRelay) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await ask(relay, LARGE)
    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await until(relay.is_clean, "nothing is left")
    assert await ask(relay) == bytes(ROWS * 4)


async def test_an_http_batch_that_inflates_beyond_the_memory_ends_alone() -> None:
    async def play(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(reply(b"{}"))

    text = json.dumps(
        {"inputs": [{"name": "IN", "datatype": "UINT8", "shape": [ROWS, 1], "data": [0] * ROWS}]}
    )
    body = gzip.compress(text.encode() + b" " * LARGE)
    head = (
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    async with (
        asyncio.timeout(LIMIT_S),
        scripted_backend(play) as backend,
        running_http1_relay(str(backend.target), ceiling=CEILING) as relay,
    ):
        relay.split(b"m", 1)
        async with raw_client(relay.port) as client:
            await client.send(head + body)
            answer = await client.answer("POST")
        assert answer.status == 503
        await until(relay.is_clean, "nothing is left")
