"""A small TF Serving: REST by aiohttp, gRPC by grpcio over plain bytes, models without content."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
from aiohttp import web

from lb.wire.protobuf import fields
from tests.fakes.two_ports import two_ports

STATES = {"LOADING": 20, "AVAILABLE": 30}


def spec(model: str) -> bytes:
    """A request with a `model_spec` and nothing else."""
    inner = b"\x0a" + bytes([len(model)]) + model.encode()
    return b"\x0a" + bytes([len(inner)]) + inner


def model_of(message: bytes) -> str:
    """The name in the `model_spec` of a request."""
    _, _, start, end = next(iter(fields(message)))
    _, _, first, last = next(iter(fields(message, start, end)))
    return message[first:last].decode()


class TfServing(grpc.GenericRpcHandler):
    """One server; `models` says which it has, and in which state."""

    def __init__(self, name: str, models: dict[str, str]) -> None:
        self.name = name
        self.models = models
        self.http = self.grpc = ""
        """Addresses."""
        self.asked: list[str] = []
        """Methods and paths of requests that are no probes of its state."""

    # REST

    async def answer(self, request: web.Request) -> web.Response:
        """Everything below /v1/models."""
        model, _, verb = request.match_info["rest"].partition(":")
        model, _, view = model.partition("/")
        if verb or view:
            self.asked.append(request.path)
        if model not in self.models:
            text = f"Servable not found for request: Latest({model})"
            return web.json_response({"error": text}, status=404)
        if verb:
            return web.json_response({"predictions": [self.name]})
        status = [{"version": "1", "state": self.models[model], "status": {"error_code": "OK"}}]
        return web.json_response({"model_version_status": status})

    # gRPC

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if not details.method.startswith("/tensorflow.serving."):
            return None
        name = details.method.rpartition("/")[2]

        async def call(message: bytes, context: grpc.aio.ServicerContext) -> bytes:
            return await self._call(name, message, context)

        return grpc.unary_unary_rpc_method_handler(call)

    async def _call(self, name: str, message: bytes, context: grpc.aio.ServicerContext) -> bytes:
        if name == "HandleReloadConfigRequest":
            self.asked.append(name)
            return b"\x0a\x00"
        model = model_of(message)
        if model not in self.models:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Servable not found: {model}")
        if name == "GetModelStatus":
            return b"\x0a\x04\x08\x01\x10" + bytes([STATES[self.models[model]]])
        self.asked.append(name)
        return message


@asynccontextmanager
async def tf_serving(name: str, **models: str) -> AsyncIterator[TfServing]:
    """Run one on free ports."""
    server = TfServing(name, models)
    app = web.Application()
    app.router.add_route("*", "/v1/models/{rest:.*}", server.answer)
    async with two_ports(app, server) as (server.http, server.grpc):
        yield server
