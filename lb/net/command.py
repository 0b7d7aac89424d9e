"""Runs commands of the configuration: without a shell, without our secrets, within a time limit."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Final

from lb.domain.errors import LoadBalancerError

_PASSED_ON: Final = ("PATH", "HOME", "LANG", "TZ")
"""Variables that a command gets of ours; others may be secrets."""
_STDERR: Final = 2
_REAP_S: Final = 5.0
"""How long one that was killed is waited for: it may hang in the kernel."""


class CommandError(LoadBalancerError):
    """A command could not be run, failed, or took too long."""


async def run_command(
    command: Sequence[str], limit_s: float, variables: Mapping[str, str] | None = None
) -> None:
    """Run a command until it ends. What it prints goes to our standard error. Processes that it
    leaves behind live on, unless it is killed.

    Args:
        command: the program and its arguments.
        limit_s: seconds that it may take; then it is killed with its process group.
        variables: environment variables beside those passed on.

    Raises:
        CommandError: it was not found, ended with another status than 0, or took too long.
    """
    known = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=_STDERR,
            stderr=_STDERR,
            env={**known, **(variables or {})},
            start_new_session=True,
        )
    except OSError as error:
        raise CommandError(f"{command[0]}: {error.strerror or error}") from error
    try:
        async with asyncio.timeout(limit_s):
            status = await process.wait()
    except TimeoutError:
        raise CommandError(f"{command[0]} took more than {limit_s:g} s, and was killed") from None
    finally:
        if process.returncode is None:
            _kill_group(process.pid)
            try:
                async with asyncio.timeout(_REAP_S):
                    await process.wait()
            except TimeoutError:
                pass
    if status:
        how = f"status {status}" if status > 0 else f"signal {-status}"
        raise CommandError(f"{command[0]} ended with {how}")


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has just ended
