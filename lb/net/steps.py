"""Work in steps, on the event loop."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from lb.kserve.merge.steps import Steps

ResultT = TypeVar("ResultT")


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
