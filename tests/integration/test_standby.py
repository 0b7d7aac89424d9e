"""Backends that serve only when the load needs them: started by commands, taken back, lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lb.control.record import BackendRecord
from lb.domain.backend import BackendState
from lb.domain.standby import StandbyPhase
from lb.simulator.process import Ports, Simulator
from lb.simulator.server import SimulatedTriton
from tests.fakes.balancer import Balancer, running_balancer
from tests.fakes.process import free_ports, has_ended
from tests.fakes.slices import Slices
from tests.wire.waiting import eventually

ONES = {"datatype": "INT32", "shape": [1, 16], "data": [1] * 16}
SIMPLE = {"inputs": [{"name": "INPUT0", **ONES}, {"name": "INPUT1", **ONES}]}
INFER = "/v2/models/simple/infer"
PATIENCE_S = 90.0
HELD = 500


@pytest.fixture
def slices(tmp_path: Path) -> Iterator[Slices]:
    made = Slices(tmp_path)
    yield made
    made.kill_all()


def tree(*backends: dict[str, Any], **standby: str) -> dict[str, Any]:
    return {
        "listen": {"http": "127.0.0.1:0"},
        "health": {"interval": "200ms"},
        "slow_start": {"window": "0s"},
        "standby": {"hold": "60s", **standby},
        "backends": list(backends),
    }


def record(balancer: Balancer, name: str) -> BackendRecord:
    return balancer.product.control.directory.find(name)


def phase(balancer: Balancer, name: str) -> StandbyPhase | None:
    status = record(balancer, name).standby
    return None if status is None else status.phase


async def infer(client: aiohttp.ClientSession, address: str) -> tuple[int, str]:
    async with client.post(f"http://{address}{INFER}", json=SIMPLE) as answer:
        return answer.status, await answer.text()


async def test_held_requests_start_one_backend_and_none_is_lost(
    slices: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    config = tree(slices.backend("gpu-1", 1), slices.backend("gpu-2", 2))
    async with (
        asyncio.timeout(PATIENCE_S),
        running_balancer(config) as balancer,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=HELD)) as client,
    ):
        address = balancer.address("http")
        for path in ("/v2/health/ready", "/v2/models/simple", "/v2/repository/index"):
            method = "POST" if path.endswith("index") else "GET"
            async with client.request(method, f"http://{address}{path}") as answer:
                assert answer.status in (400, 503), path
        assert slices.lines("started") == []

        answers = await asyncio.gather(*(infer(client, address) for _ in range(HELD)))

        assert {status for status, _ in answers} == {200}
        assert slices.lines("started") == ["gpu-1"]
        assert "SECRET_TOKEN" not in slices.lines("environment")
        assert "TRITON_LB_BACKEND" in slices.lines("environment")
        waits = balancer.product.relay.queue_status().wait_reasons
        assert waits[b"simple", "activating"] == HELD
        counts = balancer.product.control.standby.counts()
        assert counts.activations == {("gpu-1", "no_backend", "ok"): 1}
        assert counts.cold_start_s > 0.0
        assert phase(balancer, "gpu-2") is StandbyPhase.STANDBY
        assert record(balancer, "gpu-2").state is BackendState.STANDBY


async def test_a_command_that_hangs_is_killed_and_another_backend_serves(slices: Slices) -> None:
    config = tree(slices.hanging("gpu-1", 1), slices.backend("gpu-2", 2))
    async with (
        asyncio.timeout(PATIENCE_S),
        running_balancer(config) as balancer,
        aiohttp.ClientSession() as client,
    ):
        address = balancer.address("http")
        answers = await asyncio.gather(*(infer(client, address) for _ in range(20)))

        assert {status for status, _ in answers} == {200}
        assert phase(balancer, "gpu-2") is StandbyPhase.ACTIVE
        status = record(balancer, "gpu-1").standby
        assert status is not None
        assert status.failures == 1
        assert "killed" in status.error
        await eventually(lambda: has_ended(slices.pid("hung")))
        assert slices.lines("stopped") == ["gpu-1"]


async def test_a_backend_that_is_activated_is_probed_often_whatever_the_interval(
    slices: Slices,
) -> None:
    config = {**tree(slices.backend("gpu-1", 1)), "health": {"interval": "10m"}}
    async with (
        asyncio.timeout(PATIENCE_S),
        running_balancer(config) as balancer,
        aiohttp.ClientSession() as client,
    ):
        assert (await infer(client, balancer.address("http")))[0] == 200


async def test_a_server_that_is_killed_while_it_starts_loses_no_request(slices: Slices) -> None:
    # It is still starting whenever it is killed.
    starting = slices.started_by(("sleep", "600"), "gpu-1", 1, timeout="3s")
    starting["http"] = f"127.0.0.1:{free_ports(1)[0]}"
    config = tree(starting, slices.backend("gpu-2", 2))
    async with (
        asyncio.timeout(PATIENCE_S),
        running_balancer(config) as balancer,
        aiohttp.ClientSession() as client,
    ):
        address = balancer.address("http")
        waiting = [asyncio.create_task(infer(client, address)) for _ in range(20)]
        await eventually(lambda: (slices.folder / "gpu-1.pid").exists())
        await eventually(lambda: (slices.folder / "gpu-1.pid").read_text())
        os.kill(slices.pid("gpu-1"), signal.SIGKILL)

        assert {status for status, _ in await asyncio.gather(*waiting)} == {200}
        assert phase(balancer, "gpu-2") is StandbyPhase.ACTIVE
        assert phase(balancer, "gpu-1") is not StandbyPhase.ACTIVE


async def test_an_active_server_that_dies_is_started_again(slices: Slices) -> None:
    config = tree(slices.backend("gpu-1", 1))
    async with (
        asyncio.timeout(PATIENCE_S),
        running_balancer(config) as balancer,
        aiohttp.ClientSession() as client,
    ):
        address = balancer.address("http")
        assert (await infer(client, address))[0] == 200
        os.kill(slices.pid("gpu-1"), signal.SIGKILL)
        await eventually(lambda: not record(balancer, "gpu-1").answers)
        assert (await infer(client, address))[0] == 200
        assert slices.lines("started") == ["gpu-1", "gpu-1"]


async def test_a_failing_activation_is_told_to_clients_with_a_time(slices: Slices) -> None:
    backend = slices.backend("gpu-1", 1)
    backend["activate"] = {"exec": ["/no/such/program"]}
    async with (
        asyncio.timeout(PATIENCE_S),
        running_balancer(tree(backend)) as balancer,
        aiohttp.ClientSession() as client,
    ):
        standby = balancer.product.control.standby
        of = record(balancer, "gpu-1")
        for count in range(1, 4):
            standby.order(of, is_active=True)
            await eventually(lambda count=count: of.standby and of.standby.failures == count)
        await eventually(lambda: (found := _held(balancer)) is not None and found.error)
        async with client.post(f"http://{balancer.address('http')}{INFER}", json=SIMPLE) as answer:
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) > 10
            assert "gpu-1" in json.loads(await answer.text())["error"]
        assert "No such file" in of.why


def _held(balancer: Balancer) -> Any:
    return balancer.product.control.directory.ref.current.on_standby


async def test_what_runs_already_is_used_after_a_restart_and_released_when_idle(
    slices: Slices,
) -> None:
    config = tree(slices.backend("gpu-1", 1), cooldown="100ms")
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as client:
        async with running_balancer(config) as balancer:
            assert (await infer(client, balancer.address("http")))[0] == 200
        async with running_balancer(config) as balancer:
            assert phase(balancer, "gpu-1") is StandbyPhase.ACTIVE
            assert (await infer(client, balancer.address("http")))[0] == 200
            standby = balancer.product.control.standby
            standby.order(record(balancer, "gpu-1"), is_active=False)
            await eventually(lambda: phase(balancer, "gpu-1") is StandbyPhase.STANDBY)
            assert slices.lines("stopped") == ["gpu-1"]
            assert slices.lines("started") == ["gpu-1"]


async def test_a_latency_above_the_budget_activates_a_backend(slices: Slices) -> None:
    # 20 ms for an execution: a client alone keeps the budget, and sixteen do not.
    always = {**slices.backend("gpu-0", 1, "--speed", "0.1")}
    del always["standby"], always["activate"], always["deactivate"]
    triton = SimulatedTriton(("simple",), 0.1)
    config = tree(
        always, slices.backend("gpu-1", 1, "--speed", "0.1"), latency="100ms", **{"for": "1s"}
    )
    async with (
        asyncio.timeout(PATIENCE_S),
        Simulator(triton, Ports()) as simulator,
        aiohttp.ClientSession() as client,
    ):
        always["http"] = f"{simulator.ports.host}:{simulator.ports.http_port}"
        async with running_balancer(config) as balancer:
            address = balancer.address("http")
            assert {(await infer(client, address))[0] for _ in range(30)} == {200}
            assert phase(balancer, "gpu-1") is StandbyPhase.STANDBY

            async def repeat() -> set[int]:
                statuses = set()
                while phase(balancer, "gpu-1") is not StandbyPhase.ACTIVE:
                    statuses.add((await infer(client, address))[0])
                return statuses

            found = await asyncio.gather(*(repeat() for _ in range(64)))
            assert set[int]().union(*found) == {200}
            counts = balancer.product.control.standby.counts()
            assert counts.activations == {("gpu-1", "latency", "ok"): 1}
