"""A process that stands for the load balancer in tests of the demo.

It is one simulated Triton at the addresses of a configuration file, with the answers of the
load balancer that the demo asks for: `python -m tests.fakes.demo_balancer FILE [MODEL ...]`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import yaml
from aiohttp import web

from lb.simulator.models import MODELS
from lb.simulator.process import Ports, Simulator
from lb.simulator.server import SimulatedTriton
from tests.fakes.views import backend


async def answer_at(address: str, path: str, answer: object) -> web.AppRunner:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response(answer)

    application = web.Application()
    application.router.add_get(path, handle)
    application.router.add_post(f"{path}/{{name}}/{{action}}", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    host, _, port = address.rpartition(":")
    await web.TCPSite(runner, host, int(port)).start()
    return runner


async def main(config: str, models: list[str]) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    settings = yaml.safe_load(config)
    listen = settings["listen"]
    backends = [
        backend(each["name"], latency={"p50_ms": 1.5, "p99_ms": None})
        for each in settings["backends"]
    ]
    ports = [int(listen[name].rpartition(":")[2]) for name in ("http", "grpc")]
    async with AsyncExitStack() as stack:
        triton = SimulatedTriton(models or MODELS, speed=100)
        await stack.enter_async_context(Simulator(triton, Ports("127.0.0.1", *ports, 0)))
        for address, path, answer in (
            (listen["admin"], "/api/v1/backends", {"backends": backends}),
            (listen["metrics"], "/readyz", {}),
        ):
            runner = await answer_at(address, path, answer)
            stack.push_async_callback(runner.cleanup)
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).read_text(), sys.argv[2:]))
