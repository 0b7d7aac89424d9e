"""Cost of the admin API's views for a pool of 200 backends with 1,000 models each.

    python -m benchmarks.bench_admin

For each view are printed: the size of its answer; the CPU time of one request; the CPU time of the
longest iteration of the event loop in half of the requests, and the longest one of all. CPU time is
that of the loop's thread, so other processes of the machine do not count. The client is a process
of its own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
import urllib.request
from collections.abc import Sequence
from multiprocessing.connection import Connection

from aiohttp import web

from lb.admin.app import make_admin_app
from lb.admin.operations import BACKENDS, OPENAPI, QUEUE, STATUS
from lb.control.directory import BackendDirectory
from lb.control.membership import Membership
from lb.control.record import Member
from lb.domain.load import DeviceLoad, LoadReport
from lb.domain.model import ModelEntry, ModelState
from lb.domain.schedule import ModelBackendView, ModelQueueView
from lb.health.models import ModelList
from lb.health.port import Finding
from lb.probes.probe import ProbeResult
from lb.telemetry.queue import QueueStatus
from tests.fakes.backends import make_spec
from tests.fakes.relay import named_policy

BACKEND_COUNT = 200
MODEL_COUNT = 1000
BACKENDS_OF_MODEL = 10
"""Backends that each queued model has run on."""
REQUESTS = 20
NOW = 111.0
PATHS = (STATUS, BACKENDS, f"{BACKENDS}/gpu-000", f"{BACKENDS}/gpu-000/models", QUEUE, OPENAPI)


def make_pool() -> BackendDirectory:
    """All backends up, with some traffic behind them, and the same models everywhere."""
    directory = BackendDirectory(named_policy("least_loaded"))
    names = [f"gpu-{number:03}" for number in range(BACKEND_COUNT)]
    directory.replace([Member(make_spec(name), origin="configuration") for name in names], 100.0)
    for port in directory.ports():
        directory.probe_sent(port, 101.0)
        directory.probed(port, ProbeResult(Finding.READY, latency_s=0.002), 101.0)
    models = ModelList(
        [ModelEntry(_model(number), b"1", ModelState.READY) for number in range(MODEL_COUNT)]
    )
    gpu = DeviceLoad(device=b"GPU-0", utilization=0.3, memory_used=1e9, memory_total=16e9)
    for record in directory.records:
        record.models.listed(models, 101.0)
        record.load = LoadReport(at=101.0, devices=(gpu,), others=0.1)
        for each in record.ports:
            each.port.latency.counts[3] = 100
            each.port.codes[200] = 100
    return directory


def make_queue(directory: BackendDirectory) -> QueueStatus:
    """Requests of two priorities in the queue of each model."""
    backends = [record.backend for record in tuple(directory.records)[:BACKENDS_OF_MODEL]]
    return QueueStatus(
        model_queues=[
            ModelQueueView(model=_model(number), version=b"", waiting={0: 1, 1: 2}, oldest_s=0.1)
            for number in range(MODEL_COUNT)
        ],
        model_backends=[
            ModelBackendView(
                model=_model(number),
                version=b"",
                backend=backend,
                in_flight=1,
                limit=2,
                expected_s=0.005,
                row_s=0.001,
                learnt=9,
            )
            for number in range(MODEL_COUNT)
            for backend in backends
        ],
    )


def _model(number: int) -> bytes:
    return b"model-%04d" % number


def run_client(port: int, connection: Connection) -> None:
    """A process that asks for the paths it is told, and says how long each answer is."""
    while path := connection.recv():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            connection.send(len(answer.read()))


async def measure(path: str, client: Connection) -> tuple[int, float, float]:
    """One request: bytes of the answer, and in seconds of CPU time all work and the longest
    iteration of the loop."""
    client.send(path)
    work = longest = 0.0
    before = time.thread_time()
    while not client.poll():
        await asyncio.sleep(0)
        now = time.thread_time()
        if now - before > 50e-6:  # an iteration that only waits takes less
            work += now - before
            longest = max(longest, now - before)
        before = now
    return client.recv(), work, longest


def row(path: str, measured: Sequence[tuple[int, float, float]]) -> str:
    """One row of the table."""
    sizes, work, longest = zip(*measured, strict=True)
    return (
        f"{path:32} {sizes[0]:9} {1000 * statistics.median(work):9.2f} "
        f"{1000 * statistics.median(longest):9.2f} {1000 * max(longest):9.2f}"
    )


async def main() -> None:
    """Measure all views."""
    directory = make_pool()
    queue = make_queue(directory)
    app = make_admin_app(
        directory, Membership(directory), version="1", clock=lambda: NOW, queue=lambda: queue
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    port = runner.addresses[0][1]
    client = spawn.Process(target=run_client, args=(port, theirs), daemon=True)
    client.start()
    print(f"{'view':32} {'bytes':>9} {'CPU ms':>9} {'longest':>9} {'of all':>9}")
    for path in PATHS:
        await measure(path, ours)  # connects, and fills caches
        print(row(path, [await measure(path, ours) for _ in range(REQUESTS)]), flush=True)
    ours.send("")
    await runner.cleanup()
    client.join()


if __name__ == "__main__":
    asyncio.run(main())
