"""Life signs of the metrics port. Its pages are tested in tests/integration."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer

from lb.admin.metrics_app import CONCURRENT_SCRAPES, BackendPages, Target, make_metrics_app
from lb.domain.backend import parse_address
from lb.telemetry.collector import make_registry
from tests.fakes.metrics import Counters


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize("path", ["/readyz", "/livez"])
async def test_each_life_sign_follows_its_own_answer(
    path: str, is_live: bool, is_ready: bool
) -> None:
    app = make_metrics_app(
        make_registry(Counters().collector()),
        is_ready=lambda: is_ready,
        is_live=lambda: is_live,
        targets=list,
        include_backends=False,
    )
    is_good = is_ready if path == "/readyz" else is_live
    async with TestClient(TestServer(app)) as client, client.get(path) as response:
        assert response.status == (200 if is_good else 503)
        assert response.content_type == "text/plain"
        assert await response.text() == ("ok\n" if is_good else "not ok\n")


class _CountedPages(BackendPages):
    """Backends that answer after a while; notes in which turn of the loop each is asked."""

    turn = 0
    under_way = 0
    most_under_way = 0

    def __init__(self, count: int, session: ClientSession) -> None:
        address = parse_address("127.0.0.1:1")
        super().__init__(lambda: [Target(f"b{at}", address) for at in range(count)], session)
        self.begun: Counter[int] = Counter()

    async def _get(self, target: Target) -> bytes:
        self.begun[self.turn] += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        self.under_way -= 1
        return b"up 1\n"

    async def count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


async def test_backends_are_not_all_asked_in_one_turn_of_the_loop() -> None:
    async with ClientSession() as session, asyncio.TaskGroup() as group:
        pages = _CountedPages(100, session)
        counting = group.create_task(pages.count_turns())
        merged = await pages.read()
        counting.cancel()
    assert len(merged.families[b"up"].samples) == 100
    assert sum(pages.begun.values()) == 100
    assert max(pages.begun.values()) <= 2
    assert pages.most_under_way <= CONCURRENT_SCRAPES
