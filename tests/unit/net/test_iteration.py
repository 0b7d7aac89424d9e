"""The budget of work in one iteration of the loop."""

from __future__ import annotations

import asyncio

import pytest

from lb.net.iteration import ROOM, IterationBudget


async def test_every_iteration_has_the_whole_budget() -> None:
    budget = IterationBudget(asyncio.get_running_loop())
    budget.spend(ROOM)
    assert budget.left == 0
    await asyncio.sleep(0)
    assert budget.left == ROOM


async def test_what_waits_goes_on_in_turn_and_leaves_half_to_others() -> None:
    budget = IterationBudget(asyncio.get_running_loop())
    calls: list[str] = []

    def go_on(name: str) -> None:
        calls.append(name)
        budget.spend(ROOM // 4)
        budget.later(lambda: go_on(name))

    for name in "abc":
        budget.later(lambda name=name: go_on(name))  # type: ignore[misc]
    for expected in ("ab", "abca", "abcabc"):
        await asyncio.sleep(0)
        assert "".join(calls) == expected
        assert budget.left == ROOM // 2


async def test_one_that_fails_does_not_hold_up_the_others() -> None:
    loop = asyncio.get_running_loop()
    failed: list[object] = []
    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
    budget = IterationBudget(loop)
    done = asyncio.Event()

    def fail() -> None:
        raise LookupError

    budget.later(fail)
    budget.later(done.set)
    async with asyncio.timeout(30):
        await done.wait()
    assert [type(each) for each in failed] == [LookupError]


async def test_work_that_may_wait_has_its_turn_while_nothing_waits_and_half_is_left() -> None:
    budget = IterationBudget(asyncio.get_running_loop())
    budget.spend(ROOM // 2 - 1)
    assert budget.has_turn
    budget.spend(1)
    assert not budget.has_turn
    await asyncio.sleep(0)
    assert budget.has_turn
    budget.later(lambda: None)
    assert not budget.has_turn


async def test_work_that_is_timed_counts_by_the_microsecond_up_to_half_of_the_budget() -> None:
    now = 1.0
    budget = IterationBudget(asyncio.get_running_loop(), lambda: now)
    now = 1.00025
    budget.spend_time(1.0)
    assert budget.left == ROOM - 250
    await asyncio.sleep(0)
    now = 2.0
    budget.spend_time(1.0)
    assert budget.left == ROOM // 2


@pytest.mark.parametrize("units", [1, ROOM])
async def test_an_idle_loop_is_not_woken(units: int) -> None:
    loop = asyncio.get_running_loop()
    budget = IterationBudget(loop)
    budget.spend(units)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not loop._ready  # type: ignore[attr-defined]
