from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lb.domain.backend import Address
from lb.health.port import Finding
from lb.probes.plan import ProbePlan, ProbeQuestion
from lb.probes.probe import NetworkProbe


@pytest.mark.parametrize("question", ProbeQuestion)
async def test_a_socket_that_does_not_exist_refuses(
    question: ProbeQuestion, tmp_path: Path
) -> None:
    address = Address(path=str(tmp_path / "none.sock"))
    result = await NetworkProbe(ProbePlan(question=question, address=address)).check(30.0)
    assert result.finding is Finding.REFUSED
    assert result.detail == f"{address} refused the connection"
    assert 0 < result.latency_s < 30


async def test_a_probe_that_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "silent.sock"))
    lost = asyncio.Event()

    class Silent(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set()

        def connection_lost(self, exc: Exception | None) -> None:
            lost.set()

    accepted = asyncio.Event()
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(Silent, address.path)
    probe = NetworkProbe(ProbePlan(question=ProbeQuestion.HTTP_GET, address=address))
    task = loop.create_task(probe.check(60.0))
    await accepted.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(30):
        await lost.wait()
    server.close()
    await server.wait_closed()
