"""Waiting for the end of a process that was started, without a thread, which may not be had."""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import Final

_LOOK_S: Final = 0.02


async def end_of(process: subprocess.Popen[bytes]) -> int:
    """Wait until a process has ended. Returns its exit code."""
    if (code := process.poll()) is not None:
        return code  # another process may have its number by now
    try:
        end = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, or a sandbox without it
        while process.poll() is None:  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(_LOOK_S)
    else:
        has_ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(end, has_ended.set)
        try:
            await has_ended.wait()
        finally:
            loop.remove_reader(end)
            os.close(end)
    return process.wait()


async def end_within(process: subprocess.Popen[bytes], limit_s: float) -> int:
    """Wait for a process that was told to end, and kill it after so long. Returns its exit code."""
    try:
        async with asyncio.timeout(limit_s):
            return await end_of(process)
    except TimeoutError:
        process.kill()
        return await end_of(process)
