"""Requests wait in the balancer until a real Triton can take them, and NVIDIA's clients notice
nothing but that."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio
from tritonclient.utils import InferenceServerException

from tests.fakes.process import wait_until
from tests.fakes.serving import metric
from tests.triton.balancer import RunningBalancer
from tests.triton.load import Load
from tests.triton.server import RealTriton
from tests.triton.tensors import milliseconds

INSTANCES = 4
"""Of the model, on each Triton."""
SCHEDULING: dict[str, Any] = {"max_requests_per_backend": "auto", "deadline_header": "x-timeout"}
PATIENCE_S = 60.0


@pytest.fixture
def queueing(tmp_path: Path, tritons: tuple[RealTriton, ...]) -> Iterator[RunningBalancer]:
    """A balancer that schedules what it knows of, before one Triton."""
    for running in RunningBalancer.run(tmp_path, tritons[:1], scheduling=SCHEDULING):
        wait_until(
            lambda running=running: _is_scheduled(running),  # type: ignore[misc]
            timeout_s=PATIENCE_S,
            what="the configuration of the model is known",
        )
        yield running


def _is_scheduled(balancer: RunningBalancer) -> bool:
    async def ask() -> None:
        async with Load(balancer.target, clients=0) as load:
            await load.ask_http(1)

    asyncio.run(ask())
    return any(each["model"] == "sleeper" for each in _queue(balancer)["models"])


def _queue(balancer: RunningBalancer) -> Any:
    return balancer._admin("GET", "/api/v1/queue")


def _waiting(balancer: RunningBalancer) -> int:
    return sum(sum(each["waiting"].values()) for each in _queue(balancer)["models"])


async def _until_waiting(balancer: RunningBalancer, count: int) -> None:
    await asyncio.to_thread(
        wait_until,
        lambda: _waiting(balancer) >= count,
        timeout_s=PATIENCE_S,
        what=f"{count} requests wait",
    )


async def test_what_a_triton_cannot_run_waits_here_and_all_of_it_is_answered(
    queueing: RunningBalancer,
) -> None:
    async with Load(queueing.target, clients=0) as load:
        asks = [asyncio.ensure_future(ask(500)) for ask in (load.ask_http, load.ask_grpc) * 15]
        await _until_waiting(queueing, 10)
        assert queueing.in_flight() <= 3 * INSTANCES
        await asyncio.gather(*asks)
    assert load.failures == []
    assert metric(queueing.metrics, 'triton_lb_queue_waits_total{model="sleeper",why="limit"}') > 9
    assert metric(queueing.metrics, 'triton_lb_queue_wait_seconds_count{model="sleeper"}') >= 30
    assert _waiting(queueing) == 0
    assert queueing.in_flight() == 0


async def test_priorities_and_deadlines_of_nvidias_clients_count(
    queueing: RunningBalancer,
) -> None:
    ended: list[str] = []

    async def ask(client: Any, kind: Any, name: str, **more: Any) -> None:
        try:
            await client.infer("sleeper", kind, request_id=name, **more)
        except InferenceServerException as error:
            name = f"{name}: {error.status() or error.message()}"
        ended.append(name)

    grpc, http = milliseconds(grpcclient, 500), milliseconds(httpclient, 500)
    async with (
        grpcaio.InferenceServerClient(queueing.target.grpc) as by_grpc,
        httpaio.InferenceServerClient(queueing.target.http, conn_limit=100) as by_http,
    ):
        tasks = [
            asyncio.ensure_future(ask(by_grpc, grpc, f"bulk-{n}", priority=3)) for n in range(40)
        ]
        await _until_waiting(queueing, 15)
        began = time.monotonic()
        late = [
            asyncio.ensure_future(ask(by_grpc, grpc, "late", client_timeout=0.05, priority=3)),
            asyncio.ensure_future(
                ask(by_http, http, "late", headers={"x-timeout": "50ms"}, priority=3)
            ),
        ]
        await asyncio.gather(*late)
        assert time.monotonic() - began < 20.0
        early = [
            asyncio.ensure_future(ask(by_grpc, grpc, "urgent", priority=1)),
            asyncio.ensure_future(ask(by_http, http, "urgent", priority=1)),
        ]
        await asyncio.gather(*early, *tasks)
    assert sorted(name for name in ended if ":" in name) == [
        "late: 504",
        "late: StatusCode.DEADLINE_EXCEEDED",
    ]
    urgent = [place for place, name in enumerate(ended) if name == "urgent"]
    assert len(urgent) == 2
    assert max(urgent) < len(ended) - 5


async def test_a_reload_lets_all_go_that_wait(
    queueing: RunningBalancer, tritons: tuple[RealTriton, ...]
) -> None:
    async with Load(queueing.target, clients=0) as load:
        asks = [asyncio.ensure_future(ask(800)) for ask in (load.ask_http, load.ask_grpc) * 10]
        await _until_waiting(queueing, 8)
        queueing.configure(tritons[:1], scheduling={"max_requests_per_backend": "off"})
        queueing.process().send_signal(signal.SIGHUP)
        await asyncio.to_thread(
            wait_until,
            lambda: not _waiting(queueing),
            timeout_s=PATIENCE_S,
            what="none waits",
        )
        await asyncio.gather(*asks)
    assert load.failures == []


async def test_a_shutdown_answers_what_waits(queueing: RunningBalancer) -> None:
    async with Load(queueing.target, clients=0) as load:
        asks = [asyncio.ensure_future(ask(600)) for ask in (load.ask_http, load.ask_grpc) * 10]
        await _until_waiting(queueing, 8)
        queueing.process().send_signal(signal.SIGTERM)
        await asyncio.gather(*asks)
    assert load.failures == []
