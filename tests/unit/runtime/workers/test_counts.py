"""Counts of workers, added up as the control process shows them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

from lb.domain.backend import AppProtocol, Backend
from lb.domain.operation import OperationKind
from lb.domain.outcome import Reason
from lb.proxy.role import RelayRole
from lb.runtime.workers.counts import (
    Path,
    Sums,
    Value,
    changed,
    read_backend_counts,
    read_counts,
)
from lb.telemetry.counts import LoopLag
from tests.fakes.backends import make_backend
from tests.fakes.balancer import running_balancer


class Control:
    """The control process: its own records of backends, and what workers have told."""

    def __init__(self) -> None:
        self.backend = make_backend("gpu-0")
        relay = cast(RelayRole, SimpleNamespace(dispatcher=None))  # not needed for backends
        self.sums = Sums(relay, LoopLag(), lambda _: self.backend)

    def hear(self, worker: int, rows: list[list[Any]]) -> None:
        """A worker tells, as it arrives."""
        self.sums.take(worker, json.loads(json.dumps(rows)))


class Worker:
    """A worker's record of the backend, and what it has told of it."""

    def __init__(self, control: Control, index: int, start: int = 1) -> None:
        self.backend = make_backend("gpu-0")
        self._control = control
        self._index = index
        self._told: dict[Path, Value] = {}
        control.sums.meet(index, start)

    def answer(self, bucket: int, took_s: float) -> None:
        latency = port(self.backend).latency
        latency.counts[bucket] += 1
        latency.sum += took_s

    def tell(self) -> int:
        """Tell what has changed. Returns how many numbers and histograms that were."""
        now = dict(read_backend_counts(self.backend, 0))
        rows = changed(self._told, now)
        self._told |= now
        self._control.hear(self._index, rows)
        return len(rows)


def port(backend: Backend) -> Any:
    return backend.ports[AppProtocol.HTTP]


def test_histograms_of_all_workers_are_one() -> None:
    control = Control()
    one, two = Worker(control, 0), Worker(control, 1)
    one.answer(3, 0.5)
    two.answer(3, 0.25)
    two.answer(5, 1.0)
    one.tell()
    two.tell()
    one.answer(3, 0.5)
    one.tell()
    latency = port(control.backend).latency
    assert (latency.counts[3], latency.counts[5], latency.sum) == (3, 1, 2.25)


def test_a_worker_that_has_done_nothing_tells_nothing() -> None:
    worker = Worker(Control(), 0)
    worker.answer(3, 0.5)
    assert worker.tell() == 1
    assert worker.tell() == 0


def test_what_a_worker_has_counted_stays_when_it_ends_and_what_it_had_open_goes() -> None:
    control = Control()
    worker = Worker(control, 0)
    worker.answer(3, 0.5)
    worker.backend.in_flight = 2
    worker.tell()
    assert control.backend.in_flight == 2
    control.sums.end(0)
    assert control.backend.in_flight == 0
    after = Worker(control, 0, start=2)
    after.answer(3, 0.5)
    after.tell()
    latency = port(control.backend).latency
    assert (latency.counts[3], latency.sum) == (2, 1.0)


async def test_each_number_that_a_worker_tells_is_added_up() -> None:
    config = {"listen": {"http": "127.0.0.1:0"}, "backends": [{"http": "127.0.0.1:1"}]}
    async with running_balancer(config) as balancer:
        relay, lag = balancer.product.relay, LoopLag()
        [backend] = relay.dispatcher.pool.current.backends
        for traffic in relay.meter.traffic:
            traffic.failed(Reason.NO_BACKEND, OperationKind.INFERENCE)

        def read() -> dict[Path, Value]:
            lines = balancer.product.dropped_lines()
            counts = (
                *read_counts(relay, lag, lines, lambda _: 0),
                *read_backend_counts(backend, 0),
            )
            return {path: value for path, value in counts if isinstance(value, int | float)}

        before = read()
        sums = Sums(relay, lag, lambda _: backend)
        sums.take(0, [[list(path), 1] for path in before])
        assert read() == {path: value + 1 for path, value in before.items()}
        assert (relay.load_sample().refused, relay.load_sample().open) == (4, 1)
        sums.end(0)
        assert (relay.load_sample().refused, relay.load_sample().open) == (4, 0)
