"""Standby backends that load models, standby beside placement of models, and room by the memory
that processes tell of: simulated Tritons in explicit mode."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio

from lb.domain.standby import StandbyPhase
from lb.simulator.gpu import MODEL_BYTES, SimulatedGpu
from lb.simulator.process import Ports, Simulator
from lb.simulator.server import SimulatedTriton
from tests.fakes.balancer import Balancer, running_balancer
from tests.fakes.process import ENVIRONMENT, ChildProcess
from tests.wire.waiting import eventually

PATIENCE_S = 90.0
HELD = 100
MODELS = ("identity_fp32", "identity_bytes", "simple")


@asynccontextmanager
async def explicit(*models: str) -> AsyncIterator[Simulator]:
    """A simulated Triton in this process that loads models on request."""
    async with Simulator(SimulatedTriton(models, is_explicit=True), Ports()) as simulator:
        yield simulator


def backend(name: str, ports: Ports, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "http": f"{ports.host}:{ports.http_port}",
        "grpc": f"{ports.host}:{ports.grpc_port}",
        "metrics": f"{ports.host}:{ports.metrics_port}",
        **more,
    }


def tree(*backends: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "listen": {"grpc": "127.0.0.1:0"},
        "health": {"interval": "200ms"},
        "slow_start": {"window": "0s"},
        "standby": {"hold": "60s", "cooldown": "100ms"},
        "backends": list(backends),
        **more,
    }


@asynccontextmanager
async def client_of(balancer: Balancer) -> AsyncIterator[grpcaio.InferenceServerClient]:
    client = grpcaio.InferenceServerClient(balancer.address("grpc"))
    try:
        yield client
    finally:
        await client.close()


async def infer(client: grpcaio.InferenceServerClient, model: str = "simple") -> None:
    """Ask one of `MODELS`."""
    if model == "simple":
        ones = np.ones((1, 16), dtype=np.int32)
        inputs = [grpcclient.InferInput(name, ones.shape, "INT32") for name in ("INPUT0", "INPUT1")]
        for each in inputs:
            each.set_data_from_numpy(ones)
    elif model == "identity_fp32":
        inputs = [grpcclient.InferInput("INPUT0", [1, 1], "FP32")]
        inputs[0].set_data_from_numpy(np.ones((1, 1), dtype=np.float32))
    else:
        inputs = [grpcclient.InferInput("INPUT0", [1, 1], "BYTES")]
        inputs[0].set_data_from_numpy(np.array([[b"a"]], dtype=np.object_))
    await client.infer(model, inputs, client_timeout=PATIENCE_S)


def phase(balancer: Balancer, name: str) -> StandbyPhase | None:
    status = balancer.product.control.directory.find(name).standby
    return None if status is None else status.phase


def loaded(simulator: Simulator) -> set[str]:
    index = simulator.triton.index().models
    return {each.name for each in index if each.state == "READY"}


async def test_calls_that_are_held_over_grpc_load_the_models_of_a_standby_backend() -> None:
    async with asyncio.timeout(PATIENCE_S), explicit(*MODELS) as simulator:
        spare = backend("gpu-1", simulator.ports, standby=1, activate={"load": ["simple"]})
        async with running_balancer(tree(spare)) as balancer, client_of(balancer) as client:
            assert loaded(simulator) == set()
            await asyncio.gather(*(infer(client) for _ in range(HELD)))
            assert loaded(simulator) == {"simple"}
            standby = balancer.product.control.standby
            assert standby.counts().activations == {("gpu-1", "no_backend", "ok"): 1}
            waits = balancer.product.relay.queue_status().wait_reasons
            assert waits[b"simple", "activating"] == HELD

            directory = balancer.product.control.directory
            standby.order(directory.find("gpu-1"), is_active=False)
            await eventually(lambda: phase(balancer, "gpu-1") is StandbyPhase.STANDBY)
            assert loaded(simulator) == set()
            await infer(client)
            assert loaded(simulator) == {"simple"}


async def test_placement_leaves_a_standby_backend_alone_until_it_is_activated() -> None:
    placement = {"mode": "on_demand", "max_models": 1, "min_age": "0s", "wait": "60s"}
    async with (
        asyncio.timeout(PATIENCE_S),
        explicit("simple") as first,
        explicit(*MODELS) as second,
    ):
        config = tree(
            backend("gpu-0", first.ports),
            backend("gpu-1", second.ports, standby=1),
            placement=placement,
            standby={"hold": "60s"},  # and the usual cooldown: two loads may take long
        )
        async with running_balancer(config) as balancer, client_of(balancer) as client:
            await infer(client)
            assert (loaded(first), loaded(second)) == ({"simple"}, set())
            standby = balancer.product.control.standby
            directory = balancer.product.control.directory
            standby.order(directory.find("gpu-1"), is_active=True)
            await eventually(lambda: phase(balancer, "gpu-1") is StandbyPhase.ACTIVE)
            await infer(client, "identity_fp32")
            await infer(client, "identity_bytes")
            assert (loaded(first), loaded(second)) == ({"simple"}, {"identity_bytes"})


async def test_room_is_made_by_the_memory_that_a_process_tells_of(tmp_path: Path) -> None:
    """Two models fit beside what else is in use; each model takes `MODEL_BYTES`."""
    used = SimulatedGpu("GPU-1").memory_used
    placement = {
        "mode": "on_demand", "memory": used + 2 * MODEL_BYTES, "min_age": "0s", "wait": "60s",
    }  # fmt: skip
    log = tmp_path / "simulator.log"
    command = ("-m", "lb.simulator", "--explicit", "--gpu", "GPU-1", "--models", *MODELS)
    process = ChildProcess((sys.executable, *command), log=log, env=ENVIRONMENT)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await eventually(lambda: log.read_text().endswith("\n"))
            config = tree(backend("gpu-0", Ports.from_json(log.read_text())), placement=placement)
            async with running_balancer(config) as balancer, client_of(balancer) as client:
                for model in MODELS:
                    await infer(client, model)
                placed = balancer.product.control.placement
                names = {each.model.decode() for each in placed.status().models}
                assert len(names) == 2
                assert "simple" in names, "it was loaded last"
                assert placed.counts().evictions == {"room": 1}

                def sizes() -> set[tuple[int, str]]:
                    return {(each.size, each.size_source) for each in placed.status().models}

                await eventually(lambda: sizes() == {(MODEL_BYTES, "measured")})
                assert placed.status().unreturned == {}
    finally:
        process.close()
