"""Waiting for the end of a process that was started, without a thread, which may not be had."""

from __future__ import annotations

import asyncio
import subprocess
from typing import Final

_LOOK_S: Final = 0.02


async def end_of(process: subprocess.Popen[bytes]) -> int:
    """Wait until a process has ended. Returns its exit code."""
    while (code := process.poll()) is None:  # noqa: ASYNC110  # nothing tells of it
        await asyncio.sleep(_LOOK_S)
    return code


async def end_within(process: subprocess.Popen[bytes], limit_s: float) -> int:
    """Wait for a process that was told to end, and kill it after so long. Returns its exit code."""
    try:
        async with asyncio.timeout(limit_s):
            return await end_of(process)
    except TimeoutError:
        process.kill()
        return await end_of(process)
