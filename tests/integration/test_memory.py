"""Payload under a limit of the process (`ulimit -v`): clients are answered, not cut."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.serving import Serving, get

LIMIT = 300 * 2**20
"""Of address space. The process itself needs a third of it."""
CLIENTS, BODY = 80, 6_000_000
PIECE = bytes(65536)


class Backend:
    """Reads nothing of bodies before it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.all_begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            answer = b"[]"
            if b"/infer " in head:
                self.begun += 1
                if self.begun == CLIENTS:
                    self.all_begun.set()
                await self.go_on.wait()
                left = BODY
                while left:
                    left -= len(await reader.readexactly(min(left, len(PIECE))))
                answer = b"{}"
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n" + answer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def backend() -> AsyncIterator[tuple[Backend, int]]:
    made = Backend()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    yield made, server.sockets[0].getsockname()[1]
    made.go_on.set()
    server.close()


async def post(address: str) -> str:
    """Send a large body; returns the status, or how the connection ended."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        head = "POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n"
        writer.write(head.format(BODY).encode())
        sent = 0
        while sent < BODY:
            piece = PIECE[: BODY - sent]
            sent += len(piece)
            writer.write(piece)
            await writer.drain()
        return (await reader.readline()).decode()[9:12]
    except OSError as error:
        return type(error).__name__
    finally:
        writer.close()


async def test_no_client_is_cut_when_memory_is_limited(
    tmp_path: Path, backend: tuple[Backend, int]
) -> None:
    made, port = backend
    config = {
        "listen": dict.fromkeys(("http", "metrics"), "127.0.0.1:0"),
        "backends": [{"http": f"127.0.0.1:{port}"}],
    }
    running = Serving(tmp_path, config, wrapper=("prlimit", f"--as={LIMIT}"))
    try:
        addresses = await asyncio.to_thread(running.until_serving)
        clients = [asyncio.gather(post(addresses["http"])) for _ in range(CLIENTS)]
        async with asyncio.timeout(120):
            await made.all_begun.wait()
            assert (await asyncio.to_thread(get, addresses["metrics"], "/metrics"))[0] == 200
            made.go_on.set()
            outcomes = Counter([(await each)[0] for each in clients])
        assert set(outcomes) <= {"200", "503"}, outcomes
        assert outcomes["200"] > CLIENTS // 2
        assert (await asyncio.to_thread(get, addresses["metrics"], "/metrics"))[0] == 200
        assert (await asyncio.to_thread(get, addresses["http"], "/v2/health/live"))[0] == 200
        assert "MemoryError" not in running.log
    finally:
        running.process.close()
