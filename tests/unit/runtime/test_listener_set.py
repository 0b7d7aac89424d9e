"""Where connections are accepted, and what becomes of that at a reload."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from lb.runtime.listeners import ListenerSet
from lb.runtime.logs import Logs
from lb.runtime.own_servers import own_server
from lb.runtime.sockets import Bound, Listeners
from lb.runtime.wiring import LoadBalancer
from lb.settings.model import Settings


def settings(**listen: Any) -> Settings:
    return Settings.model_validate({"listen": listen, "backends": [{"http": "127.0.0.1:1"}]})


async def _refuse(_request: web.BaseRequest) -> web.Response:
    return web.Response(status=404)


class House:
    """Doors of a product that has nobody to ask."""

    def __init__(self, given: Settings) -> None:
        self.logs = Logs(given)
        self.product: LoadBalancer = LoadBalancer(given, self.logs)
        own = own_server(web.Server(_refuse))
        self.listener_set = ListenerSet(
            self.product, Listeners(given), {"metrics": own, "admin": own}
        )

    @property
    def bound(self) -> dict[str, Bound]:
        return dict(self.listener_set.listeners.bound)

    def reload(self, **listen: Any) -> None:
        self.product.settings = settings(**listen)
        self.listener_set.replace(Listeners(self.product.settings, self.bound.values()))

    async def connect(self, name: str) -> socket.socket:
        """A connection to a listener; it is accepted when this returns."""
        address = self.listener_set.listeners.addresses[name]
        client = socket.create_connection((address.host, address.port))
        for _ in range(100):
            await asyncio.sleep(0)
        assert self.product.relay.connections
        return client


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House(settings(http="127.0.0.1:0", admin="127.0.0.1:0"))
    await made.listener_set.open_own()
    await made.listener_set.open()
    yield made
    made.listener_set.close()
    await made.product.aclose()
    made.logs.close()


async def test_a_listener_that_stays_keeps_its_socket_and_its_connections(house: House) -> None:
    before = house.bound
    with await house.connect("http"):
        house.reload(http="127.0.0.1:0", grpc="127.0.0.1:0", admin="127.0.0.1:0")
        assert house.bound["http"] is before["http"]
        [server] = house.product.relay.http1.servers
        assert not server.is_leaving


async def test_a_listener_that_goes_lets_its_connections_finish(house: House) -> None:
    port = house.bound["http"].address.port
    with await house.connect("http") as client:
        house.reload(https=None, grpc="127.0.0.1:0")
        [server] = house.product.relay.http1.servers
        assert server.is_leaving
        assert server.transport is not None
        assert client.fileno() >= 0
    with socket.socket() as late:
        assert late.connect_ex(("127.0.0.1", port)) != 0


async def test_a_new_listener_accepts(house: House, tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    house.reload(http=f"unix:{path}")
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    writer.close()
    await writer.wait_closed()


async def test_changed_budgets_count_at_once(house: House) -> None:
    before = house.listener_set.budget
    limited = settings(http="127.0.0.1:0", admin="127.0.0.1:0").model_copy(
        update={"limits": house.product.settings.limits.model_copy(update={"max_connections": 3})}
    )
    house.product.settings = limited
    house.listener_set.replace(Listeners(limited, house.bound.values()))
    assert house.listener_set.budget.clients == 3 < before.clients
