"""Tritons die and freeze under load; clients of the balancer hardly notice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.load import Load
from tests.triton.server import RealTriton

CLIENTS = 12
EACH = 4
"""Requests that every Triton has when one is killed."""
NOTICE_S = 5.0
"""The balancer hears of the end of a process by its closed sockets; on a busy machine its turn
to look may come late. That it comes soon is seen by how few requests fail."""
ON_ITS_WAY_S = 1.0
"""From a client's clock to the balancer's choice, on a busy machine."""
FROZEN_IS_OUT_S = 6.0
RETURN_S = 30.0


@pytest.fixture
def victim(balancer: RunningBalancer, tritons: tuple[RealTriton, ...]) -> Iterator[RealTriton]:
    """A Triton to mistreat: not the one that other tests call directly. Well again afterwards."""
    chosen = tritons[-1]
    yield chosen
    chosen.sigcont()
    if not chosen.is_running:
        chosen.restart()
    chosen.wait_ready()
    wait_until(balancer.all_in_rotation, timeout_s=30.0, what="all Tritons are back")


@pytest.fixture
def limited(tmp_path: Path, tritons: tuple[RealTriton, ...]) -> Iterator[RunningBalancer]:
    """One that gives each Triton `EACH` requests at most, however quick it was before."""
    yield from RunningBalancer.run(tmp_path, tritons, scheduling={"max_requests_per_backend": EACH})


async def wait_for_rotation(
    balancer: RunningBalancer, name: str, state: str, *, timeout_s: float
) -> None:
    """Wait for the admin API to say that a Triton `is_in` or `is_out`."""
    await asyncio.to_thread(
        wait_until,
        lambda: getattr(balancer.backends()[name], state),
        timeout_s=timeout_s,
        what=f"{name} {state}, of rotation",
    )


async def test_killed_triton_costs_at_most_what_it_had_and_returns_after_a_restart(
    balancer: RunningBalancer, victim: RealTriton
) -> None:
    async with Load(balancer.target, clients=CLIENTS) as load:
        await load.wait_for_more(50)
        victim.kill9()
        await asyncio.to_thread(wait_until, lambda: not victim.is_running, what="it is dead")
        await wait_for_rotation(balancer, victim.name, "is_out", timeout_s=NOTICE_S)
        out_at = time.monotonic()
        await load.wait_for_more(100)
        victim.restart()
        await asyncio.to_thread(victim.wait_ready)
        ready_at = time.monotonic()
        await wait_for_rotation(balancer, victim.name, "is_in", timeout_s=RETURN_S)
        await load.wait_for(20, lambda s: s.began > ready_at and s.server == victim.name)
    assert len(load.failures) <= CLIENTS
    assert [sample for sample in load.failures if sample.began > out_at] == []


async def test_kill_fails_no_request_on_the_other_tritons(
    victim: RealTriton, limited: RunningBalancer, tritons: tuple[RealTriton, ...]
) -> None:
    async with Load(limited.target, clients=0) as load:
        asked = [
            asyncio.ensure_future(ask(5000))
            for ask in (load.ask_http, load.ask_grpc)
            for _ in range(EACH * len(tritons) // 2)
        ]
        await asyncio.to_thread(
            wait_until,
            lambda: [view.in_flight for view in limited.backends().values()] == [EACH] * 3,
            timeout_s=30,
            what=f"every Triton has {EACH} requests",
        )
        victim.kill9()
        await asyncio.gather(*asked)
    served = Counter(sample.server for sample in load.samples)
    assert len(load.failures) <= EACH
    assert victim.name not in served
    for triton in tritons[:-1]:
        assert served[triton.name] >= EACH


async def test_frozen_triton_is_out_in_time_and_no_request_fails(
    balancer: RunningBalancer, victim: RealTriton
) -> None:
    async with Load(balancer.target, clients=CLIENTS) as load:
        await load.wait_for_more(50)
        victim.sigstop()
        await wait_for_rotation(balancer, victim.name, "is_out", timeout_s=FROZEN_IS_OUT_S)
        out_at = time.monotonic()
        # Twelve clients take two seconds for that, at least.
        await load.wait_for_more(400)
        back_at = time.monotonic()
        victim.sigcont()
        await wait_for_rotation(balancer, victim.name, "is_in", timeout_s=RETURN_S)
        await load.wait_for(20, lambda s: s.began > back_at and s.server == victim.name)
    assert load.failures == []
    # What began in the last moment may have reached the balancer after the Triton was back.
    thawing_at = back_at - ON_ITS_WAY_S
    misled = [s for s in load.samples if out_at < s.began < thawing_at and s.server == victim.name]
    assert misled == []


async def test_requests_on_the_other_tritons_are_served_while_one_is_frozen(
    balancer: RunningBalancer, victim: RealTriton, tritons: tuple[RealTriton, ...]
) -> None:
    async with Load(balancer.target, clients=CLIENTS) as load:
        await load.wait_for_more(20)
        victim.sigstop()
        frozen_at = time.monotonic()
        for triton in tritons[:-1]:
            await load.wait_for(
                20, lambda s, name=triton.name: s.began > frozen_at and s.server == name
            )
        victim.sigcont()
    assert load.failures == []
