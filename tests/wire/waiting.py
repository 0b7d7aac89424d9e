"""Waiting on the event loop for what a test needs to have happened."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

WAIT_S = 30.0
"""How long a peer waits for what must come; only a failing test gets there."""

_T = TypeVar("_T")


async def soon(awaitable: Awaitable[_T]) -> _T:
    """Await with a limit, so that a hanging test says where it hangs."""
    async with asyncio.timeout(WAIT_S):
        return await awaitable


async def eventually(is_so: Callable[[], object], within_s: float = WAIT_S) -> None:
    """Return as soon as `is_so`; fail the test when that takes too long."""
    async with asyncio.timeout(within_s):
        while not is_so():  # noqa: ASYNC110  # what is waited for is the product's state
            await asyncio.sleep(0.001)


def stand_still(for_s: float) -> None:
    """Block the event loop, as a machine does that gives the process no processor."""
    time.sleep(for_s)
