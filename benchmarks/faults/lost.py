"""Requests that Tritons never answer, and good ones for the same model beside them or behind them.

Triton loses a batch of zero rows on a model without dynamic batching.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import grpc
import grpc.aio

from benchmarks.faults.load import DEADLINE_S
from lb.kserve import inference_pb2 as pb
from lb.kserve import messages
from tests.triton.target import Target

_MODEL: Final = "ledger_rows"
_GOOD: Final = 10
"""Requests that have to be answered beside each one that is lost."""
_LEAVES_S: Final = 0.3
_BEHIND_MANY_S: Final = 10.0
"""How long a good request behind hundreds of lost ones may take: twice as many are tried with each
second."""


def _body(*texts: str) -> bytes:
    tensor = {"name": "TEXT", "datatype": "BYTES", "shape": [len(texts), min(len(texts), 1)]}
    body = json.dumps({"inputs": [tensor | {"data": list(texts)}]}).encode()
    head = f"POST /v2/models/{_MODEL}/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def _message(*texts: str) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=_MODEL)
    shape = [len(texts), min(len(texts), 1)]
    tensor = request.inputs.add(name="TEXT", datatype="BYTES", shape=shape)
    if texts:
        tensor.contents.bytes_contents.extend(text.encode() for text in texts)
    else:
        request.raw_input_contents.append(b"")
    return request


async def _leave_one(target: Target) -> None:
    """Send a request that is lost, and leave."""
    host, _, port = target.http.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(_body())
    try:
        await asyncio.wait_for(reader.read(1), _LEAVES_S)
    except TimeoutError:
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


async def _is_served(target: Target, within_s: float = DEADLINE_S) -> bool:
    """Whether one good request over HTTP is answered in time."""
    host, _, port = target.http.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(_body("good"))
        status = await asyncio.wait_for(reader.readline(), within_s)
        return status.startswith(b"HTTP/1.1 200")
    except (TimeoutError, OSError):
        return False
    finally:
        writer.close()


async def _learn(target: Target) -> int:
    """Have what an execution takes be learnt; how many requests are not answered."""
    return sum([not await _is_served(target) for _ in range(2 * _GOOD)])


async def unserved_beside(target: Target, times: int) -> int:
    """Send so many requests that are lost, one after the other; half of those who send them leave,
    the others wait. Returns how many good ones beside them are not answered."""
    unserved = await _learn(target)
    async with _lost_calls(target) as lose:
        for number in range(times):
            if number % 2:
                lose()
                await asyncio.sleep(_LEAVES_S)
            else:
                await _leave_one(target)
            for _ in range(_GOOD):
                unserved += not await _is_served(target)
    return unserved


async def unserved_behind(target: Target, times: int) -> int:
    """Send so many requests that are lost at once, and wait for all of them. Returns how many good
    ones that come later are not answered."""
    unserved = await _learn(target)
    async with _lost_calls(target) as lose:
        for _ in range(times):
            lose()
        await asyncio.sleep(_LEAVES_S)
        for _ in range(_GOOD):
            unserved += not await _is_served(target, _BEHIND_MANY_S)
    return unserved


@asynccontextmanager
async def _lost_calls(target: Target) -> AsyncIterator[Callable[[], None]]:
    """Calls over gRPC that wait for an answer which never comes, until the end."""
    method = messages.MODEL_INFER
    async with grpc.aio.insecure_channel(target.grpc) as channel:
        infer = channel.unary_unary(
            method.path, request_serializer=method.encode, response_deserializer=method.decode
        )
        calls = []
        yield lambda: calls.append(infer(_message()))
        for call in calls:
            call.cancel()
