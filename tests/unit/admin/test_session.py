"""Sessions of browsers, over real sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from aiohttp import CookieJar, web
from aiohttp.test_utils import TestClient, TestServer

from lb.access.tokens import Token, TokenBook, digest_of
from lb.admin.access import AdminAccess
from lb.admin.app import make_admin_app
from lb.admin.live import LiveView
from lb.admin.live_api import LiveApi
from lb.admin.session import LASTS_S, Sessions
from lb.control.membership import Membership
from lb.domain.access import Role
from lb.settings.choices import LogLevel
from lb.settings.reporting import LogFormat
from lb.telemetry.logs import LINES_AT_ONCE, ApplicationLog
from tests.fakes.live import FakeClock, live_sources
from tests.fakes.pool import make_pool

Client = TestClient[web.Request, web.Application]
SECRET = "operator-secret-0123456789"
OPERATOR = Token("ops", digest_of(SECRET.encode()), frozenset({Role.OPERATE}))
PAGE = {"Accept": "text/html,application/xhtml+xml"}


def make_client(access: AdminAccess) -> Client:
    directory = make_pool()
    app = make_admin_app(directory, Membership(directory), version="1", access=access)
    LiveApi(LiveView(live_sources(directory)), access).install(app)
    # Cookies of IP addresses, as browsers keep them.
    return TestClient(TestServer(app), cookie_jar=CookieJar(unsafe=True))


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Client]:
    async with make_client(AdminAccess(TokenBook([OPERATOR]))) as client:
        yield client


async def csrf_of(client: Client) -> str:
    answer = await client.post("/api/v1/session", json={"token": SECRET})
    assert answer.status == 200
    return str((await answer.json())["csrf"])


async def test_the_page_is_shown_to_everybody_and_data_to_nobody(client: Client) -> None:
    page = await client.get("/", headers=PAGE)
    policy = page.headers["Content-Security-Policy"]
    assert (page.status, page.content_type) == (200, "text/html")
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    assert f'<script nonce="{nonce}">' in await page.text()
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    again = await client.get("/", headers=PAGE)
    assert again.headers["Content-Security-Policy"] != policy
    for path in ("/", "/api/v1/live", "/api/v1/live/events"):
        assert (await client.get(path)).status == 401


async def test_requests_of_other_hosts_and_sites_do_not_get_the_page(client: Client) -> None:
    for header in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        assert (await client.get("/", headers=PAGE | header)).status == 403
        body = {"token": SECRET}
        assert (await client.post("/api/v1/session", json=body, headers=header)).status == 403


async def test_a_session_reads_and_with_its_csrf_token_changes(client: Client) -> None:
    csrf = await csrf_of(client)
    assert (await client.get("/api/v1/live")).status == 200
    drain = "/api/v1/backends/a/drain"
    assert (await client.post(drain)).status == 403
    assert (await client.post(drain, headers={"X-CSRF-Token": csrf + "x"})).status == 403
    assert (await client.post(drain, headers={"X-CSRF-Token": csrf})).status == 200
    rights = await (await client.get("/api/v1/session")).json()
    assert rights == {"needs_token": True, "token": "ops", "may_operate": True, "csrf": csrf}
    await client.delete("/api/v1/session")
    assert (await client.get("/api/v1/live")).status == 401


async def test_a_token_that_is_taken_back_ends_its_sessions() -> None:
    book = TokenBook([OPERATOR])
    async with make_client(AdminAccess(book)) as client:
        await csrf_of(client)
        assert (await client.get("/api/v1/live")).status == 200
        book.replace([])
        assert (await client.get("/api/v1/live")).status == 401


async def test_a_bad_login_says_what_is_wrong(client: Client) -> None:
    for body, status in (("[]", 400), ("{", 400), ('{"token": "nonsense"}', 401)):
        headers = {"Content-Type": "application/json"}
        answer = await client.post("/api/v1/session", data=body, headers=headers)
        assert answer.status == status
    assert (await client.post("/api/v1/session", data="token=x")).status == 415


async def test_without_tokens_there_is_no_session() -> None:
    async with make_client(AdminAccess()) as client:
        rights = await (await client.get("/api/v1/session")).json()
        assert (rights["needs_token"], rights["may_operate"]) == (False, True)
        answer = await client.post("/api/v1/session", json={"token": SECRET})
        assert answer.status == 409


async def test_slots_of_viewers_are_given_back(client: Client) -> None:
    await csrf_of(client)
    for _ in range(40):
        async with client.get("/api/v1/live/events") as answer:
            assert answer.status == 200
            assert (await answer.content.readline()).startswith(b'data: {"version"')


def test_sessions_end_and_are_bounded() -> None:
    clock = FakeClock(0.0)
    sessions = Sessions(clock)
    kept = [sessions.begin(OPERATOR)[0] for _ in range(3)]
    assert len({session.csrf for session in kept}) == 3
    assert kept[0].ends_at == LASTS_S
    for _ in range(500):
        sessions.begin(OPERATOR)
    assert len(sessions) == 100
    clock.now += LASTS_S
    sessions.begin(OPERATOR)
    assert len(sessions) == 1


async def test_what_anybody_may_send_crowds_no_change_out_of_the_log(
    client: Client, tmp_path: Path
) -> None:
    path, drain, session = tmp_path / "log", "/api/v1/backends/a/drain", "/api/v1/session"
    with path.open("wb") as file:
        log = ApplicationLog(LogLevel.INFO, LogFormat.JSON, fd=file.fileno(), clock=lambda: 0.0)
        try:
            for _ in range(LINES_AT_ONCE + 1):
                assert (await client.post(drain)).status == 401
                assert (await client.delete(session)).status == 200
            operator = {"Authorization": f"Bearer {SECRET}"}
            assert (await client.post(drain, headers=operator)).status == 200
            assert (await client.post(session, json={"token": "none"})).status == 401
        finally:
            log.close()
    events = [json.loads(line) for line in path.read_text().splitlines()]
    noted = [(event["message"], event.get("token"), event.get("status")) for event in events]
    assert noted.count(("admin request refused", "", 401)) == LINES_AT_ONCE
    assert noted.count(("admin session", "", 200)) == LINES_AT_ONCE
    assert noted.count(("admin request", "ops", 200)) == 1
