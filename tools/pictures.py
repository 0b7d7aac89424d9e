"""Make the pictures for the documentation: the page in headless Chromium, and `triton-lb top`.

    python tools/pictures.py [--output docs/pictures] [--widths 360 1280 1920] [--whole]

All are of real processes: simulated Tritons get requests through a balancer, one is killed, one is
drained. Needs `make debian` (Chromium) and takes about a minute and a half.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from pathlib import Path
from random import Random

import aiohttp
import yaml
from playwright.async_api import async_playwright
from terminal import record, svg

sys.path.insert(0, str(Path(__file__).parents[1]))

from lb.cli.demo.load import Arrivals, RequestTally, http_infer
from lb.net.tasks import TaskOwner
from tests.fakes.process import ENVIRONMENT, ChildProcess, free_ports, wait_until

CHROMIUM = "/usr/bin/chromium"
BACKENDS = ("gpu-0", "gpu-1", "gpu-2", "gpu-3")
SPEEDS = (0.2, 0.05, 0.2, 0.1)
HEIGHTS = {360: 780, 1280: 650, 1920: 1080}
"""Of a telephone, of a window, and of a wall screen, by width in pixels."""
TERMINAL = (104, 12)
"""Columns and lines."""
BEFORE_S = 60.0
"""Of nothing but requests, so that strips and curves show something."""
TOP_S = 5.0
"""Until the rates that `top` shows are those of some seconds."""
RATE = 150.0
"""Requests per second."""


async def main() -> None:
    """Start everything, let something happen, take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--widths", type=int, nargs="+", default=list(HEIGHTS))
    parser.add_argument("--whole", action="store_true", help="the whole page, however long")
    parser.add_argument("--schemes", nargs="+", default=["light", "dark"])
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        children: list[ChildProcess] = []
        try:
            await _play(Path(folder), children, given)
        finally:
            for child in children:
                child.close()


async def _play(folder: Path, children: list[ChildProcess], given: argparse.Namespace) -> None:
    entries = []
    for name, speed in zip(BACKENDS, SPEEDS, strict=True):
        log = folder / f"{name}.log"
        command = (sys.executable, "-m", "lb.simulator", "--speed", str(speed), "--gpu", name)
        child = ChildProcess(command, log=log, env=ENVIRONMENT)
        children.append(child)
        wait_until(lambda log=log: log.read_text().endswith("\n"), timeout_s=20, what=name)
        ports = json.loads(log.read_text().splitlines()[-1])
        address = {key: f"127.0.0.1:{ports[f'{key}_port']}" for key in ("http", "grpc", "metrics")}
        entries.append({"name": name, **address})
    http, grpc, metrics, admin = (f"127.0.0.1:{port}" for port in free_ports(4))
    listen = {"http": http, "grpc": grpc, "metrics": metrics, "admin": admin}
    config = folder / "config.yaml"
    settings = {
        "listen": listen,
        "backends": entries,
        "scheduling": {"load_poll_interval": "1s"},
    }
    config.write_text(yaml.safe_dump(settings))
    serve = ChildProcess(
        (sys.executable, "-m", "lb", "serve", "--config", str(config)),
        log=folder / "serve.log",
        env=ENVIRONMENT,
    )
    children.append(serve)
    wait_until(lambda: " serving " in serve.log.read_text(), timeout_s=20, what="the start")
    async with aiohttp.ClientSession() as session, async_playwright() as playwright:
        infer = http_infer(session, http)
        tally = RequestTally("HTTP")
        senders = TaskOwner()
        arrivals = Arrivals([((infer, tally),)], Random(1))
        senders.spawn(arrivals.send(RATE), name="arrivals")
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        pages = []
        for scheme in given.schemes:
            for width in given.widths:
                page = await browser.new_page(
                    viewport={"width": width, "height": HEIGHTS.get(width, width * 9 // 16)},
                    color_scheme=scheme,
                )
                await page.goto(f"http://{admin}/")
                pages.append((f"page-{width}-{scheme}.png", width, page))
        await asyncio.sleep(BEFORE_S)
        async with session.post(f"http://{admin}/api/v1/backends/gpu-1/drain") as answer:
            answer.raise_for_status()
        await asyncio.sleep(4)
        children[3].signal(signal.SIGKILL)
        await asyncio.sleep(6)
        for name, width, page in pages:
            if given.whole:  # what is out of sight is not drawn
                high = await page.evaluate("document.documentElement.scrollHeight")
                await page.set_viewport_size({"width": width, "height": high})
                await asyncio.sleep(1)
            await page.screenshot(path=given.output / name, full_page=given.whole)
            print(given.output / name)
        await browser.close()
        command = (sys.executable, "-m", "lb", "top", "--admin", admin)
        frames = await asyncio.to_thread(lambda: [*record(command, *TERMINAL, seconds=TOP_S)])  # noqa: TID251  # a tool
        title = "triton-lb top: gpu-3 is down and gpu-1 is draining"
        (given.output / "top.svg").write_text(svg(frames[-1:], *TERMINAL, title))
        print(given.output / "top.svg")
        await senders.aclose()
        print(f"{tally.right} right, {tally.wrong} wrong, {tally.failed} failed")


if __name__ == "__main__":
    asyncio.run(main())
