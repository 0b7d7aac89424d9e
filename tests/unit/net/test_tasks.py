"""Every background task has an owner, which ends it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest

from lb.net.tasks import TaskOwner


async def forever() -> None:
    await asyncio.Event().wait()


async def nothing() -> None:
    return


async def crash() -> None:
    raise LookupError("lost")


async def test_a_task_has_its_name_and_is_forgotten_when_it_ends() -> None:
    owner = TaskOwner()
    task = owner.spawn(nothing(), name="nothing")
    assert (task.get_name(), len(owner)) == ("nothing", 1)
    await task
    await asyncio.sleep(0)
    assert len(owner) == 0


async def test_closing_cancels_and_waits() -> None:
    owner = TaskOwner()
    tasks = [owner.spawn(forever(), name=str(number)) for number in range(3)]
    await asyncio.sleep(0)
    await owner.aclose()
    assert all(task.cancelled() for task in tasks)
    assert len(owner) == 0
    await owner.aclose()


async def test_closing_cancels_again_who_has_lost_the_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lb.net.tasks._AGAIN_S", 0.01)
    owner = TaskOwner()

    async def lose_it() -> None:
        with suppress(asyncio.CancelledError):
            await forever()
        await forever()

    task = owner.spawn(lose_it(), name="loses it")
    await asyncio.sleep(0)
    await owner.aclose()
    assert task.cancelled()


async def test_closing_waits_for_tasks_that_tidy_up() -> None:
    owner = TaskOwner()
    tidied: list[int] = []

    async def tidy() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            tidied.append(1)

    owner.spawn(tidy(), name="tidy")
    await asyncio.sleep(0)
    await owner.aclose()
    assert tidied == [1]


async def test_a_crash_is_logged_once_and_cancelling_is_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A task that raises; one that is cancelled says nothing."""
    owner = TaskOwner()
    with caplog.at_level(logging.DEBUG):
        await asyncio.wait([owner.spawn(crash(), name="crash")])
        owner.spawn(forever(), name="forever")
        await asyncio.sleep(0)
        await owner.aclose()
    (record,) = caplog.records
    assert (record.message, record.levelname) == ("background task crashed", "ERROR")
    assert record.__dict__["task"] == "crash"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], LookupError)
