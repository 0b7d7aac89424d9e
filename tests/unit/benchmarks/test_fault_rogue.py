"""The scripted backend of the fault suite: what it answers is right, also while it misbehaves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from benchmarks.faults import load as load_of_faults
from benchmarks.faults.ledger import Asked, BackendLedgers, Joined, join
from benchmarks.faults.load import Load, Mix
from benchmarks.faults.rogue import CHURNS, Rogue

MIX = Mix(rate=200.0, steps=0.0, streams=0.0, connect_s=60.0)
ENOUGH = 60


async def asked_of_it(folder: Path, conduct: str) -> Joined:
    """Some requests to it alone, and what it says that it ran."""
    async with Rogue(folder, Random(1)).running() as rogue:
        rogue.conduct = conduct
        load = Load(rogue.target, MIX, seed=1)
        async with load.running():
            async with asyncio.timeout(30):
                while len(load.ledger.asked) < ENOUGH:  # noqa: ASYNC110  # it tells nobody
                    await asyncio.sleep(0.01)
    return join(load.ledger.asked.values(), BackendLedgers(folder).news())


def failed(joined: Joined) -> list[Asked]:
    return [each for each in joined.asked if each.error]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is given up because this machine is busy."""
    monkeypatch.setattr(load_of_faults, "DEADLINE_S", 60.0)
    monkeypatch.setattr(load_of_faults, "_SETTLE_S", 63.0)


async def test_its_answers_are_those_of_the_model_while_it_is_well(tmp_path: Path) -> None:
    joined = await asked_of_it(tmp_path, "")
    assert failed(joined) == []
    assert joined.wrong() == []


async def test_connections_that_it_ends_change_no_answer(tmp_path: Path) -> None:
    joined = await asked_of_it(tmp_path, CHURNS)
    assert joined.wrong() == []
    assert joined.without_one_outcome() == []
    assert len(failed(joined)) < 0.5 * len(joined.asked), "those that it had not taken any more"
