"""Real Tritons say how fast they are and what others do there, and requests go by it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.load import Load
from tests.triton.records import Records
from tests.triton.server import RealTriton

PATIENCE_S = 60.0
running = contextmanager(RunningBalancer.run)
CLIENTS = 12
"""Three for each instance of the model."""


@pytest.fixture
def pair(
    tmp_path_factory: pytest.TempPathFactory, records: Records
) -> Iterator[tuple[RealTriton, ...]]:
    """Two Tritons that have measured nothing yet."""
    with RealTriton.several(2, tmp_path_factory.mktemp("pair"), records.directory) as running:
        yield running


def lanes(balancer: RunningBalancer) -> dict[str, Any]:
    """Of the model, by backend."""
    models = balancer._admin("GET", "/api/v1/queue")["models"]
    return {
        each["name"]: each for model in models if model["model"] == "sleeper"
        for each in model["backends"]
    }  # fmt: skip


def pending(balancer: RunningBalancer, name: str) -> float:
    backends = balancer._admin("GET", "/api/v1/backends")["backends"]
    return next(float(each["load"]["pending"]) for each in backends if each["name"] == name)


async def ask(balancer: RunningBalancer, count: int, sleep_ms: int) -> Counter[str]:
    """So many requests, one after the other; how many each Triton answered."""
    async with Load(balancer.target, clients=0) as load:
        for number in range(count):
            await (load.ask_http if number % 2 else load.ask_grpc)(sleep_ms)
    assert load.failures == []
    return Counter(sample.server for sample in load.samples)


async def test_a_balancer_that_starts_goes_by_what_tritons_have_measured(
    pair: tuple[RealTriton, ...], tmp_path: Path
) -> None:
    """The same model, which took long on one and was quick on the other."""
    for triton, sleep_ms in zip(pair, (100, 5), strict=True):
        async with Load(triton.target, clients=0) as load:
            for _ in range(15):
                await load.ask_http(sleep_ms)
    with running(tmp_path, pair) as balancer:
        assert await ask(balancer, 8, 5) == {pair[1].name: 8}
        said = lanes(balancer)
        assert said[pair[0].name]["learnt"] == 0
        assert 70 < said[pair[0].name]["expected_ms"] < 400


async def test_a_triton_that_others_fill_gets_fewer_requests_until_they_leave(
    pair: tuple[RealTriton, ...], tmp_path: Path
) -> None:
    with running(tmp_path, pair, scheduling={"load_poll_interval": "100ms"}) as balancer:
        name = pair[0].name
        await ask(balancer, 40, 20)
        assert lanes(balancer)[name]["learnt"] >= 3
        async with Load(pair[0].target, clients=CLIENTS, sleep_ms=60):
            await asyncio.to_thread(
                wait_until,
                lambda: lanes(balancer)[name]["slowed"] > 1.3 and pending(balancer, name) > 2,
                timeout_s=PATIENCE_S,
                what="the Triton says that others use it",
            )
            answered = await ask(balancer, 60, 20)
            assert answered[name] <= 20
        await asyncio.to_thread(
            wait_until,
            lambda: lanes(balancer)[name]["slowed"] < 1.2 and pending(balancer, name) == 0,
            timeout_s=PATIENCE_S,
            what="they have left",
        )
