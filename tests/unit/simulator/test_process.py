from __future__ import annotations

import pytest

from lb.simulator.process import Ports, Simulator
from lb.simulator.server import SimulatedTriton


async def test_simulator_listens_on_three_free_ports_and_frees_them() -> None:
    async with Simulator(SimulatedTriton(), Ports()) as simulator:
        ports = simulator.ports
        assert len({ports.http_port, ports.grpc_port, ports.metrics_port, 0}) == 4
    async with Simulator(SimulatedTriton(), ports) as simulator:
        assert simulator.ports == ports


@pytest.mark.parametrize(("port", "error"), [("http_port", OSError), ("grpc_port", RuntimeError)])
async def test_taken_port_is_an_error_that_leaves_nothing_open(
    port: str, error: type[Exception]
) -> None:
    async with Simulator(SimulatedTriton(), Ports()) as first:
        taken = getattr(first.ports, port)
        with pytest.raises(error):
            await Simulator(SimulatedTriton(), Ports(**{port: taken})).__aenter__()
