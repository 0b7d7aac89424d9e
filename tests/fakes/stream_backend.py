"""A backend whose `ModelStreamInfer` answers as Triton's does, and says which backend it is.

Models whose names begin with `free` are decoupled: they answer as often as their version says (""
is once, "0" not at all) and at once. All others answer once, in order, and while `gate` is closed
not at all. Models of which `errors` speaks fail as requests do that Triton does not run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio

from lb.kserve import inference_pb2 as pb
from tests.fakes.grpc_server import CHANNEL_OPTIONS


class StreamBackend(grpc.GenericRpcHandler):
    """One of them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gate = asyncio.Event()
        self.gate.set()
        self.target = ""
        self.seen: list[pb.ModelInferRequest] = []
        """All requests, in the order in which they came."""
        self.errors: dict[str, str] = {}
        """Texts of errors by model."""
        self.ends: dict[str, grpc.StatusCode] = {}
        """Models whose requests end the stream, with which status."""
        self.streams = 0
        self.half_closed = 0
        self.cancelled = 0
        self.answer_bytes = 0
        """Size of the tensor in every answer."""
        self.takes_s = 0.0
        """What each request takes, one after the other."""
        self.lost: set[str] = set()
        """Ids of requests that are never answered."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method.endswith("/ModelInfer"):
            return grpc.unary_unary_rpc_method_handler(
                self._infer,
                request_deserializer=pb.ModelInferRequest.FromString,
                response_serializer=pb.ModelInferResponse.SerializeToString,
            )
        return grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=pb.ModelInferRequest.FromString,
            response_serializer=pb.ModelStreamInferResponse.SerializeToString,
        )

    async def _infer(
        self, request: pb.ModelInferRequest, _context: grpc.aio.ServicerContext
    ) -> pb.ModelInferResponse:
        self.seen.append(request)
        return self._answer(request).infer_response

    async def _stream(
        self, requests: AsyncIterator[pb.ModelInferRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.ModelStreamInferResponse]:
        self.streams += 1
        ready: asyncio.Queue[pb.ModelStreamInferResponse | None] = asyncio.Queue()
        reading = asyncio.ensure_future(self._read(requests, context, ready))
        try:
            while (answer := await ready.get()) is not None:
                yield answer
            await reading
            self.half_closed += 1
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            reading.cancel()

    async def _read(
        self,
        requests: AsyncIterator[pb.ModelInferRequest],
        context: grpc.aio.ServicerContext,
        ready: asyncio.Queue[pb.ModelStreamInferResponse | None],
    ) -> None:
        waiting: list[pb.ModelInferRequest] = []

        async def answer_in_order() -> None:
            while True:
                await self.gate.wait()
                while waiting:
                    if self.takes_s:
                        await asyncio.sleep(self.takes_s)
                    ready.put_nowait(self._answer(waiting.pop(0)))
                arrived.clear()
                await arrived.wait()

        arrived = asyncio.Event()
        answering = asyncio.ensure_future(answer_in_order())
        async for request in requests:
            self.seen.append(request)
            if request.model_name in self.ends:
                context.set_code(self.ends[request.model_name])
                context.set_details("ended by its model")
                break
            if request.model_name.startswith("free"):
                for _ in range(int(request.model_version or 1)):
                    ready.put_nowait(self._answer(request))
            elif request.id not in self.lost:
                waiting.append(request)
                arrived.set()
        while waiting and request.model_name not in self.ends:
            await self.gate.wait()
            await asyncio.sleep(0)
        answering.cancel()
        ready.put_nowait(None)

    def _answer(self, request: pb.ModelInferRequest) -> pb.ModelStreamInferResponse:
        if request.model_name in self.errors:
            return pb.ModelStreamInferResponse(
                error_message=self.errors[request.model_name],
                infer_response=pb.ModelInferResponse(id=request.id),
            )
        answer = pb.ModelInferResponse(
            model_name=request.model_name,
            id=request.id,
            raw_output_contents=[b"\0" * self.answer_bytes] if self.answer_bytes else [],
        )
        answer.parameters["backend"].string_param = self.name
        return pb.ModelStreamInferResponse(infer_response=answer)


@asynccontextmanager
async def stream_backend(name: str) -> AsyncIterator[StreamBackend]:
    """Run one on a free port of loopback."""
    backend = StreamBackend(name)
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    server.add_generic_rpc_handlers((backend,))
    backend.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    backend.stop = server.stop
    try:
        yield backend
    finally:
        backend.gate.set()
        await server.stop(None)


def step(
    model: str,
    sequence: int | str = 0,
    request_id: str = "",
    *,
    start: bool = False,
    end: bool = False,
    version: str = "",
    tensor: bytes = b"",
) -> pb.ModelInferRequest:
    """A request; of a sequence if it has a number or name."""
    request = pb.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    if sequence:
        parameters = request.parameters
        if isinstance(sequence, int):
            parameters["sequence_id"].int64_param = sequence
        else:
            parameters["sequence_id"].string_param = sequence
        parameters["sequence_start"].bool_param = start
        parameters["sequence_end"].bool_param = end
    if tensor:
        request.raw_input_contents.append(tensor)
    return request


class StreamClient:
    """One stream to a relay."""

    def __init__(self, channel: grpc.aio.Channel, **options: object) -> None:
        self.call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )(**options)

    async def send(self, *requests: pb.ModelInferRequest) -> None:
        for request in requests:
            await self.call.write(request)

    async def answer(self) -> tuple[str, str]:
        """The id of the next answer, and which backend gave it; an error's text instead."""
        answer = await asyncio.wait_for(self.call.read(), 20)
        if answer is grpc.aio.EOF:
            raise EOFError
        response = answer.infer_response
        if answer.error_message:
            return response.id, answer.error_message
        return response.id, response.parameters["backend"].string_param

    async def answers(self, count: int) -> list[tuple[str, str]]:
        return [await self.answer() for _ in range(count)]

    async def end(self) -> grpc.StatusCode:
        """Half-close. The status of the stream; all answers were read before."""
        await self.call.done_writing()
        assert await self.rest() == []
        return await self.call.code()

    async def rest(self) -> list[tuple[str, str]]:
        """All answers until the stream ends, however it does."""
        answers = []
        try:
            while True:
                answers.append(await self.answer())
        except (grpc.aio.AioRpcError, EOFError):
            return answers
