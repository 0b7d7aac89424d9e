"""Other settings and another process while NVIDIA's clients ask: nobody notices."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.process import wait_until
from tests.fakes.serving import metric
from tests.triton.balancer import RunningBalancer
from tests.triton.load import Load
from tests.triton.sequences import Sequence, Steps
from tests.triton.server import RealTriton

RELOADS = 5
_APPLIED = 'triton_lb_reloads_total{result="applied"}'


@pytest.fixture
def restarting(tmp_path: Path, tritons: tuple[RealTriton, ...]) -> Iterator[RunningBalancer]:
    """A balancer of the test's own."""
    yield from RunningBalancer.run(tmp_path, tritons)


def failed(load: Load) -> list[str]:
    """What went wrong; a load without requests would be wrong, too."""
    assert {sample.protocol for sample in load.samples} == {"http", "grpc"}
    return [f"{sample.protocol}: {sample.error}" for sample in load.samples if sample.error][:5]


async def test_reloads_disturb_no_request(
    restarting: RunningBalancer, tritons: tuple[RealTriton, ...]
) -> None:
    def reload(turn: int) -> None:
        before = metric(restarting.metrics, _APPLIED)
        policy = ("round_robin", "least_loaded")[turn % 2]
        restarting.configure(
            tritons[turn % 2 :],
            balancing={"policy": policy},
            limits={"max_headers": 60 + turn},
        )
        restarting.process().send_signal(signal.SIGHUP)
        wait_until(
            lambda: metric(restarting.metrics, _APPLIED) > before, timeout_s=30, what="the reload"
        )

    async with Load(restarting.target) as load:
        for turn in range(RELOADS):
            await asyncio.to_thread(reload, turn)
    assert failed(load) == []


async def test_a_refused_reload_disturbs_no_request(restarting: RunningBalancer) -> None:
    def refuse() -> None:
        restarting.configure((), balancing={"policy": "none"})
        restarting.process().send_signal(signal.SIGHUP)
        wait_until(
            lambda: metric(restarting.metrics, "triton_lb_last_reload_success") == 0,
            timeout_s=30,
            what="the refusal",
        )

    async with Load(restarting.target) as load:
        await asyncio.to_thread(refuse)
    assert failed(load) == []
    assert await asyncio.to_thread(restarting.all_in_rotation)


async def test_a_restart_disturbs_neither_requests_nor_sequences(
    restarting: RunningBalancer,
) -> None:
    sequences = [Sequence(each) for each in (710_001, 710_002, "710001", "710002")]
    async with Steps(restarting.target) as steps:
        await steps.all(sequences, start=True)
        async with Load(restarting.target) as load:
            await asyncio.to_thread(restarting.upgrade)
            await steps.all(sequences)
        assert failed(load) == []
        await steps.all(sequences)
        await steps.all(sequences, end=True)
    assert [each for each in sequences if each.wrong or len(each.servers) != 1] == []
