"""Models that are loaded on demand, whose Tritons have lost them: simulated Tritons in explicit
mode, over sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio

from lb.simulator.process import Ports, Simulator
from lb.simulator.server import SimulatedTriton
from tests.fakes.balancer import running_balancer

PATIENCE_S = 60.0
MODEL = "identity_fp32"


def tree(*ports: Ports) -> dict[str, Any]:
    return {
        "listen": {"grpc": "127.0.0.1:0"},
        "model_table": {"refresh": "1h"},
        "placement": {"mode": "on_demand", "max_models": 1, "min_age": "0s"},
        "backends": [
            {
                "name": f"gpu-{number}",
                "http": f"{each.host}:{each.http_port}",
                "grpc": f"{each.host}:{each.grpc_port}",
            }
            for number, each in enumerate(ports)
        ],
    }


async def infer(client: grpcaio.InferenceServerClient) -> None:
    inputs = [grpcclient.InferInput("INPUT0", [1, 1], "FP32")]
    inputs[0].set_data_from_numpy(np.ones((1, 1), dtype=np.float32))
    await client.infer(MODEL, inputs, client_timeout=PATIENCE_S)


async def test_requests_wait_for_a_model_each_time_that_its_triton_has_lost_it() -> None:
    """However soon that is again: the list of models is too old by then."""
    async with (
        asyncio.timeout(PATIENCE_S),
        Simulator(SimulatedTriton([MODEL], is_explicit=True), Ports()) as simulator,
        running_balancer(tree(simulator.ports)) as balancer,
    ):
        client = grpcaio.InferenceServerClient(balancer.address("grpc"))
        try:
            for _ in range(5):
                await infer(client)
                simulator.triton.unload(MODEL)
        finally:
            await client.close()
        assert balancer.product.control.placement.counts().loads == {"loaded": 5}
