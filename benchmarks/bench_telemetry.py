"""Cost of telemetry: counting a request, logging it, and making the metrics page.

    python -m benchmarks.bench_telemetry

Prints the best of several rounds, so that other work on the machine shows as little as possible.
The pages of backends come over loopback from a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from aiohttp import ClientSession, web

from lb.admin.metrics_app import make_metrics_app
from lb.domain.backend import Address, AppProtocol
from lb.domain.outcome import Reason
from lb.settings.reporting import AccessLogMode
from lb.telemetry.access_log import AccessLog
from lb.telemetry.collector import PortStatus, make_registry
from lb.telemetry.line_writer import LineWriter
from lb.telemetry.meter import Meter
from tests.fakes.backends import make_backends
from tests.fakes.metrics import Counters
from tests.fakes.records import PlainRecord, grpc_record
from tests.reference.access_line import fields

ROUNDS = 9
CALLS = 50_000
MODELS = 11
FAMILIES = 11


def best_ns(call: Callable[[], object], calls: int = CALLS) -> float:
    """Nanoseconds per call, the loop around it taken off."""
    best = empty = float("inf")
    for _ in range(ROUNDS):
        started_at = time.perf_counter_ns()
        for _ in range(calls):
            call()
        best = min(best, time.perf_counter_ns() - started_at)
        started_at = time.perf_counter_ns()
        for _ in range(calls):
            (lambda: None)()
        empty = min(empty, time.perf_counter_ns() - started_at)
    return (best - empty) / calls


def bench_meter() -> None:
    """`Meter.finished` for requests of several sorts."""
    backend = make_backends(0)[0]
    for name, record in (
        ("HTTP", PlainRecord(backend=backend)),
        ("gRPC", grpc_record(backend=backend)),
        ("gRPC, no model", grpc_record(backend=backend, model=b"")),
        ("HTTP, error of ours", PlainRecord(status=503, reason=Reason.NO_BACKEND)),
        ("HTTP, made-up model", PlainRecord(backend=backend, model=b"nonsense", status=400)),
    ):
        meter = Meter()
        if "made-up" not in name:
            meter.finished(PlainRecord(model=record.model))
        cost = best_ns(lambda meter=meter, record=record: meter.finished(record))  # type: ignore[misc]
        print(f"Meter.finished, {name:22} {cost:8.0f} ns")


def bench_access_log() -> None:
    """A line, against the plain way to make it."""
    writer = LineWriter(Path("/dev/null"), name="bench", batch_delay_s=0.05)
    log = AccessLog(writer, mode=AccessLogMode.ALL, sample=1.0, rng=Random(1))
    off = AccessLog(writer, mode=AccessLogMode.ERRORS, sample=1.0, rng=Random(1))
    record = grpc_record(backend=make_backends(0)[0])
    print(f"AccessLog.finished, not logged   {best_ns(lambda: off.finished(record)):8.0f} ns")
    print(f"AccessLog.line                   {best_ns(lambda: log.line(record), 10_000):8.0f} ns")
    plain = best_ns(lambda: json.dumps(fields(record)), 10_000)
    print(f"the same by json.dumps           {plain:8.0f} ns")
    writer.close()


def triton_page() -> bytes:
    """About what a Triton with eleven models says: 13 KB."""
    lines = []
    for family in range(FAMILIES):
        name = f"nv_inference_request_duration_us_{family}"
        lines += [f"# HELP {name} Cumulative inference request duration in microseconds"]
        lines += [f"# TYPE {name} counter"]
        lines += [
            f'{name}{{model="some_long_model_name_{model}",version="1"}} {model * 1234567}'
            for model in range(MODELS)
        ]
    return "\n".join(lines).encode() + b"\n"


def serve_pages(report: Connection) -> None:
    """A metrics port that stands for all backends."""
    page = triton_page()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(page)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + page)
        await reader.read()
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        report.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def counters_of(count: int) -> Counters:
    """Counters of a process with so many busy backends."""
    counters = Counters(backends=make_backends(*([1] * count)))
    for backend in counters.backends:
        for protocol in AppProtocol:
            port = backend.port(protocol)
            port.codes = {0: 7} if protocol else {200: 5, 400: 2}
            port.failures = {"upstream_lost": 1}
        counters.meter.finished(PlainRecord(backend=backend))
        counters.meter.finished(grpc_record(backend=backend))
    counters.statuses = [
        PortStatus(backend.name, protocol, "up", is_up=True, changes=1)
        for backend in counters.backends
        for protocol in AppProtocol
    ]
    return counters


class Turns:
    """Watches how long the loop is held between two turns."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        before = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            self.longest = max(self.longest, now - before)
            before = now

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def bench_page(count: int, port: int) -> None:
    """One page with `count` backends, ours alone and with theirs."""
    counters = counters_of(count)
    app = make_metrics_app(
        make_registry(counters.collector()),
        is_ready=lambda: True,
        targets=lambda: [(b.name, Address("127.0.0.1", port)) for b in counters.backends],
        include_backends=True,
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = runner.addresses[0]
    async with ClientSession() as session:
        for path in ("/metrics/own", "/metrics"):
            cpu = held = float("inf")
            for _ in range(ROUNDS):
                await asyncio.sleep(1.0 if path == "/metrics" else 0.0)  # let the cache expire
                before = time.process_time()
                page = await read(session, f"http://127.0.0.1:{address[1]}{path}")
                cpu = min(cpu, time.process_time() - before)
                if path == "/metrics":
                    await asyncio.sleep(1.0)
                turns = Turns()
                await read(session, f"http://127.0.0.1:{address[1]}{path}")
                await turns.stop()
                held = min(held, turns.longest)
            failed = sum(
                not line.endswith(b" 0.0")
                for line in page.split(b"\n")
                if line.startswith(b"triton_lb_backend_scrape_failures_total{")
            )
            print(
                f"{path:13} {count:4} backends: {cpu * 1e3:7.1f} ms CPU, loop held for at most "
                f"{held * 1e3:5.1f} ms, {len(page):8} bytes, {failed} scrapes failed"
            )
    await runner.cleanup()


async def read(session: ClientSession, url: str) -> bytes:
    """The page."""
    async with session.get(url) as response:
        return await response.read()


def main() -> None:
    """Run all."""
    bench_meter()
    bench_access_log()
    ours, theirs = multiprocessing.Pipe()
    backend = multiprocessing.get_context("spawn").Process(
        target=serve_pages, args=(theirs,), daemon=True
    )
    backend.start()
    port = ours.recv()
    for count in (3, 200):
        asyncio.run(bench_page(count, port))
    backend.terminate()


if __name__ == "__main__":
    main()
