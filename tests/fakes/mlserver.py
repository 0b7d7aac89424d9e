"""A small server of the v2 protocol that is no Triton, in the ways of MLServer and KServe."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
from aiohttp import web

from lb.kserve import inference_pb2 as pb
from tests.fakes.two_ports import two_ports

STREAMED = pb.ModelInferResponse(model_name="triton_python_backend_shm_region_", id="7")
"""Its streams give plain `ModelInferResponse`s, whose field 1 is no error."""


class MlServer(grpc.GenericRpcHandler):
    """One server."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_ready = True
        self.http = self.grpc = ""
        """Addresses."""
        self.asked: list[str] = []
        """Paths of requests, but for those about health."""

    # HTTP

    async def live(self, _request: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def ready(self, _request: web.Request) -> web.Response:
        status = 200 if self.is_ready else 400
        return web.json_response({"ready": self.is_ready}, status=status)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """`infer_stream` of a model."""
        self.asked.append(request.path)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for number in range(3):
            await answer.write(b'data: {"id":"%d"}\n\n' % number)
        return answer

    async def other(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        return web.json_response({"server": self.name, "path": request.path})

    # gRPC

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        name = details.method.rpartition("/")[2]
        handlers = {
            "ServerReady": grpc.unary_unary_rpc_method_handler(self._server_ready),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._streamed),
            "RepositoryIndex": grpc.unary_unary_rpc_method_handler(self._index),
        }
        return handlers.get(name)

    async def _server_ready(self, _message: bytes, _context: grpc.aio.ServicerContext) -> bytes:
        return pb.ServerReadyResponse(ready=self.is_ready).SerializeToString()

    async def _index(self, message: bytes, _context: grpc.aio.ServicerContext) -> bytes:
        self.asked.append("RepositoryIndex")
        return message

    async def _streamed(
        self, messages: AsyncIterator[bytes], _context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        async for _ in messages:
            yield STREAMED.SerializeToString()


@asynccontextmanager
async def mlserver(name: str) -> AsyncIterator[MlServer]:
    """Run one on free ports."""
    server = MlServer(name)
    app = web.Application()
    app.router.add_get("/v2/health/live", server.live)
    app.router.add_get("/v2/health/ready", server.ready)
    app.router.add_post("/v2/models/{model}/infer_stream", server.stream)
    app.router.add_route("*", "/{rest:.*}", server.other)
    async with two_ports(app, server) as (server.http, server.grpc):
        yield server
