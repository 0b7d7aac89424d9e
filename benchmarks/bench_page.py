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
import os
import pty
import re
import select
import subprocess
import sys
import time
from itertools import cycle

from playwright.async_api import CDPSession, async_playwright

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
    ours, theirs = pty.openpty()
    command = (sys.executable, "-m", "lb", "demo")
    demo = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    try:
        address = _address(ours)
        readings = asyncio.run(_watch(address, ours, given.minutes))
    finally:
        demo.terminate()
        demo.wait(30)
    first, last = readings[min(SETTLED_AFTER_MIN, len(readings) - 1)], readings[-1]
    grown = [name for name in FIGURES if last[name] > GROWTH * first[name]]
    print("grown: " + (", ".join(grown) or "nothing"))
    return 1 if grown else 0


def _address(terminal: int) -> str:
    """The address of the page, which the demo prints."""
    seen = ""
    while not (found := re.search(r"open +(http\S+)", seen)):
        seen += os.read(terminal, 65536).decode()
    return found[1]


async def _watch(address: str, terminal: int, minutes: int) -> list[dict[str, float]]:
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
                os.write(terminal, next(keys).encode())
                await asyncio.sleep(ACT_EVERY_S)
                while select.select([terminal], [], [], 0)[0]:
                    os.read(terminal, 65536)  # or the demo would wait for its reader
        await browser.close()
        return readings


async def _read(session: CDPSession) -> dict[str, float]:
    await session.send("HeapProfiler.collectGarbage")
    metrics = (await session.send("Performance.getMetrics"))["metrics"]
    return {each["name"]: each["value"] for each in metrics}


if __name__ == "__main__":
    sys.exit(main())
