"""What only the balancer does: spread requests, take a Triton out by hand, show metrics."""

from __future__ import annotations

import asyncio
import queue
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import tritonclient.grpc as grpcclient

from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.load import Load
from tests.triton.server import RealTriton
from tests.triton.target import WAIT_S
from tests.triton.tensors import milliseconds


@pytest.fixture(scope="module")
def balancer(
    tmp_path_factory: pytest.TempPathFactory, tritons: tuple[RealTriton, ...]
) -> Iterator[RunningBalancer]:
    """One that counts requests: which Triton was quick before is nothing that tests may go by."""
    folder = tmp_path_factory.mktemp("counting")
    yield from RunningBalancer.run(folder, tritons, scheduling={"max_requests_per_backend": "off"})


@pytest.fixture
def drained(balancer: RunningBalancer, tritons: tuple[RealTriton, ...]) -> Iterator[RealTriton]:
    """The Triton that a test drains; enabled again afterwards."""
    yield tritons[-1]
    balancer.command(tritons[-1].name, "enable")
    wait_until(balancer.all_in_rotation, timeout_s=30.0, what="all Tritons are back")


async def test_requests_at_once_are_shared_equally(
    balancer: RunningBalancer, tritons: tuple[RealTriton, ...]
) -> None:
    async with Load(balancer.target, clients=0) as load:
        asks = (load.ask_http, load.ask_grpc) * 6
        await asyncio.gather(*(ask(2000) for ask in asks))
    assert load.failures == []
    served = Counter(sample.server for sample in load.samples)
    assert served == {triton.name: 4 for triton in tritons}


async def test_drained_triton_finishes_what_it_has_and_gets_nothing_new(
    balancer: RunningBalancer, drained: RealTriton, tritons: tuple[RealTriton, ...]
) -> None:
    async with Load(balancer.target, clients=0) as load:
        early = [asyncio.ensure_future(ask(4000)) for ask in (load.ask_http, load.ask_grpc) * 3]
        await asyncio.to_thread(
            wait_until,
            lambda: all(view.in_flight == 2 for view in balancer.backends().values()),
            timeout_s=30,
            what="every Triton has two requests",
        )
        await asyncio.to_thread(balancer.command, drained.name, "drain")
        for _ in range(12):
            await load.ask_http(1)
            await load.ask_grpc(1)
        later = Counter(sample.server for sample in load.samples)
        await asyncio.gather(*early)
    assert load.failures == []
    assert drained.name not in later
    served = Counter(sample.server for sample in load.samples)
    assert served[drained.name] == 2
    assert set(served) == {triton.name for triton in tritons}


def test_idle_streams_leave_a_drained_triton_and_go_on_elsewhere(
    balancer: RunningBalancer, drained: RealTriton, tritons: tuple[RealTriton, ...]
) -> None:
    def ask(client: grpcclient.InferenceServerClient, ms: int = 1) -> None:
        client.async_stream_infer("sleeper", milliseconds(grpcclient, ms))

    def server() -> str:
        result, error = answers.get(timeout=WAIT_S)
        assert error is None
        name: str = result.as_numpy("SERVER").item().decode()
        return name

    answers: queue.Queue[Any] = queue.Queue()
    clients = [
        grpcclient.InferenceServerClient(
            balancer.target.grpc, channel_args=[("lb.connection", number)]
        )
        for number in range(3 * len(tritons))
    ]
    try:
        for client in clients:
            client.start_stream(lambda result, error: answers.put((result, error)))
            ask(client)
        assert drained.name in {server() for _ in clients}
        balancer.command(drained.name, "drain")
        wait_until(
            lambda: balancer.backends()[drained.name].empty,
            what="the drained Triton is empty",
        )
        for client in clients:
            ask(client)
        assert drained.name not in {server() for _ in clients}
        for client in clients:
            client.stop_stream()
        assert answers.empty()
    finally:
        for client in clients:
            client.close()


async def test_metrics_show_every_triton_and_the_balancer_itself(
    balancer: RunningBalancer, tritons: tuple[RealTriton, ...]
) -> None:
    async with Load(balancer.target, clients=0) as load:
        await asyncio.gather(*(load.ask_http(10) for _ in range(6)))
    text = await asyncio.to_thread(balancer.metrics_text)
    for triton in tritons:
        theirs = f'nv_inference_request_success{{backend="{triton.name}"'
        assert any(line.startswith(theirs) for line in text.splitlines())
        assert any(
            line.startswith("triton_lb_") and f'backend="{triton.name}"' in line
            for line in text.splitlines()
        )
