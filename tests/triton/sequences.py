"""Many sequences at once on the accumulator, over both protocols, with as little cost as can be."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from random import Random
from types import TracebackType

import aiohttp
import grpc
import grpc.aio

from lb.kserve import inference_pb2 as pb
from tests.triton.target import Target

_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_AT_ONCE = 64


class StepFailed(Exception):
    """A step was answered with an error."""


@dataclass
class Sequence:
    """One sequence, and what its client knows of it."""

    id: int | str
    total: int = 0
    servers: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)


class Steps:
    """Sends steps, at most `_AT_ONCE` at a time."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._rng = Random(7)
        self._grpc_share = 0.5

    async def __aenter__(self) -> Steps:
        self._channel = grpc.aio.insecure_channel(self._target.grpc)
        self._infer = self._channel.unary_unary(
            _METHOD, response_deserializer=pb.ModelInferResponse.FromString
        )
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_AT_ONCE))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._http.close()
        await self._channel.close()

    def use_grpc_only(self) -> None:
        """Send no step over HTTP from now on."""
        self._grpc_share = 1.0

    async def all(
        self, sequences: list[Sequence], *, start: bool = False, end: bool = False
    ) -> None:
        """One step of each, interleaved, each over either protocol by chance."""
        await asyncio.gather(*(self.step(each, start=start, end=end) for each in sequences))

    async def step(self, sequence: Sequence, *, start: bool = False, end: bool = False) -> None:
        """One step; notes whether the sum was right, and which server answered."""
        value = self._rng.randrange(1000)
        send = self.over_grpc if self._rng.random() < self._grpc_share else self.over_http
        async with self._room:
            try:
                total, server = await send(sequence.id, value, start=start, end=end)
            except StepFailed as error:
                sequence.wrong.append(str(error))
                return
        sequence.total = value if start else sequence.total + value
        sequence.servers.add(server)
        if total != sequence.total:
            sequence.wrong.append(f"{total} instead of {sequence.total}")

    async def over_grpc(
        self, sequence_id: int | str, value: int, *, start: bool = False, end: bool = False
    ) -> tuple[int, str]:
        """The sum and the server that a unary call was answered with."""
        request = pb.ModelInferRequest(model_name="accumulator")
        request.inputs.add(name="VALUE", datatype="INT32", shape=[1, 1])
        request.raw_input_contents.append(value.to_bytes(4, "little"))
        if isinstance(sequence_id, int):
            request.parameters["sequence_id"].int64_param = sequence_id
        else:
            request.parameters["sequence_id"].string_param = sequence_id
        request.parameters["sequence_start"].bool_param = start
        request.parameters["sequence_end"].bool_param = end
        try:
            answer = await self._infer(request.SerializeToString(), timeout=60.0)
        except grpc.aio.AioRpcError as error:
            raise StepFailed(f"{error.code().name}: {error.details()}") from error
        total, server = answer.raw_output_contents
        return int.from_bytes(total, "little"), server[4:].decode()

    async def over_http(
        self, sequence_id: int | str, value: int, *, start: bool = False, end: bool = False
    ) -> tuple[int, str]:
        """The same for HTTP with tensors in JSON, whose parameters come last."""
        tensor = {"name": "VALUE", "datatype": "INT32", "shape": [1, 1], "data": [value]}
        said = {"sequence_id": sequence_id, "sequence_start": start, "sequence_end": end}
        url = f"http://{self._target.http}/v2/models/accumulator/infer"
        body = json.dumps({"inputs": [tensor], "parameters": said})
        async with self._http.post(url, data=body) as response:
            answer = json.loads(await response.read())
        if response.status != 200:
            raise StepFailed(f"{response.status}: {answer['error']}")
        outputs = {each["name"]: each["data"][0] for each in answer["outputs"]}
        return outputs["SUM"], outputs["SERVER"]
