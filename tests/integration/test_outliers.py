"""Servers that fail while their ports are open, behind the product as users run it.

They have no lists of models, so they are ejected as a whole; with lists: `benchmarks/faults`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.fakes.serving import Serving

BACK_S = 40.0
GOOD_S = 0.02
MODEL = "/v2/models/m/infer"
LONG_HEAD = {"X-Name": "n" * 70_000}
"""More than is taken of a backend."""


class Server:
    """Answers inferences; a sick one says that it cannot, at once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = ""
        self.error: tuple[int, str] | None = None
        self.head: dict[str, str] = {}
        """Fields of its errors."""
        self.failures = 0
        self.answers = 0

    async def infer(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.error is not None:
            self.failures += 1
            status, text = self.error
            return web.json_response({"error": text}, status=status, headers=self.head)
        if b"bad" in body:
            return web.json_response({"error": "failed to parse the request JSON"}, status=500)
        if b"long" in body:
            return web.json_response({"error": "no such name"}, status=400, headers=LONG_HEAD)
        await asyncio.sleep(GOOD_S)
        self.answers += 1
        return web.json_response({"outputs": []})


@asynccontextmanager
async def serving(name: str) -> AsyncIterator[Server]:
    server = Server(name)
    app = web.Application()
    app.router.add_post(MODEL, server.infer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.address = f"{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()


class Balanced:
    """Three servers behind the product, and clients that ask all the time."""

    def __init__(self, servers: list[Server], base: str, admin: str) -> None:
        self.servers = servers
        self.base = base
        self.admin = admin
        self.statuses: list[int] = []
        self.session = aiohttp.ClientSession()

    async def ask(self, times: int, body: bytes = b"{}") -> list[int]:
        """Statuses of so many requests, eight at once."""
        left = iter(range(times))
        found: list[int] = []

        async def client() -> None:
            for _ in left:
                async with self.session.post(self.base + MODEL, data=body) as answer:
                    found.append(answer.status)

        await asyncio.gather(*(client() for _ in range(8)))
        return found

    async def state(self, server: Server) -> dict[str, Any]:
        async with self.session.get(f"{self.admin}/api/v1/backends/{server.name}") as answer:
            found: dict[str, Any] = await answer.json()
            return found


@pytest.fixture
async def balanced(tmp_path: Path) -> AsyncIterator[Balanced]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(name)) for name in "abc"]
        config = {
            "listen": {"http": "127.0.0.1:0", "admin": "127.0.0.1:0"},
            "backends": [
                {"name": each.name, "http": each.address, "kind": "generic"} for each in servers
            ],
            "health": {"probe": "tcp"},
            "outlier_detection": {"base_ejection_time": "2s"},
            "slow_start": {"window": "0s"},
            "retry": {"attempts": 1},
        }
        balancer = Serving(tmp_path, config)
        stack.callback(balancer.process.close)
        addresses = await asyncio.to_thread(balancer.until_serving)
        made = Balanced(servers, *(f"http://{addresses[each]}" for each in ("http", "admin")))
        stack.push_async_callback(made.session.close)
        yield made


@pytest.mark.parametrize(
    ("error", "head", "status"),
    [
        ((400, "poisoned"), {}, 400),
        ((500, "poisoned"), {}, 500),
        ((400, "CUDA error: device-side assert triggered"), {}, 400),
        ((200, "poisoned"), LONG_HEAD, 502),
    ],
)
async def test_one_that_fails_at_once_attracts_nothing_and_comes_back(
    balanced: Balanced, error: tuple[int, str], head: dict[str, str], status: int
) -> None:
    sick = balanced.servers[1]
    assert set(await balanced.ask(100)) == {200}
    sick.error, sick.head = error, head
    statuses = await balanced.ask(400)
    assert statuses.count(status) == sick.failures
    assert sick.failures <= 10 + 8 + 6  # those under way with the last one, and trials
    async with asyncio.timeout(BACK_S):
        # A trial may be under way.
        while (await balanced.state(sick))["state"] != "ejected":
            await balanced.ask(8)
        sick.error = None
        before = sick.answers
        while sick.answers <= before + 50:
            await balanced.ask(50)
    assert (await balanced.state(sick))["state"] == "up"


@pytest.mark.parametrize(("body", "status"), [(b"bad", 500), (b"long", 502)])
async def test_one_client_with_bad_requests_harms_nobody(
    balanced: Balanced, body: bytes, status: int
) -> None:
    await balanced.ask(100)
    good, bad = await asyncio.gather(balanced.ask(300), balanced.ask(300, body))
    assert set(good) == {200}
    assert set(bad) == {status}
    assert {(await balanced.state(each))["state"] for each in balanced.servers} == {"up"}
