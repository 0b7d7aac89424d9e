"""Work in steps that shares the budget of the iterations of the loop."""

from __future__ import annotations

import asyncio

import pytest

from lb.kserve.merge.steps import Steps
from lb.net.iteration import ROOM, IterationBudget
from lb.net.steps import at_once, in_turns


class Work:
    """Notes how many steps were done in which iteration."""

    def __init__(self) -> None:
        self.iteration = 0
        self.steps: list[int] = []

    def of(self, steps: int) -> Steps[str]:
        """Work of so many steps."""
        for step in range(steps):
            self.steps.append(self.iteration)
            if step < steps - 1:
                yield
        return "done"


async def count_iterations(work: Work) -> None:
    """Number the iterations of the loop."""
    while True:
        await asyncio.sleep(0)
        work.iteration += 1


async def test_many_pieces_of_work_do_no_more_in_an_iteration_than_one() -> None:
    budget = IterationBudget(asyncio.get_running_loop())
    work = Work()
    counter = asyncio.create_task(count_iterations(work))
    pieces = [in_turns(work.of(10), budget) for _ in range(8)]
    async with asyncio.timeout(60):
        assert await asyncio.gather(*pieces) == ["done"] * 8
    counter.cancel()
    assert len(work.steps) == 80
    assert max(map(work.steps.count, work.steps)) <= 2


async def test_nobody_takes_the_turn_of_work_that_is_cancelled() -> None:
    budget = IterationBudget(asyncio.get_running_loop())
    work = Work()
    tasks = [asyncio.create_task(in_turns(work.of(5), budget)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    async with asyncio.timeout(60):
        assert await asyncio.gather(*tasks[1:]) == ["done", "done"]
    assert tasks[0].cancelled()
    assert len(work.steps) == 10


async def test_the_first_step_is_done_at_once_while_the_budget_lasts() -> None:
    budget = IterationBudget(asyncio.get_running_loop())
    work = Work()
    assert at_once(work.of(1), budget, ROOM - 1) == "done"
    longer = work.of(2)
    assert at_once(longer, budget, 1) is None
    waiting = work.of(1)
    assert at_once(waiting, budget, 1) is None
    assert len(work.steps) == 2
    async with asyncio.timeout(60):
        assert await in_turns(longer, budget) == "done"
        assert await in_turns(waiting, budget) == "done"


async def test_an_error_in_a_step_is_that_of_the_work() -> None:
    def fails() -> Steps[str]:
        yield
        raise LookupError

    with pytest.raises(LookupError):
        await in_turns(fails(), IterationBudget(asyncio.get_running_loop()))
