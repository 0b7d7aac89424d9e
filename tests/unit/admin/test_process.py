"""Reload and upgrade over the admin API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from lb.admin.api import cannot, not_done
from lb.admin.app import make_admin_app
from lb.admin.models import Reload, Upgrade
from lb.admin.operations import RELOAD, UPGRADE
from lb.control.membership import Membership
from tests.fakes.pool import make_pool


async def ask(
    path: str,
    *,
    reload: Callable[[], Awaitable[Reload]] = cannot,
    upgrade: Callable[[], Awaitable[Upgrade]] = cannot,
) -> tuple[int, Any]:
    directory = make_pool()
    app = make_admin_app(
        directory, Membership(directory), version="1", reload=reload, upgrade=upgrade
    )
    async with TestClient(TestServer(app)) as client, client.post(path) as answer:
        return answer.status, await answer.json()


async def test_what_was_done_is_told() -> None:
    async def reload() -> Reload:
        return Reload(changed=["retry.attempts"], hash="abc")

    async def upgrade() -> Upgrade:
        return Upgrade(pid=7)

    assert await ask(RELOAD, reload=reload) == (200, {"changed": ["retry.attempts"], "hash": "abc"})
    assert await ask(UPGRADE, upgrade=upgrade) == (200, {"pid": 7})


async def test_a_refusal_tells_all_that_was_wrong() -> None:
    async def reload() -> Reload:
        raise not_done("refused", ["one", "two"])

    assert await ask(RELOAD, reload=reload) == (
        409,
        {"error": "refused", "problems": ["one", "two"]},
    )


async def test_what_nobody_can_do_is_refused() -> None:
    status, answer = await ask(UPGRADE)
    assert (status, answer["problems"]) == (409, [])
