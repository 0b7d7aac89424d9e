"""The child processes of the demo: none of them outlives it, however it ends.

Each is a session of its own, so that Ctrl-C reaches only the demo, which then ends them in order;
on Linux the kernel ends them too should the demo be killed outright.
"""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lb.net.tasks import TaskOwner
from lb.testing.processes import ending_with_parent

END_S: Final = 5.0
"""How long a child may take to end before it is killed."""
READY_S: Final = 60.0
"""How long a child may take to start, on a machine that is busy with other things. One that dies is
noticed at once."""
TAIL_LINES: Final = 15


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


class Children:
    """Starts child processes and ends them; an asynchronous context manager."""

    def __init__(
        self,
        log: Path,
        on_death: Callable[[str], None],
        *,
        ready_s: float = READY_S,
        end_s: float = END_S,
    ) -> None:
        self._log = log
        self._on_death = on_death
        self._ready_s = ready_s
        self._end_s = end_s
        self._processes: list[Process] = []
        self._watchers = TaskOwner()

    async def __aenter__(self) -> Children:
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the newest child, then all others: the newest depends on them."""
        await self._watchers.aclose()
        await _end(self._processes[-1:], self._end_s)
        await _end(self._processes[:-1], self._end_s)

    async def start(
        self,
        name: str,
        *command: str,
        announces: bool = False,
        on_end: Callable[[str], None] | None = None,
    ) -> Process:
        """Start a child; `on_death` hears of its end.

        Args:
            on_end: hears of its end in the place of `on_death`, in words such as `was killed by
                SIGKILL`: the demo goes on without it.
            announces: it prints a line when it is ready, for `first_line`; without, all that it
                prints goes to the log.
        """
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *ending_with_parent(command),
                stdin=DEVNULL,
                stdout=PIPE if announces else log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        watch = self._await_death(name, process, on_end)
        self._watchers.spawn(watch, name=f"demo: watch {name}")
        return process

    async def first_line(self, name: str, process: Process) -> bytes:
        """Return the line that a child prints when it is ready.

        Raises:
            DemoError: it ended or kept silent instead.
        """
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), self._ready_s)
        except TimeoutError:
            line = b""
        if not line:
            raise DemoError(self.with_log(f"{name} did not start"))
        return line

    def with_log(self, text: str) -> str:
        """Return `text` with the last lines that the children wrote."""
        written = self._log.read_text(errors="replace") if self._log.exists() else ""
        return "\n".join([text, *(f"  | {line}" for line in written.splitlines()[-TAIL_LINES:])])

    async def _await_death(
        self, name: str, process: Process, on_end: Callable[[str], None] | None
    ) -> None:
        code = await process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        if on_end is not None:
            on_end(how)
        else:
            self._on_death(self.with_log(f"{name} {how}"))


async def _end(processes: list[Process], end_s: float) -> None:
    """Terminate, and kill what does not end in time."""
    running = [process for process in processes if process.returncode is None]
    for process in running:
        # A frozen one cannot end. The signal that ends it comes last: another one would take the
        # exit status of a child that has ended, and asyncio's watcher would find none (255).
        process.send_signal(signal.SIGCONT)
        process.terminate()
    try:
        async with asyncio.timeout(end_s):
            for process in running:
                await process.wait()
    except TimeoutError:
        for process in running:
            if process.returncode is None:
                process.kill()
            await process.wait()
