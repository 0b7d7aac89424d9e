"""What the page costs a browser: its longest tasks, and whether it grows while it is open.

    python -m benchmarks.bench_page [--minutes 10]

Headless Chromium shows the page of 200 backends and 100 of 1,000 models, then one without any. The
documents change as those of a busy pool do. Printed are the longest tasks of the page's thread in
milliseconds of processor time, and the elements and the heap at the beginning and at the end. The
heap is the smallest of several readings, since one may find a document half drawn. The exit code is
1 if the page grew, or if its longest task took more than three times that of the page without any.
Needs `make debian` (Chromium).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any, Final

from aiohttp import hdrs, web
from playwright.async_api import Browser, CDPSession, Page, async_playwright

from lb.admin.live_document import LiveBackend, LiveChange, LiveDocument, LiveModel, LiveWorker
from lb.admin.operations import EVENTS, SESSION
from lb.admin.page import page_response
from tests.fakes.browser import CHROMIUM

BACKENDS: Final = 200
MODELS: Final = 100
WORKERS: Final = 4
_EVERY_S: Final = 1.0
SETTLING_S: Final = 5.0
"""Until the browser has laid out and compiled what it will."""
_TRACED_S: Final = 15.0
_BEGAN_AT: Final = 1.8e9
"""Unix time of the newest change of state."""
_READINGS: Final = 8
_BETWEEN_S: Final = 0.3
"""Between readings of the heap, so that some are between the drawing of two documents."""
_CHANGES: Final = 30
"""States that a strip has at most."""
_GROWTH: Final = 1.2
"""How much larger elements and heap may be at the end."""
LONGEST: Final = 3.0
"""How many times the longest task of the empty page that of the full one may take."""
_CATEGORIES: Final = ("toplevel", "__metadata")


class Documents:
    """Documents of a pool in which a fifth of the rows change at a time."""

    def __init__(self, backends: int, models: int) -> None:
        self._rng = Random(1)
        self._number = 0
        self._backends = [self._backend(number, backends) for number in range(backends)]
        self._models = [self._model(number, backends) for number in range(models)]

    def next(self) -> LiveDocument:
        """Make the next one."""
        self._number += 1
        count = len(self._backends)
        for place in range(self._number % 5, count, 5):
            self._backends[place] = self._backend(place, count)
        for place in range(self._number % 5, len(self._models), 5):
            self._models[place] = self._model(place, count)
        return {
            "version": "bench",
            "at": time.time(),
            "uptime_s": float(self._number),
            "replicas": [],
            "window_s": 5.0,
            "summary": {
                "verdict": "good",
                "why": f"All {count} backends are up.",
                "up": count,
                "backends": count,
                "requests": round(self._rng.random() * 9999, 1),
                "p50_ms": round(self._rng.random() * 9, 2),
                "p99_ms": round(self._rng.random() * 30, 2),
                "errors": {},
                "in_flight": count,
                "queued": 0,
                "oldest_ms": 0.0,
                "retries": 0.0,
                "hedges": 0.0,
            },
            "backends": self._backends,
            "backends_total": count,
            "models": self._models,
            "models_total": 10 * len(self._models),
            "variants": [],
            "placement": [],
            "workers": [self._worker(number) for number in range(WORKERS if count else 0)],
            "changes": [self._change(number) for number in range(100 if count else 0)],
        }

    def _backend(self, number: int, count: int) -> LiveBackend:
        rng = self._rng
        return {
            "name": f"gpu-{number:03}",
            "state": "up",
            "why": "",
            "since_s": float(self._number),
            "past": self._past(number),
            "in_flight": rng.randrange(9),
            "limit": 0,
            "requests": round(rng.random() * 100, 1),
            "share": round(2 * rng.random() / count, 3),
            "errors": 0.0,
            "mean_ms": round(rng.random() * 10, 2),
            "start_share": 1.0,
            "main_models": [
                {"model": "model-0001", "ms": 3.2, "in_flight": 1, "limit": 4, "slowed": 1.0}
            ],
            "models": {"ready": 1000, "loading": 0, "missing": 0, "different": 0},
            "gpu": {
                "devices": 1,
                "utilization": rng.random(),
                "memory_used": 1e9,
                "memory_total": 16e9,
            },
            "cut_in_s": None,
        }

    def _past(self, number: int) -> list[tuple[float, str]]:
        """States of five minutes: some backends come and go every ten seconds."""
        if number % 20:
            return [(300.0, "starting"), (290.0, "up")]
        changes = min(_CHANGES, 1 + self._number // 10)
        return [(10.0 * age, ("up", "suspected")[age % 2]) for age in range(changes, 0, -1)]

    def _model(self, number: int, backends: int) -> LiveModel:
        rng = self._rng
        return {
            "name": f"model-{number:04}",
            "ready_on": backends,
            "not_on": [],
            "requests": round(rng.random() * 100, 2),
            "failures": 0.0,
            "retries": 0.0,
            "hedges": 0.0,
            "p50_ms": round(rng.random() * 10, 2),
            "p99_ms": round(rng.random() * 30, 2),
            "queued": 0,
            "oldest_ms": 0.0,
            "waits": {},
        }

    def _worker(self, number: int) -> LiveWorker:
        rng = self._rng
        return {
            "index": number,
            "pid": 1000 + number,
            "state": "serving",
            "since_s": float(self._number),
            "restarts": 0,
            "connections": 100 + rng.randrange(9),
            "in_flight": rng.randrange(99),
            "requests": round(rng.random() * 1000, 1),
            "cpu": round(rng.random(), 3),
        }

    def _change(self, number: int) -> LiveChange:
        return {
            "age_s": float(self._number + number),
            "at": _BEGAN_AT - number,
            "backend": f"gpu-{number:03}",
            "subject": "http",
            "before": "down",
            "after": "up",
            "why": "probe",
        }


def make_app(backends: int, models: int) -> web.Application:
    """A server of the page and of such documents."""

    async def show_page(_request: web.Request) -> web.Response:
        return page_response()

    async def show_session(_request: web.Request) -> web.Response:
        rights = {"needs_token": False, "token": "", "may_operate": True, "csrf": ""}
        return web.json_response(rights)

    async def send_events(request: web.Request) -> web.StreamResponse:
        documents = Documents(backends, models)
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "text/event-stream"})
        await response.prepare(request)
        with suppress(ConnectionResetError):  # the page is closed
            while True:
                await response.write(b"data: %b\n\n" % json.dumps(documents.next()).encode())
                await asyncio.sleep(_EVERY_S)
        return response

    app = web.Application()
    app.router.add_get("/", show_page)
    app.router.add_get(SESSION, show_session)
    app.router.add_get(EVENTS, send_events)
    return app


@asynccontextmanager
async def open_page(
    browser: Browser, backends: int, models: int
) -> AsyncIterator[tuple[Page, CDPSession]]:
    """The page in a browser, all of its rows drawn, before such a pool."""
    runner = web.AppRunner(make_app(backends, models), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    page = await browser.new_page()
    try:
        await page.goto(f"http://127.0.0.1:{runner.addresses[0][1]}/")
        await page.locator("#content").wait_for()
        if backends:
            await page.locator(f"#backends tr >> nth={backends}").wait_for(state="attached")
        yield page, await page.context.new_cdp_session(page)
    finally:
        await page.close()
        await runner.cleanup()


async def longest_tasks(session: CDPSession, seconds: float) -> Sequence[float]:
    """Milliseconds of processor time that tasks of the page's thread take, the longest first."""
    events: list[dict[str, Any]] = []
    is_complete = asyncio.Event()
    session.on("Tracing.dataCollected", lambda found: events.extend(found["value"]))
    session.on("Tracing.tracingComplete", lambda _: is_complete.set())
    config = {"includedCategories": _CATEGORIES}
    await session.send("Tracing.start", {"transferMode": "ReportEvents", "traceConfig": config})
    await asyncio.sleep(seconds)
    await session.send("Tracing.end")
    await is_complete.wait()
    threads = {
        (each["pid"], each["tid"])
        for each in events
        if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"
    }
    tasks = (
        each["tdur"] / 1000
        for each in events
        if "tdur" in each
        and each["name"].endswith("RunTask")
        and (each["pid"], each["tid"]) in threads
    )
    return sorted(tasks, reverse=True)


