"""Who may use the admin API, over real sockets."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from lb.access.tokens import Token, TokenBook, digest_of
from lb.admin.access import AdminAccess
from lb.admin.app import make_admin_app
from lb.control.directory import BackendDirectory
from lb.control.membership import Membership
from lb.domain.access import Role
from lb.domain.backend import AdminState
from tests.fakes.pool import make_pool

Client = TestClient[web.Request, web.Application]
BACKENDS = "/api/v1/backends"
DRAIN = "/api/v1/backends/a/drain"
READ, OPERATE, INFER = (f"{role}-0123456789abcdef" for role in ("read", "operate", "infer"))
BOOK = TokenBook(
    Token(role, digest_of(f"{role}-0123456789abcdef".encode()), frozenset({Role(role)}))
    for role in ("read", "operate", "infer")
)


@asynccontextmanager
async def serving(
    access: AdminAccess, directory: BackendDirectory | None = None
) -> AsyncIterator[Client]:
    directory = directory or make_pool()
    app = make_admin_app(directory, Membership(directory), version="1.2.3", access=access)
    async with TestClient(TestServer(app)) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("headers", "looking", "changing"),
    [
        ({}, 401, 401),
        (bearer("wrong-0123456789abcdef"), 401, 401),
        ({"Authorization": f"Basic {OPERATE}"}, 401, 401),
        (bearer(INFER), 403, 403),
        (bearer(READ), 200, 403),
        (bearer(OPERATE), 200, 200),
    ],
)
async def test_a_token_may_what_its_role_says(
    headers: dict[str, str], looking: int, changing: int
) -> None:
    directory = make_pool()
    async with serving(AdminAccess(BOOK), directory) as client:
        for path in (BACKENDS, "/", "/api/v1/openapi.json"):
            response = await client.get(path, headers=headers)
            assert response.status == looking
        response = await client.post(DRAIN, headers=headers)
        assert response.status == changing
        assert ("WWW-Authenticate" in response.headers) == (changing == 401)
        assert isinstance(await response.json(), dict)
    state = AdminState.DRAINING if changing == 200 else AdminState.ENABLED
    assert directory.find("a").admin is state


async def test_paths_that_do_not_exist_are_no_secret_to_bearers_only() -> None:
    async with serving(AdminAccess(BOOK)) as client:
        assert (await client.get("/nothing")).status == 401
        assert (await client.get("/nothing", headers=bearer(READ))).status == 404


async def test_two_tokens_in_one_request_are_none() -> None:
    async with serving(AdminAccess(BOOK)) as client:
        headers = [("Authorization", f"Bearer {OPERATE}")] * 2
        assert (await client.get(BACKENDS, headers=headers)).status == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8003", "localhost.evil.example", ""]
)
async def test_a_borrowed_host_name_is_refused(host: str) -> None:
    async with serving(AdminAccess()) as client:
        response = await client.get(BACKENDS, headers={"Host": host})
        assert response.status == 403
        assert "admin.hosts" in await response.text()


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8003", "[::1]:8003", "10.1.2.3", "lb.example:1"]
)
async def test_own_names_and_addresses_are_welcome(host: str) -> None:
    async with serving(AdminAccess(hosts=frozenset({"lb.example"}))) as client:
        assert (await client.get(BACKENDS, headers={"Host": host})).status == 200


async def test_who_may_only_look_adds_and_removes_nothing() -> None:
    directory = make_pool()
    before = directory.ref.current
    changes = (("POST", BACKENDS, {"http": "c:1"}), ("DELETE", f"{BACKENDS}/a", None))
    async with serving(AdminAccess(BOOK), directory) as client:
        for method, path, body in changes:
            for headers, status in ((bearer(READ), 403), ({}, 401)):
                response = await client.request(method, path, json=body, headers=headers)
                assert response.status == status
    assert directory.ref.current is before


async def test_no_answer_lets_another_site_in() -> None:
    async with serving(AdminAccess(BOOK)) as client:
        preflight = {
            "Origin": "https://evil.example",
            "Access-Control-Request-Method": "POST",
            **bearer(OPERATE),
        }
        for method, path in (("OPTIONS", DRAIN), ("GET", BACKENDS), ("POST", DRAIN)):
            response = await client.request(method, path, headers=preflight)
            assert response.status == 403
            assert not [name for name in response.headers if name.startswith("Access-Control")]
        without_origin = await client.options(DRAIN, headers=bearer(OPERATE))
        assert without_origin.status == 405


async def test_every_answer_is_neither_stored_nor_guessed_at() -> None:
    async with serving(AdminAccess(BOOK)) as client:
        for headers in ({}, bearer(READ)):
            for path in (BACKENDS, "/nothing"):
                response = await client.get(path, headers=headers)
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Cache-Control"] == "no-store"
                assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
                assert response.headers["Server"] == "triton-lb"


async def test_every_attempt_at_a_change_is_noted_with_the_tokens_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "lb.admin.audit")
    async with serving(AdminAccess(BOOK)) as client:
        await client.get(BACKENDS, headers=bearer(READ))
        await client.post(DRAIN)
        await client.post(DRAIN, headers=bearer(READ))
        await client.post(DRAIN, headers=bearer(OPERATE))
        await client.post("/api/v1/backends/%0A/drain", headers=bearer(OPERATE))
    noted = [
        (record.token, record.status, record.path)  # type: ignore[attr-defined]
        for record in caplog.records
        if record.name == "lb.admin.audit"
    ]
    assert noted == [
        ("", 401, DRAIN),
        ("read", 403, DRAIN),
        ("operate", 200, DRAIN),
        ("operate", 404, "/api/v1/backends/%0A/drain"),
    ]
    assert not any(token in caplog.text for token in (READ, OPERATE))


async def test_replaced_tokens_are_void_at_once() -> None:
    book = TokenBook(BOOK.tokens)
    async with serving(AdminAccess(book)) as client:
        assert (await client.get(BACKENDS, headers=bearer(READ))).status == 200
        book.replace([])
        assert (await client.get(BACKENDS, headers=bearer(READ))).status == 401
