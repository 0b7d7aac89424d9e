"""One ModelStreamInfer call: many inferences, answered as Triton orders the answers.

Answers of ordinary models leave in the order of their requests, errors among them, although the
models run side by side; a decoupled model's leave as they come. An error does not end the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from lb.kserve import inference_pb2 as pb
from lb.simulator import grpc_infer
from lb.simulator.errors import TritonError
from lb.simulator.models import InferRequest
from lb.simulator.server import SimulatedTriton
from lb.simulator.tensors import Tensor

Send = Callable[[pb.ModelStreamInferResponse], Awaitable[None]]


class InferStream:
    """Runs the requests of one stream; `run` ends when all of them are answered."""

    def __init__(self, triton: SimulatedTriton) -> None:
        self._triton = triton
        self._models: set[str] = set()
        """Models that it has asked for while they were loaded."""
        self._answers: asyncio.Queue[pb.ModelStreamInferResponse | None] = asyncio.Queue()

    async def run(self, requests: AsyncIterator[pb.ModelInferRequest], send: Send) -> None:
        """Answer every request through `send`, which is called by one task at a time."""
        self._triton.stream_began(self._models)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(requests))
                while (answer := await self._answers.get()) is not None:
                    await send(answer)
        finally:
            self._triton.stream_ended(self._models)

    async def _read(self, requests: AsyncIterator[pb.ModelInferRequest]) -> None:
        turn = asyncio.Event()
        turn.set()
        try:
            async with asyncio.TaskGroup() as inferences:
                async for message in requests:
                    next_turn = asyncio.Event() if self._is_ordered(message) else turn
                    inferences.create_task(self._infer(message, turn, next_turn))
                    turn = next_turn
        finally:
            self._answers.put_nowait(None)

    def _is_ordered(self, message: pb.ModelInferRequest) -> bool:
        try:
            return not self._triton.find(message.model_name, message.model_version).decoupled
        except TritonError:
            return True

    async def _infer(
        self, message: pb.ModelInferRequest, turn: asyncio.Event, next_turn: asyncio.Event
    ) -> None:
        """Infer once; a request that is answered in order waits for `turn`, then sets the next."""
        ordered = turn is not next_turn
        answers: list[pb.ModelStreamInferResponse] = []

        async def respond(tensors: tuple[Tensor, ...]) -> None:
            response = grpc_infer.render(request, tensors)
            response.parameters[grpc_infer.FINAL_RESPONSE].bool_param = ordered
            answer = pb.ModelStreamInferResponse(infer_response=response)
            if ordered:
                answers.append(answer)
            else:
                self._answers.put_nowait(answer)

        try:
            request = grpc_infer.parse(message)
            if self._triton.is_model_ready(request.model):
                self._models.add(request.model)
            await self._triton.infer(request, respond)
            if not ordered and request.parameters.get(grpc_infer.EMPTY_FINAL_RESPONSE):
                answers.append(_empty_final(request))
        except TritonError as error:
            refused = pb.ModelInferResponse(id=message.id)
            answers = [
                pb.ModelStreamInferResponse(error_message=error.text, infer_response=refused)
            ]
        if ordered:
            await turn.wait()
        for answer in answers:
            self._answers.put_nowait(answer)
        if ordered:
            next_turn.set()


def _empty_final(request: InferRequest) -> pb.ModelStreamInferResponse:
    """Return the message that tells that a decoupled request is done; names are as requested."""
    response = pb.ModelInferResponse(
        model_name=request.model, model_version=request.version, id=request.id
    )
    response.parameters[grpc_infer.FINAL_RESPONSE].bool_param = True
    return pb.ModelStreamInferResponse(infer_response=response)
