"""`max_connection_age`: clients connect anew and lose nothing, over both protocols."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import grpc
import grpc.aio

from lb.kserve import inference_pb2 as pb
from lb.settings.model import Settings
from lb.simulator.process import Ports
from tests.fakes.balancer import Balancer, running_balancer

BOTH_LOOPS = True
_AGE_S = 0.1
_LIMIT_S = 60.0
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_READY = "/inference.GRPCInferenceService/ModelMetadata"


def tree(triton: Ports, age_s: float = _AGE_S) -> dict[str, Any]:
    listener = {"address": "127.0.0.1:0", "max_connection_age": age_s}
    backend = {
        "http": f"127.0.0.1:{triton.http_port}",
        "grpc": f"127.0.0.1:{triton.grpc_port}",
    }
    return {"listen": {"http": listener, "grpc": listener}, "backends": [backend]}


async def until_accepted(balancer: Balancer, count: int, call: Any) -> int:
    """Call until so many connections have come; how many calls that took."""
    calls = 0
    async with asyncio.timeout(_LIMIT_S):
        while balancer.accepted < count:
            await call()
            calls += 1
    return calls


def sleeper(milliseconds: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="sleeper")
    tensor = request.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
    tensor.contents.int_contents.append(milliseconds)
    return request


async def test_grpc_clients_connect_anew_and_their_calls_and_streams_go_on(triton: Ports) -> None:
    async with (
        running_balancer(tree(triton)) as balancer,
        grpc.aio.insecure_channel(balancer.address("grpc")) as channel,
    ):
        stream = channel.stream_stream(
            _STREAM,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )(wait_for_ready=True)
        await stream.write(sleeper(1))
        first = await stream.read()
        assert not first.error_message
        ask = channel.unary_unary(_READY)
        message = pb.ModelMetadataRequest(name="simple").SerializeToString()
        await until_accepted(balancer, 4, lambda: ask(message, timeout=_LIMIT_S))
        # The stream still has the connection that it began on, which takes nothing new.
        await stream.write(sleeper(2))
        second = await stream.read()
        assert not second.error_message
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() is grpc.StatusCode.OK


async def test_http_clients_are_told_with_an_answer_and_connect_anew(triton: Ports) -> None:
    async with (
        running_balancer(tree(triton)) as balancer,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session,
    ):
        url = f"http://{balancer.address('http')}/v2/models/simple"
        closed = 0

        async def ask() -> None:
            nonlocal closed
            async with session.get(url) as response:
                assert response.status == 200
                await response.read()
                closed += response.headers.get("Connection") == "close"

        calls = await until_accepted(balancer, 4, ask)
        assert closed == 3
        assert calls > 3


async def test_a_request_that_outlives_the_age_is_answered_and_told(triton: Ports) -> None:
    async with running_balancer(tree(triton)) as balancer:
        host, port = balancer.address("http").rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        body = b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[%d]}]}' % (
            2500 * _AGE_S
        )
        head = b"POST /v2/models/sleeper/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
        began = time.monotonic()
        async with asyncio.timeout(_LIMIT_S):
            writer.write(head % len(body) + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in answer.lower()
            assert time.monotonic() - began > 1.1 * _AGE_S
            await reader.read()
        writer.close()
        assert balancer.accepted == 1


async def test_a_reload_limits_connections_that_stand(triton: Ports) -> None:
    async with (
        running_balancer(tree(triton, 0.0)) as balancer,
        grpc.aio.insecure_channel(balancer.address("grpc")) as channel,
    ):
        ask = channel.unary_unary(_READY)
        message = pb.ModelMetadataRequest(name="simple").SerializeToString()
        for _ in range(3):
            await ask(message, timeout=_LIMIT_S)
        assert balancer.accepted == 1
        balancer.reload(Settings.model_validate(tree(triton)))
        await until_accepted(balancer, 3, lambda: ask(message, timeout=_LIMIT_S))
