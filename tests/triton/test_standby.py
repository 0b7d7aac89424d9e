"""Real Tritons that commands start when requests need them; `make standby-live` plays a load."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from lb.domain.standby import StandbyPhase
from tests.fakes.balancer import Balancer, running_balancer
from tests.triton.slices import MODEL, RealSlices, request
from tests.wire.waiting import eventually

HELD = 500
PATIENCE_S = 90.0


@pytest.fixture
def slices(tmp_path: Path) -> Iterator[RealSlices]:
    made = RealSlices(tmp_path)
    yield made
    made.kill_all()


def phase(balancer: Balancer, name: str) -> StandbyPhase | None:
    status = balancer.product.control.directory.find(name).standby
    return None if status is None else status.phase


async def test_no_held_request_is_lost_although_the_first_triton_is_killed_while_it_starts(
    slices: RealSlices,
) -> None:
    first, second = slices.backend("gpu-1", 1, timeout="10s"), slices.backend("gpu-2", 2)
    config = {
        "listen": {"http": "127.0.0.1:0"},
        "slow_start": {"window": "0s"},
        "standby": {"hold": "60s", "cooldown": "100ms"},
        "backends": [first, second],
    }
    async with (
        asyncio.timeout(PATIENCE_S),
        running_balancer(config) as balancer,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=HELD)) as client,
    ):
        url = f"http://{balancer.address('http')}/v2/models/{MODEL}/infer"

        async def infer() -> int:
            async with client.post(url, json=request(1)) as answer:
                await answer.read()
                return answer.status

        held = [asyncio.create_task(infer()) for _ in range(HELD)]
        pid = slices.folder / "gpu-1.pid"
        await eventually(lambda: pid.exists() and pid.read_text())
        os.killpg(slices.pid("gpu-1"), signal.SIGKILL)

        assert Counter(await asyncio.gather(*held)) == {200: HELD}
        assert slices.lines("started")[:2] == ["gpu-1", "gpu-2"]
        balancer.product.control.standby.order(
            balancer.product.control.directory.find("gpu-2"), is_active=False
        )
        await eventually(lambda: phase(balancer, "gpu-2") is StandbyPhase.STANDBY)
        assert "gpu-2" in slices.lines("stopped")
