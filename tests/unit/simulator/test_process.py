from __future__ import annotations

import aiohttp
import pytest

from lb.simulator.process import Ports, Simulator
from lb.simulator.server import SimulatedTriton


def test_ready_line_survives_its_json_form() -> None:
    ports = Ports("::1", 1, 2, 3)
    assert Ports.from_json(ports.to_json()) == ports


async def test_simulator_listens_on_three_free_ports_and_frees_them() -> None:
    async with Simulator(SimulatedTriton(), Ports()) as simulator:
        ports = simulator.ports
        assert len({ports.http_port, ports.grpc_port, ports.metrics_port, 0}) == 4
    async with Simulator(SimulatedTriton(), ports) as simulator:
        assert simulator.ports == ports


async def test_metrics_are_on_their_own_port() -> None:
    async with (
        Simulator(SimulatedTriton(["simple"]), Ports()) as simulator,
        aiohttp.ClientSession() as session,
    ):
        url = f"http://127.0.0.1:{simulator.ports.metrics_port}/metrics"
        async with session.get(url) as response:
            assert response.content_type == "text/plain"
            assert 'nv_inference_request_success{model="simple",version="1"} 0' in (
                await response.text()
            )


@pytest.mark.parametrize(("port", "error"), [("http_port", OSError), ("grpc_port", RuntimeError)])
async def test_taken_port_is_an_error_that_leaves_nothing_open(
    port: str, error: type[Exception]
) -> None:
    async with Simulator(SimulatedTriton(), Ports()) as first:
        taken = getattr(first.ports, port)
        with pytest.raises(error):
            await Simulator(SimulatedTriton(), Ports(**{port: taken})).__aenter__()
