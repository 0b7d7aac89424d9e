"""What the live document costs the event loop: 200 backends, 1,000 models, all of them in use.

    python -m benchmarks.bench_live

Printed are milliseconds of processor time for one document and for the longest of the steps in
which it is made, and its size. A document is what a second costs while anybody looks; each viewer
adds the writing of those bytes. Counting the requests of that second by model, which a scrape or a
document does for both, stands apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

from lb.admin.live import LiveView
from lb.control.directory import BackendDirectory
from lb.control.drift import table_statuses
from lb.control.record import Member
from lb.domain.backend import Address, AppProtocol, BackendSpec
from lb.domain.load import DeviceLoad, LoadReport
from lb.domain.model import ModelEntry, ModelState
from lb.domain.operation import Operation, OperationKind
from lb.domain.schedule import Capacity, QueuePlan, RequestClass, Ticket
from lb.health.models import ModelList
from lb.health.port import Finding
from lb.probes.probe import ProbeResult
from lb.telemetry.meter import Meter
from lb.telemetry.record import RequestRecord
from tests.fakes.live import live_sources
from tests.fakes.relay import Scheduler, named_policy, new_scheduler

BACKENDS = 200
MODELS = 1000
DOCUMENTS = 40
_OVER = object()
_INFER = Operation("ModelInfer", OperationKind.INFERENCE)


def make_directory(now: float) -> BackendDirectory:
    """All backends are up, list all models, and show a GPU."""
    directory = BackendDirectory(named_policy("least_loaded"))
    members = [
        Member(
            BackendSpec(
                name=f"gpu-{number:03}",
                http=Address("10.0.0.1", 1000 + number),
                grpc=Address("10.0.0.1", 2000 + number),
            )
        )
        for number in range(BACKENDS)
    ]
    directory.replace(members, now)
    entries = [
        ModelEntry(f"model-{number:04}".encode(), b"1", ModelState.READY, "")
        for number in range(MODELS)
    ]
    for record in directory.records:
        for port in record.ports:
            directory.probe_sent(port, now)
            directory.probed(port, ProbeResult(Finding.READY, latency_s=0.001), now)
        record.models.listed(ModelList(entries), now)
        directory.models_changed(record, now)
        device = DeviceLoad(device=b"GPU", utilization=0.5, memory_used=1e9, memory_total=16e9)
        record.load = LoadReport(at=now, devices=(device,))
    return directory


def play(meter: Meter, directory: BackendDirectory, rng: Random, count: int) -> None:
    """Count requests for all models on all backends."""
    backends = [record.backend for record in directory.records]
    for _ in range(count):
        record = RequestRecord()
        record.protocol = AppProtocol.GRPC
        record.operation = _INFER
        record.model = f"model-{rng.randrange(MODELS):04}".encode()
        record.backend = backend = rng.choice(backends)
        record.attempts = 1
        record.status, record.grpc_status, record.reason = 0, 0, None
        record.bytes_in = record.bytes_out = 100
        record.started_at, record.ended_at = 0.0, rng.expovariate(100)
        meter.finished(record)
        port = backend.port(AppProtocol.GRPC)
        port.codes[0] = port.codes.get(0, 0) + 1
        port.latency.counts[4] += 1
        port.latency.sum += 0.01


def make_scheduler(directory: BackendDirectory, now: float) -> Scheduler:
    """Every model is scheduled on every backend: 200,000 model backends."""
    scheduler = new_scheduler()
    backends = tuple(record.backend for record in directory.records)
    plan = QueuePlan(limits={}, default=Capacity(concurrency=4))
    for number in range(MODELS):
        ticket = Ticket(RequestClass(f"model-{number:04}".encode(), b"", plan, backends), now)
        scheduler.offer(ticket, now)
    return scheduler


def _measure(steps: Iterator[None]) -> Iterator[float]:
    """Milliseconds of processor time of each step."""
    is_over = False
    while not is_over:
        began = time.thread_time()
        is_over = next(steps, _OVER) is _OVER
        yield 1000 * (time.thread_time() - began)


def main() -> None:
    """Measure and print."""
    rng, now = Random(1), time.monotonic()
    directory, meter = make_directory(now), Meter()
    scheduler = make_scheduler(directory, now)
    clock = now
    view = LiveView(
        live_sources(
            directory,
            meter,
            model_queues=lambda now: scheduler.model_queues(now, idle=False),
            model_backends=scheduler.model_backends,
            queued=lambda: 1,
            tables=lambda: table_statuses(directory, clock),
        ),
        lambda: clock,
    )
    counted, took, longest = [], [], []
    for _ in range(DOCUMENTS):
        play(meter, directory, rng, 2000)
        clock += 1.0
        counts = list(_measure(meter.settle()))
        steps = list(_measure(view.make()))
        counted.append(sum(counts))
        took.append(sum(steps))
        longest.append(max(steps))
    print(f"{BACKENDS} backends, {MODELS} models, one document:")
    rows = ("all of it", took), ("its longest step", longest), ("requests counted first", counted)
    for name, figures in rows:
        ordered = sorted(figures[10:])
        print(f"  {name}: median {ordered[len(ordered) // 2]:.2f} ms, worst {ordered[-1]:.2f} ms")
    print(f"  {len(view.text) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
