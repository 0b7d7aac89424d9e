"""Whether the page grows in ten minutes in headless Chromium, while Tritons come and go.

    python -m benchmarks.bench_page [--minutes 10]

The demo runs, whose Tritons are killed, frozen and drained at its keys, one act every ten seconds.
Printed each minute, after a collection of garbage: bytes of the script's heap, DOM nodes, event
listeners. The exit code is 1 if any of them is more than a tenth larger at the end than after
seven minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from itertools import cycle

from playwright.async_api import CDPSession, async_playwright

from tests.fakes.terminal import Terminal

ACTS = "krfrdr"
"""Keys of the demo: kill, restore, freeze, restore, drain, restore."""
ACT_EVERY_S = 10.0
SETTLED_AFTER_MIN = 7
"""By then the strips of five minutes and the list of the last 100 changes are full."""
FIGURES = ("JSHeapUsedSize", "Nodes", "JSEventListeners")
GROWTH = 1.1


def main() -> int:
    """Run it; 1 if something grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=10)
    given = parser.parse_args()
    with Terminal((sys.executable, "-m", "lb", "demo"), columns=120) as terminal:
        terminal.until("k kill")
        found = re.search(r"open +(http\S+)", terminal.text)
        assert found is not None
        readings = asyncio.run(_watch(found[1], terminal, given.minutes))
    first, last = readings[min(SETTLED_AFTER_MIN, len(readings) - 1)], readings[-1]
    grown = [name for name in FIGURES if last[name] > GROWTH * first[name]]
    print("grown: " + (", ".join(grown) or "nothing"))
    return 1 if grown else 0


async def _watch(address: str, terminal: Terminal, minutes: int) -> list[dict[str, float]]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        page = await browser.new_page()
        await page.goto(address)
        session = await page.context.new_cdp_session(page)
        await session.send("Performance.enable")
        keys = cycle(ACTS)
        readings = []
        for minute in range(minutes + 1):
            readings.append(await _read(session))
            shown = ", ".join(f"{name} {readings[-1][name]:,.0f}" for name in FIGURES)
            print(f"minute {minute}: {shown}", flush=True)
            until = time.monotonic() + 60.0
            while minute < minutes and time.monotonic() < until:
                terminal.press(next(keys))
                await asyncio.to_thread(terminal.read_for, ACT_EVERY_S)
        await browser.close()
        return readings


async def _read(session: CDPSession) -> dict[str, float]:
    await session.send("HeapProfiler.collectGarbage")
    metrics = (await session.send("Performance.getMetrics"))["metrics"]
    return {each["name"]: each["value"] for each in metrics}


if __name__ == "__main__":
    sys.exit(main())
