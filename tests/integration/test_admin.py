"""The admin API over real sockets, by aiohttp and by the command line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from lb.admin.app import make_admin_app
from lb.cli.admin import change_backend, list_backends
from lb.cli.admin_client import AdminTarget
from lb.control.directory import BackendDirectory
from lb.control.membership import Membership
from lb.domain.backend import AdminState, AppProtocol
from tests.fakes.leaving import ask_and_leave
from tests.fakes.pool import make_pool
from tests.unit.admin.schema import problems

Client = TestClient[web.Request, web.Application]


@pytest.fixture
def directory() -> BackendDirectory:
    return make_pool()


@pytest_asyncio.fixture
async def client(directory: BackendDirectory) -> AsyncIterator[Client]:
    membership = Membership(directory, clock=lambda: 111.0)
    app = make_admin_app(directory, membership, version="1.2.3", clock=lambda: 111.0)
    async with TestClient(TestServer(app)) as client:
        yield client


def address_of(client: Client) -> str:
    return f"127.0.0.1:{client.port}"


# Answers


async def test_the_answers_are_as_documented(client: Client) -> None:
    document = await (await client.get("/api/v1/openapi.json")).json()
    listing = await (await client.get("/api/v1/backends")).json()
    assert problems(listing, "Backends", document) == []
    assert [backend["name"] for backend in listing["backends"]] == ["a", "b"]
    single = await (await client.get("/api/v1/backends/b")).json()
    assert single == listing["backends"][1]
    assert (single["state"], single["why"], single["since_s"]) == ("down", "grpc: closed", 10.0)
    missing = await client.get("/api/v1/backends/x")
    assert missing.status == 404
    assert problems(await missing.json(), "Error", document) == []


async def test_the_index_leads_to_everything(client: Client) -> None:
    index = await (await client.get("/")).json()
    for name in ("status", "backends", "sources", "queue", "openapi"):
        link = index[name]
        assert (await client.get(link)).status == 200


# Changes


@pytest.mark.parametrize(
    ("action", "admin", "state"),
    [
        ("drain", AdminState.DRAINING, "draining"),
        ("disable", AdminState.DISABLED, "disabled"),
        ("enable", AdminState.ENABLED, "up"),
    ],
)
async def test_a_change_takes_effect_at_once_and_shows_the_backend(
    client: Client, directory: BackendDirectory, action: str, admin: AdminState, state: str
) -> None:
    response = await client.post(f"/api/v1/backends/a/{action}")
    assert response.status == 200
    assert (await response.json())["state"] == state
    assert directory.find("a").admin is admin
    eligible = directory.ref.current.placement(AppProtocol.GRPC).eligible
    assert bool(eligible) == (admin is AdminState.ENABLED)


async def test_a_drained_backend_says_when_it_is_empty(
    client: Client, directory: BackendDirectory
) -> None:
    backend = directory.find("a").backend
    backend.in_flight = 1
    assert not (await (await client.post("/api/v1/backends/a/drain")).json())["empty"]
    backend.in_flight = 0
    assert (await (await client.get("/api/v1/backends/a")).json())["empty"]


# Refusals


async def test_errors_are_json(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    cases = [
        ("GET", "/nothing", 404, "Not Found"),
        ("PUT", "/api/v1/backends", 405, "Method Not Allowed"),
        ("GET", "/api/v1/backends/a/drain", 405, "Method Not Allowed"),
        ("POST", "/api/v1/backends/x/drain", 404, "there is no backend 'x'; there are: a, b"),
        ("POST", "/api/v1/backends/a/explode", 404, "Not Found"),
    ]
    for method, path, status, message in cases:
        response = await client.request(method, path)
        assert (response.status, await response.json()) == (status, {"error": message})
        assert ("Allow" in response.headers) == (status == 405)
    assert caplog.records == []


async def test_pages_of_other_sites_change_nothing(
    client: Client, directory: BackendDirectory
) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://["):
        response = await client.post("/api/v1/backends/a/drain", headers={"Origin": origin})
        assert response.status == 403
    form = await client.post("/api/v1/backends/a/drain", data={"x": "y"})
    assert form.status == 415
    assert directory.find("a").admin is AdminState.ENABLED


async def test_the_own_site_and_json_are_welcome(client: Client) -> None:
    origin = {"Origin": f"http://{address_of(client)}"}
    response = await client.post("/api/v1/backends/a/drain", headers=origin, json={})
    assert response.status == 200


async def test_a_bug_is_logged_and_shows_no_traceback(
    client: Client, directory: BackendDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    directory.find("a").ports = (None,)  # type: ignore[assignment]
    response = await client.get("/api/v1/backends")
    assert (response.status, await response.json()) == (500, {"error": "internal error"})
    assert [record.message for record in caplog.records] == ["admin request failed"]


# The command line


async def test_the_commands_work_on_the_real_api(
    client: Client, directory: BackendDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = f"http://{address_of(client)}"
    assert await asyncio.to_thread(change_backend, AdminTarget(admin), "a", "drain") == 0
    assert await asyncio.to_thread(list_backends, AdminTarget(admin)) == 0
    assert await asyncio.to_thread(change_backend, AdminTarget(admin), "x", "drain") == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "a: draining, 0 in flight",
        "NAME  STATE     SINCE  IN FLIGHT  SERVED  P50  P99  WHY",
        "a     draining     0s          0       0    -    -  operator",
        "b     down        10s          0       0    -    -  grpc: closed",
    ]
    assert err == "triton-lb: there is no backend 'x'; there are: a, b\n"


async def test_the_commands_reach_a_unix_socket(
    directory: BackendDirectory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lb.control.directory")
    runner = web.AppRunner(make_admin_app(directory, Membership(directory), version="1.2.3"))
    await runner.setup()
    path = str(tmp_path / "admin.sock")
    await web.UnixSite(runner, path).start()
    assert await asyncio.to_thread(change_backend, AdminTarget(f"unix:{path}"), "b", "disable") == 0
    await runner.cleanup()
    assert directory.find("b").admin is AdminState.DISABLED
    assert "backend administered" in [record.message for record in caplog.records]


@pytest.mark.parametrize("framing", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
async def test_a_client_that_leaves_amid_its_request_is_no_error(
    directory: BackendDirectory, caplog: pytest.LogCaptureFixture, framing: bytes
) -> None:
    membership = Membership(directory, clock=lambda: 111.0)
    app = make_admin_app(directory, membership, version="1.2.3", clock=lambda: 111.0)
    head = (
        b"POST /api/v1/backends HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    )
    await ask_and_leave("admin", app, head + framing + b"\r\nExpect: 100-continue\r\n\r\n")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