async def sizes(page: Page, session: CDPSession) -> tuple[int, float]:
    """Elements, and megabytes of the heap after a collection."""
    readings = []
    for _ in range(_READINGS):
        await session.send("HeapProfiler.collectGarbage")
        readings.append((await session.send("Runtime.getHeapUsage"))["usedSize"] / 1e6)
        await asyncio.sleep(_BETWEEN_S)
    return await page.evaluate("document.querySelectorAll('*').length"), min(readings)


async def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long the page is open (1)")
    given = parser.parse_args()
    has_grown = False
    longest = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        for backends, models in ((BACKENDS, MODELS), (0, 0)):
            async with open_page(browser, backends, models) as (page, session):
                await asyncio.sleep(SETTLING_S)
                first = await sizes(page, session)
                tasks = await longest_tasks(session, _TRACED_S)
                longest.append(tasks[0])
                if backends:
                    await asyncio.sleep(60 * given.minutes - _TRACED_S)
                last = await sizes(page, session)
            has_grown |= any(b > _GROWTH * a for a, b in zip(first, last, strict=True))
            shown = ", ".join(f"{each:.1f}" for each in tasks[:5])
            print(f"{backends} backends, {models} models:")
            print(f"  longest tasks {shown} ms")
            print(
                f"  {first[0]} elements, {first[1]:.2f} MB; at the end {last[0]}, {last[1]:.2f} MB"
            )
        await browser.close()
    ratio = longest[0] / longest[1]
    print(f"longest task: {ratio:.1f} times that of the page without backends")
    return int(has_grown or ratio > LONGEST)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
