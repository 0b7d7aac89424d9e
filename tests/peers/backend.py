"""A backend in a process of its own: gRPC by grpcio over bytes, HTTP/1.1 by aiohttp.

python -m tests.peers.backend GRPC_PORT HTTP_PORT
"""

from __future__ import annotations

import asyncio
import sys

import grpc.aio
from aiohttp import web

from tests.fakes.grpc_server import CHANNEL_OPTIONS, BytesService

_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.max_metadata_size", 1 << 16),
    ("grpc.absolute_max_metadata_size", 1 << 16),
)
"""It must not be the backend that refuses long heads."""


async def _echo(request: web.Request) -> web.Response:
    return web.Response(body=await request.read())


async def _blob(request: web.Request) -> web.Response:
    return web.Response(body=bytes(int(request.query["size"])))


async def main(grpc_port: int, http_port: int) -> None:
    """Serve until killed."""
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((BytesService(),))
    server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    await server.start()
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/echo", _echo)
    app.router.add_get("/blob", _blob)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", http_port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
