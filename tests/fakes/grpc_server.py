"""A gRPC server of the four call kinds over bytes, by grpcio: what the relay is tested with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio

SERVICE = "inference.GRPCInferenceService"
CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


class BytesService(grpc.GenericRpcHandler):
    """Methods chosen by the last path segment; messages are bytes."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.started = asyncio.Event()
        self.calls = 0
        self.methods: set[str] = set()
        """Full names of all that was called, known or not."""
        self.metadata: list[tuple[str, str | bytes]] = []
        self.peers: set[str] = set()
        """The connections that echoes were asked for on."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        self.methods.add(details.method)
        name = details.method.rpartition("/")[2]
        handlers = {
            "ModelInfer": grpc.unary_unary_rpc_method_handler(self._echo),
            "Fail": grpc.unary_unary_rpc_method_handler(self._fail),
            "Hang": grpc.unary_unary_rpc_method_handler(self._hang),
            "Blob": grpc.unary_unary_rpc_method_handler(self._blob),
            "Collect": grpc.stream_unary_rpc_method_handler(self._collect),
            "Repeat": grpc.unary_stream_rpc_method_handler(self._repeat),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._bidi),
        }
        return handlers.get(name)

    async def _echo(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        self.calls += 1
        self.peers.add(context.peer())
        self.metadata = list(context.invocation_metadata())
        await context.send_initial_metadata((("x-initial", "one"), ("x-bin", b"\0\xff")))
        context.set_trailing_metadata((("x-trailing", "two"), ("t-bin", b"\1\2")))
        return request

    async def _fail(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        self.calls += 1
        context.set_trailing_metadata((("grpc-status-details-bin", b"\x08\x03\x12\x03bad"),))
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "bad ünïcode: 100 %")
        return b""

    async def _hang(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        self.calls += 1
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return b""

    async def _blob(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return b"b" * int(request)

    async def _collect(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> bytes:
        return b"".join([request async for request in requests])

    async def _repeat(
        self, request: bytes, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        count, size = request.split(b",")
        for _ in range(int(count)):
            yield b"r" * int(size)

    async def _bidi(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request


@asynccontextmanager
async def grpc_backend(
    handler: grpc.GenericRpcHandler,
    credentials: grpc.ServerCredentials | None = None,
    compression: grpc.Compression | None = None,
) -> AsyncIterator[str]:
    """Have calls handled on a free port of loopback, with TLS where there are credentials, and with
    compressed answers where a compression is named."""
    server = grpc.aio.server(options=CHANNEL_OPTIONS, compression=compression)
    server.add_generic_rpc_handlers((handler,))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def grpc_server(
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[tuple[BytesService, str]]:
    """Run a `BytesService` on a free port of loopback, with TLS where there are credentials."""
    service = BytesService()
    async with grpc_backend(service, credentials) as target:
        yield service, target


@asynccontextmanager
async def grpc_channel(target: str) -> AsyncIterator[grpc.aio.Channel]:
    """A channel of its own connection."""
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        yield channel


def path(method: str) -> str:
    """The full name of a method."""
    return f"/{SERVICE}/{method}"
