"""Tritons join and leave under load: nobody notices but by where the answers come from."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio

from lb.cli.main import main
from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.load import Load
from tests.triton.records import Records
from tests.triton.sequences import Sequence, Steps
from tests.triton.server import RealTriton
from tests.triton.tensors import repeat

_numbers = itertools.count(900_000)


@pytest.fixture(scope="module")
def fourth(tmp_path_factory: pytest.TempPathFactory, records: Records) -> Iterator[RealTriton]:
    """A Triton that no configuration names."""
    triton = RealTriton("triton-3", tmp_path_factory.mktemp("fourth"), records.directory)
    try:
        triton.wait_ready()
        yield triton
    finally:
        triton.close()


@pytest.fixture
def balancer(tmp_path: Path, tritons: tuple[RealTriton, ...]) -> Iterator[RunningBalancer]:
    """One of its own, since the pool becomes another one."""
    yield from RunningBalancer.run(tmp_path, tritons)


def run(balancer: RunningBalancer, *command: str) -> int:
    """Run a command of ours as operators do."""
    return main([*command, "--admin", balancer.admin])


async def command(balancer: RunningBalancer, *words: str) -> None:
    assert await asyncio.to_thread(run, balancer, *words) == 0


def address(triton: RealTriton) -> list[str]:
    return ["--http", triton.target.http, "--grpc", triton.target.grpc]


def connected_to(balancer: RunningBalancer, triton: RealTriton) -> int:
    """Connections of the balancer's process to a Triton, probes not included."""
    ports = {int(each.rpartition(":")[2]) for each in (triton.target.http, triton.target.grpc)}
    return sum(
        bool(each.raddr) and each.raddr.port in ports and each.status == psutil.CONN_ESTABLISHED
        for each in balancer.process().net_connections("tcp")
    )


def servers(load: Load, since: float) -> set[str]:
    """Who answered requests that began after some moment."""
    return {sample.server for sample in load.samples if sample.began >= since}


def fresh(count: int) -> list[Sequence]:
    return [Sequence(next(_numbers)) for _ in range(count)]


async def test_a_fourth_triton_joins_and_one_leaves_without_a_failed_request(
    balancer: RunningBalancer, tritons: tuple[RealTriton, ...], fourth: RealTriton
) -> None:
    leaving = tritons[0]
    async with Load(balancer.target, clients=8) as load:
        await load.wait_for_more(20)
        await command(balancer, "add", fourth.name, *address(fourth), "--wait", "20")
        await load.wait_for(1, lambda sample: sample.server == fourth.name)
        await command(balancer, "remove", leaving.name, "--wait")
        removed_at = time.monotonic()
        await load.wait_for_more(40)
        for triton in (*tritons[1:], fourth):
            await load.wait_for(
                1, lambda s, name=triton.name: s.server == name and s.began >= removed_at
            )
        added_at = time.monotonic()
        await command(balancer, "add", leaving.name, "--wait", "20")
        await load.wait_for(
            1, lambda sample: sample.server == leaving.name and sample.began > removed_at
        )
        await command(balancer, "remove", fourth.name, "--wait")
    assert load.failures == []
    between = {s.server for s in load.samples if removed_at <= s.began < added_at}
    assert between == {triton.name for triton in (*tritons[1:], fourth)}
    assert set(balancer.backends()) == {triton.name for triton in tritons}


async def test_a_removed_triton_finishes_its_sequences_and_has_no_connection_then(
    balancer: RunningBalancer, tritons: tuple[RealTriton, ...]
) -> None:
    leaving = tritons[0]
    async with Load(balancer.target, clients=6) as load, Steps(balancer.target) as steps:
        sequences = fresh(60)
        await steps.all(sequences, start=True)
        await command(balancer, "remove", leaving.name)
        later = fresh(30)
        await steps.all(later, start=True)
        for _ in range(3):
            await steps.all(sequences)
        view = (await asyncio.to_thread(balancer.backends))[leaving.name]
        assert view.open_sequences == sum(each.servers == {leaving.name} for each in sequences)
        assert view.open_sequences >= 10
        await steps.all(sequences + later, end=True)
        await asyncio.to_thread(
            wait_until,
            lambda: leaving.name not in balancer.backends(),
            what="the Triton is gone from the pool",
        )
        removed_at = time.monotonic()
        await load.wait_for_more(20)
        assert connected_to(balancer, leaving) == 0
        assert leaving.name not in servers(load, removed_at)
    assert load.failures == []
    for each in (*sequences, *later):
        assert (each.wrong, len(each.servers)) == ([], 1)
    assert {leaving.name} <= set.union(*(each.servers for each in sequences))
    assert leaving.name not in set.union(*(each.servers for each in later))
    assert f'backend="{leaving.name}"' not in balancer.metrics_text()


async def test_what_does_not_finish_within_the_limit_is_cut(
    balancer: RunningBalancer, tritons: tuple[RealTriton, ...]
) -> None:
    leaving = tritons[0]
    async with Steps(balancer.target) as steps:
        sequences = fresh(30)
        await steps.all(sequences, start=True)
        lost = [each for each in sequences if each.servers == {leaving.name}]
        assert lost
        await command(balancer, "remove", leaving.name, "--limit", "300ms", "--wait")
        for each in sequences:
            await steps.step(each)
        for each in sequences:
            assert len(each.wrong) == (each in lost), each
        assert "is lost: its backend triton-0 has gone" in lost[0].wrong[0]


async def test_streams_on_a_triton_that_leaves_get_all_their_answers(
    balancer: RunningBalancer, tritons: tuple[RealTriton, ...]
) -> None:
    values = list(range(30))

    async def ask(client: grpcaio.InferenceServerClient, begun: asyncio.Semaphore) -> list[int]:
        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": "repeat_int32", "inputs": repeat(grpcclient, values, 50)}

        answers = []
        async for result, error in client.stream_infer(requests()):
            assert error is None
            if not answers:
                begun.release()
            answers.append(result.as_numpy("OUT").item())
        return answers

    clients = [grpcaio.InferenceServerClient(balancer.target.grpc) for _ in range(9)]
    begun = asyncio.Semaphore(0)
    streams = [asyncio.ensure_future(ask(client, begun)) for client in clients]
    for _ in clients:
        await begun.acquire()
    leaving = tritons[0].name
    assert (await asyncio.to_thread(balancer.backends))[leaving].in_flight
    await command(balancer, "remove", leaving, "--wait")
    assert leaving not in await asyncio.to_thread(balancer.backends)
    assert await asyncio.gather(*streams) == [values] * len(clients)
    for client in clients:
        await client.close()
