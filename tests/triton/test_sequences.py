"""Sequences over three Tritons: sums prove that every step reached the one that has the state."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.sequences import Sequence, StepFailed, Steps
from tests.triton.server import RealTriton

MIDDLE_STEPS = 3
"""Between the first and the last."""
_numbers = itertools.count(500_000)


def fresh(count: int) -> list[Sequence]:
    """Sequences whose ids no other test has: numbers, and texts that read the same."""
    numbers = [next(_numbers) for _ in range(count // 2)]
    ids: list[int | str] = [*numbers, *map(str, numbers)]
    return [Sequence(each) for each in ids]


def complaints(sequences: list[Sequence]) -> list[Sequence]:
    """What is wrong with any of them."""
    return [each for each in sequences if each.wrong or len(each.servers) != 1][:5]


@pytest_asyncio.fixture
async def steps(balancer: RunningBalancer) -> AsyncIterator[Steps]:
    """A client of the balancer."""
    async with Steps(balancer.target) as client:
        yield client


@pytest.fixture
def victim(balancer: RunningBalancer, tritons: tuple[RealTriton, ...]) -> Iterator[RealTriton]:
    """A Triton to mistreat: not the one that other tests call directly. Well again afterwards."""
    chosen = tritons[-1]
    yield chosen
    if not chosen.is_running:
        chosen.restart()
    chosen.wait_ready()
    balancer.command(chosen.name, "enable")
    wait_until(balancer.all_in_rotation, timeout_s=30.0, what="all Tritons are back")


def open_on(balancer: RunningBalancer) -> dict[str, int]:
    return {name: view.open_sequences for name, view in balancer.backends().items()}


async def test_a_thousand_interleaved_sequences_are_right_and_use_every_triton(
    balancer: RunningBalancer, steps: Steps
) -> None:
    sequences = fresh(1000)
    before = await asyncio.to_thread(open_on, balancer)
    await steps.all(sequences, start=True)
    after = await asyncio.to_thread(open_on, balancer)
    opened = {name: count - before[name] for name, count in after.items()}
    assert sum(opened.values()) == 1000
    # How evenly depends on how fast each Triton is on this machine: tests/study has that.
    assert min(opened.values()) > 0
    assert Counter(next(iter(each.servers)) for each in sequences) == opened
    for _ in range(MIDDLE_STEPS):
        await steps.all(sequences)
    await steps.all(sequences, end=True)
    assert complaints(sequences) == []
    assert await asyncio.to_thread(open_on, balancer) == before


async def test_a_drain_in_the_middle_disturbs_no_sequence(
    balancer: RunningBalancer, victim: RealTriton, steps: Steps
) -> None:
    sequences = fresh(300)
    await steps.all(sequences, start=True)
    await steps.all(sequences)
    await asyncio.to_thread(balancer.command, victim.name, "drain")
    later = fresh(60)
    await steps.all(later, start=True)
    for _ in range(3):
        await steps.all(sequences)
    view = (await asyncio.to_thread(balancer.backends))[victim.name]
    assert not view.empty
    assert view.open_sequences == sum(victim.name in each.servers for each in sequences) > 0
    await steps.all(sequences + later, end=True)
    assert complaints(sequences + later) == []
    assert {victim.name} <= set.union(*(each.servers for each in sequences))
    assert victim.name not in set.union(*(each.servers for each in later))
    await asyncio.to_thread(
        wait_until,
        lambda: balancer.backends()[victim.name].empty,
        what="the drained Triton is empty",
    )


async def test_a_killed_triton_costs_its_sequences_a_clear_error_and_no_other_any(
    balancer: RunningBalancer, victim: RealTriton, steps: Steps
) -> None:
    sequences = fresh(90)
    await steps.all(sequences, start=True)
    lost = [each for each in sequences if each.servers == {victim.name}]
    others = [each for each in sequences if each.servers != {victim.name}]
    assert lost
    assert others
    victim.kill9()
    await asyncio.to_thread(
        wait_until,
        lambda: set(balancer.backends()[victim.name].port_states) == {"down"},
        what="the balancer knows",
    )
    for number, each in enumerate(lost):
        send = steps.over_grpc if number % 2 else steps.over_http
        shown = f'"{each.id}"' if isinstance(each.id, str) else str(each.id)
        with pytest.raises(StepFailed) as failure:
            await send(each.id, 1)
        code = "UNAVAILABLE" if number % 2 else "503"
        assert str(failure.value) == (
            f"{code}: sequence {shown} of model accumulator is lost: "
            f"its backend {victim.name} has gone; start it again"
        )
    await steps.all(others)
    for each in lost:
        each.servers.clear()
    await steps.all(lost, start=True)
    await steps.all(sequences, end=True)
    assert complaints(sequences) == []
    assert victim.name not in set.union(*(each.servers for each in sequences))


async def test_a_triton_that_exits_finishes_its_sequences(
    balancer: RunningBalancer, victim: RealTriton, steps: Steps
) -> None:
    sequences = fresh(30)
    steps.use_grpc_only()  # Triton closes its HTTP port first
    await steps.all(sequences, start=True)
    victim.sigterm()
    await asyncio.to_thread(
        wait_until,
        lambda: balancer.backends()[victim.name].is_out,
        what="the balancer knows",
    )
    later = fresh(6)
    await steps.all(later, start=True)
    for _ in range(2):
        await steps.all(sequences)
    await steps.all(sequences + later, end=True)
    assert complaints(sequences + later) == []
    assert {victim.name} <= set.union(*(each.servers for each in sequences))
    assert victim.name not in set.union(*(each.servers for each in later))
    await asyncio.to_thread(wait_until, lambda: not victim.is_running, what="it has exited")


async def test_a_sequence_that_nobody_started_gets_tritons_own_answer(steps: Steps) -> None:
    for send, code in ((steps.over_http, "400"), (steps.over_grpc, "INVALID_ARGUMENT")):
        number = next(_numbers)
        with pytest.raises(StepFailed) as failure:
            await send(number, 1)
        assert str(failure.value) == (
            f"{code}: inference request for sequence {number} to model 'accumulator' must specify "
            "the START flag on the first request of the sequence"
        )


async def test_a_start_of_an_open_sequence_begins_anew_where_it_is(steps: Steps) -> None:
    (sequence, *_) = fresh(2)
    for _ in range(5):
        await steps.step(sequence, start=True)
        await steps.step(sequence)
    await steps.step(sequence, end=True)
    assert complaints([sequence]) == []
