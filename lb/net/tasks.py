"""Owners of background tasks: every task has one, and ends with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

_log = logging.getLogger(__name__)

_AGAIN_S: Final = 5.0
"""Longer than a task needs to tidy up."""


class TaskOwner:
    """Holds background tasks, names them, logs a crash once, ends them in `aclose`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run `work` until it ends or the owner closes."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._reap)
        return task

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("background task crashed", extra={"task": task.get_name()}, exc_info=error)

    async def aclose(self) -> None:
        """Cancel every task and wait until all have ended. One that goes on is cancelled again:
        libraries may lose a cancellation, as `asyncio.wait_for` does until Python 3.12."""
        while tasks := tuple(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_AGAIN_S)
