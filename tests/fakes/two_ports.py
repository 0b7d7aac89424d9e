"""Servers of tests with an aiohttp application on one port and grpcio on another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
from aiohttp import web


@asynccontextmanager
async def two_ports(
    app: web.Application, service: grpc.GenericRpcHandler
) -> AsyncIterator[tuple[str, str]]:
    """Serve both on free ports; gives their addresses, HTTP first."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}", f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
        await runner.cleanup()
