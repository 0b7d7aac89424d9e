"""Life signs of the metrics port. Its pages are tested in tests/integration."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer

from lb.admin import metrics_app
from lb.admin.metrics_app import (
    CONCURRENT_SCRAPES,
    MAX_PAGE_BYTES,
    BackendPages,
    Target,
    _Page,
    make_metrics_app,
)
from lb.domain.backend import parse_address
from lb.telemetry.collector import make_registry
from lb.telemetry.exposition import (
    MAX_FAMILIES,
    MAX_LINE_BYTES,
    MAX_LINES,
    STEP_BYTES,
    BackendPage,
    MergedPages,
)
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


async def test_a_scrape_fails_rather_than_show_a_part_of_what_was_counted() -> None:
    async def is_complete() -> bool:
        return False

    app = make_metrics_app(
        make_registry(Counters().collector()),
        is_ready=lambda: True,
        targets=list,
        include_backends=True,
        is_complete=is_complete,
    )
    async with TestClient(TestServer(app)) as client:
        for path, status in {"/metrics": 503, "/metrics/own": 503, "/readyz": 200}.items():
            async with client.get(path) as response:
                assert response.status == status


class _GivenPages(BackendPages):
    """Backends whose pages are given."""

    def __init__(self, session: ClientSession, pages: dict[str, bytes]) -> None:
        address = parse_address("127.0.0.1:1")
        super().__init__(lambda: [Target(name, address) for name in pages], session, cache_s=0.0)
        self.given = pages

    async def _get(self, page: _Page) -> None:
        text = self.given[page.target.name]
        for begin in range(0, len(text), 50_000):
            if not page.keep(text[begin : begin + 50_000]):
                return

    @property
    def cuts(self) -> list[float]:
        """Of each backend."""
        _, cuts = self.collect()
        return [sample.value for sample in cuts.samples]


def text_of(merged: MergedPages) -> bytes:
    return b"".join(bytes(part) for each in merged.families.values() for part in each.lines())


@pytest.mark.parametrize(
    "page",
    [
        b"m{" + b",".join(b'l%d="v"' % at for at in range(100_000)) + b"} 1\n",
        b"".join(b"f%d 1\n" % at for at in range(300_000)),
        b"\n" * 2_000_000,
        b"a 1\n" * 1_000_000,
        b'm{x="y"} 1\n' * 1_000_000,
    ],
    ids=["labels", "families", "empty lines", "lines", "bytes"],
)
async def test_a_page_beyond_bounds_is_cut_in_steps_and_leaves_the_others(
    page: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in bytes and lines: no step takes more of them than it may."""
    largest = 0
    taken = BackendPage._take

    def take(self: BackendPage, lines: list[bytes]) -> None:
        nonlocal largest
        largest = max(largest, sum(map(len, lines)) + 32 * len(lines))
        taken(self, lines)

    monkeypatch.setattr(BackendPage, "_take", take)
    async with ClientSession() as session:
        pages = _GivenPages(session, {"bad": page, "good": b"up 1\n"})
        reading = asyncio.ensure_future(pages.read())
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        merged = reading.result()
        text = text_of(merged)
        await pages.read()
    assert turns > min(len(page), MAX_PAGE_BYTES, 5 * MAX_LINES) / STEP_BYTES
    assert largest <= 2 * STEP_BYTES + MAX_LINE_BYTES
    assert text.count(b"\n") <= MAX_LINES + 1
    assert len(merged.families) <= MAX_FAMILIES + 1
    assert b'up{backend="good"} 1\n' in text
    assert pages.cuts == [2, 0]
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert record.__dict__["backend"] == "bad"


async def test_of_all_pages_together_the_longest_gives_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics_app, "MAX_BYTES", 300_000)
    small = {f"b{at}": b"up 1\n" for at in range(20)}
    async with ClientSession() as session:
        pages = _GivenPages(session, {"long": b"long 1\n" * 30_000, **small})
        merged = await pages.read()
    assert list(merged.families) == [b"up"]
    assert len(merged.families[b"up"].samples) == 20
    assert pages.cuts == [1] + 20 * [0]
    assert "longer than 300000 bytes" in caplog.records[0].__dict__["why"]


async def test_a_page_that_is_whole_again_counts_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ClientSession() as session:
        pages = _GivenPages(session, {"a": b"x" * 2 * MAX_LINE_BYTES + b"\nup 1\n"})
        for _ in range(2):
            assert text_of(await pages.read()) == b'up{backend="a"} 1\n'
        pages.given["a"] = b"up 2\n"
        assert text_of(await pages.read()) == b'up{backend="a"} 2\n'
    assert pages.cuts == [2]
    assert len(caplog.records) == 1


async def test_slow_readers_keep_at_most_two_rounds_in_memory() -> None:
    async with ClientSession() as session:
        pages = _GivenPages(session, {"a": b"up 1\n"})
        read = [await pages.read() for _ in range(5)]
        assert len({id(each) for each in read}) == 2
        pages.given["a"] = b"up 2\n"
        read.clear()
        assert b" 2\n" in text_of(await pages.read())


class _CountedPages(BackendPages):
    """Backends that answer after a while; notes in which turn of the loop each is asked."""

    turn = 0
    under_way = 0
    most_under_way = 0

    def __init__(self, count: int, session: ClientSession) -> None:
        address = parse_address("127.0.0.1:1")
        super().__init__(lambda: [Target(f"b{at}", address) for at in range(count)], session)
        self.begun: Counter[int] = Counter()

    async def _get(self, page: _Page) -> None:
        self.begun[self.turn] += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        self.under_way -= 1
        page.keep(b"up 1\n")

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
    assert len(merged.families[b"up"].samples) == 100  # one part of each page
    assert sum(pages.begun.values()) == 100
    assert max(pages.begun.values()) <= 2
    assert pages.most_under_way <= CONCURRENT_SCRAPES
