"""How many spans a second a process sends while many more are offered.

    python -m benchmarks.spans [--seconds 10]

The collector is a process of its own, on loopback, and takes all. Spans are offered at 25,000 a
second, which is 10 MB/s, to the product's queue and exporter; the event loop does nothing else.
What counts beside the rate is the share of the time that encoding and sending hold the loop's
thread: requests get the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection
from random import Random

from aiohttp import web

from lb.telemetry.span_exporter import ExportOptions, SpanExporter
from lb.telemetry.spans import SpanQueue
from tests.fakes.records import PlainRecord, request_record

PER_SECOND = 25_000
STEP_S = 0.01


def collect(pipe: Connection) -> None:
    """Be a collector until the parent ends it; tells its port, then the bytes of each request."""

    async def take(request: web.Request) -> web.Response:
        pipe.send(len(await request.read()))
        return web.Response()

    async def serve() -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/traces", take)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        pipe.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(serve())


async def offer(spans: SpanQueue, seconds: float) -> int:
    """Offer spans for so long; returns how many."""
    began, offered = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        while offered < passed * PER_SECOND:
            spans.add(request_record(PlainRecord(), number=offered))
            offered += 1
        await asyncio.sleep(STEP_S)
    return offered


async def offering_alone(seconds: float) -> float:
    """Share of the thread's time that offering takes by itself."""
    spans = SpanQueue()
    began, used = time.monotonic(), time.thread_time()
    await offer(spans, seconds)
    return (time.thread_time() - used) / (time.monotonic() - began)


async def run(port: int, seconds: float) -> tuple[int, int, float]:
    """Offer and send; returns spans offered, spans sent, and the share of the thread's time."""
    spans = SpanQueue()
    exporter = SpanExporter(spans, Random(1))
    exporter.configure(ExportOptions(endpoint=f"http://127.0.0.1:{port}/v1/traces"))
    task = asyncio.create_task(exporter.run())
    began, used = time.monotonic(), time.thread_time()
    offered = await offer(spans, seconds)
    share = (time.thread_time() - used) / (time.monotonic() - began)
    sent = spans.exported
    task.cancel()
    await asyncio.wait([task])
    return offered, sent, share


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    seconds = parser.parse_args().seconds
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=collect, args=(theirs,))
    process.start()
    try:
        port = ours.recv()
        alone = asyncio.run(offering_alone(seconds))
        offered, sent, share = asyncio.run(run(port, seconds))
        received = 0
        while ours.poll():
            received += ours.recv()
    finally:
        process.terminate()
        process.join()
    size = received / sent
    print(f"offered: {offered / seconds:,.0f} spans/s, {offered * size / seconds / 1e6:.1f} MB/s")
    print(f"sent: {sent / seconds:,.0f} spans/s, {received / seconds / 1e6:.1f} MB/s")
    print(f"the exporter takes {share - alone:.0%} of the thread's time")


if __name__ == "__main__":
    main()
