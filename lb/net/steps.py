"""Work in steps, on the event loop."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, TypeVar

from lb.kserve.merge.steps import Steps
from lb.net.iteration import IterationBudget

ResultT = TypeVar("ResultT")

_STEP_UNITS: Final = 1000
"""Of `IterationBudget` for a step, which takes about a millisecond."""


async def between_others(work: Steps[ResultT]) -> ResultT:
    """Do the work one step per loop iteration, and return its result."""
    try:
        while True:
            try:
                next(work)
            except StopIteration as stop:
                result: ResultT = stop.value
                return result
            await asyncio.sleep(0)
    finally:
        work.close()


async def in_turns(work: Steps[ResultT], budget: IterationBudget) -> ResultT:
    """Do the work a step at a time, and return its result. All such work shares the budget of each
    loop iteration, so that many pieces of it hold the loop no longer than one."""
    try:
        while True:
            await _next_turn(budget, _STEP_UNITS)
            try:
                next(work)
            except StopIteration as stop:
                result: ResultT = stop.value
                return result
    finally:
        work.close()


async def have_turn(budget: IterationBudget, units: int) -> None:
    """Wait for an iteration whose budget has something left for work of so many units."""
    if budget.left > 0:
        budget.spend(units)
    else:
        await _next_turn(budget, units)


async def _next_turn(budget: IterationBudget, units: int) -> None:
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    budget.later(partial(_take_turn, turn, budget, units))
    await turn


def _take_turn(turn: asyncio.Future[None], budget: IterationBudget, units: int) -> None:
    """A step can be done, unless nobody waits for it any more."""
    if not turn.done():
        budget.spend(units)  # now: others are asked before the step is done
        turn.set_result(None)


def at_once(work: Steps[ResultT], budget: IterationBudget, units: int) -> ResultT | None:
    """Do the first step in this iteration, unless its budget is spent.

    Args:
        work: that has not begun.
        budget: of the iteration.
        units: that the first step takes.

    Returns:
        The result, if that was the only step. Otherwise `in_turns` goes on.
    """
    if budget.left <= 0:
        return None
    budget.spend(units)
    try:
        next(work)
    except StopIteration as stop:
        result: ResultT = stop.value
        return result
    return None
