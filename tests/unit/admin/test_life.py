"""Reload and upgrade over the admin API."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from lb.admin.life import RELOAD, UPGRADE, Act, LifeApi, NotDone, cannot


async def ask(path: str, *, reload: Act = cannot, upgrade: Act = cannot) -> tuple[int, Any]:
    app = web.Application()
    LifeApi(reload, upgrade).install(app)
    async with TestClient(TestServer(app)) as client, client.post(path) as answer:
        return answer.status, await answer.json()


async def test_what_was_done_is_told() -> None:
    async def reload() -> dict[str, Any]:
        return {"changed": ["retry.attempts"], "hash": "abc"}

    async def upgrade() -> dict[str, Any]:
        return {"pid": 7}

    assert await ask(RELOAD, reload=reload) == (200, {"changed": ["retry.attempts"], "hash": "abc"})
    assert await ask(UPGRADE, upgrade=upgrade) == (200, {"pid": 7})


async def test_a_refusal_tells_all_that_was_wrong() -> None:
    async def reload() -> dict[str, Any]:
        raise NotDone("refused", ["one", "two"])

    assert await ask(RELOAD, reload=reload) == (
        409,
        {"error": "refused", "problems": ["one", "two"]},
    )


async def test_what_nobody_can_do_is_refused() -> None:
    status, answer = await ask(UPGRADE)
    assert (status, answer["problems"]) == (409, [])
