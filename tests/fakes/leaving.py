"""A client of the metrics port or the admin API that leaves before it has its whole answer."""

from __future__ import annotations

import asyncio
import socket
import struct

from aiohttp import web

from lb.runtime.own_servers import own_runner
from tests.wire.waiting import eventually


async def ask_and_leave(name: str, app: web.Application, request: bytes) -> None:
    """Serve an application as the process does, send a request, reset the connection as soon as
    something comes back, and wait until the request is handled."""
    runner = own_runner(name, app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        loop = asyncio.get_running_loop()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.setblocking(False)
            await loop.sock_connect(client, runner.addresses[0])
            await loop.sock_sendall(client, request)
            assert await loop.sock_recv(client, 1)
        await eventually(lambda: not handled())
    finally:
        await runner.cleanup()


def handled() -> int:
    """Count the requests that aiohttp's servers are handling."""
    tasks = (str(task.get_coro()) for task in asyncio.all_tasks())
    return sum("RequestHandler._handle_request" in task for task in tasks)
