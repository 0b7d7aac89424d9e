"""Runs the process that compares: starts it when there is something to compare, feeds it, and
starts it again when it dies.

It is a fresh interpreter and no fork, so that it shares nothing with us: a thread would hold the
interpreter from requests for milliseconds. What it has not answered is held here, on the ledger,
up to a bound; beyond that pairs are dropped and counted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import deque
from collections.abc import Callable
from typing import Final

from lb.comparison.pairs import REPORT, Pair, pack
from lb.comparison.tally import Tally
from lb.comparison.worker import NO_NUMPY
from lb.net.tasks import TaskOwner
from lb.wire.ledger import Ledger

_log = logging.getLogger(__name__)

MAX_BYTES: Final = 32 * 2**20
"""Payload that waits to be compared."""
_BYTES_PER_S: Final = 64 * 2**20
"""Payload compared in a second on average: the process takes about a second of a processor for
so much."""
_REPORT_S: Final = 1.0
_FIRST_PAUSE_S: Final = 1.0
"""Before it is started again; doubled each time until it has compared something."""
_MAX_PAUSE_S: Final = 60.0
_STUCK_S: Final = 60.0
"""After so long without an answer it is ended, and started again."""
_EXIT_S: Final = 5.0
"""After it has closed its output, it has so long to exit."""
_LINE_BYTES: Final = 2**20
_MODULE: Final = "lb.comparison.worker"
_MISSING: Final = "answers are not compared: install triton-lb[compare]"

Found = Callable[[str, str, Tally], None]
"""Is told of a name, a kind (`shadow` or `noise`), and what was found since the last time."""


class ComparisonProcess:
    """Compares pairs of answers in another process. A `Holder` of what waits. To be used from one
    event loop."""

    def __init__(
        self,
        ledger: Ledger,
        tasks: TaskOwner,
        found: Found,
        clock: Callable[[], float],
        command: tuple[str, ...] = (sys.executable, "-m", _MODULE),
    ) -> None:
        """
        Args:
            ledger: has the bytes that wait.
            tasks: owns the task that feeds the process.
            found: is told of what was found.
            clock: monotonic seconds.
            command: that runs the process.
        """
        self.held = 0
        """For the ledger, which writes it."""
        self.dropped = 0
        """Pairs that were not compared: the process is behind, or died with them."""
        self.starts = 0
        self.pid: int | None = None
        """The number of the process; None where there is none."""
        self.why = ""
        """Why nothing is compared now; empty where it is."""
        self._ledger = ledger
        ledger.spares += (self,)
        self._tasks = tasks
        self._found = found
        self._clock = clock
        self._command = command
        self._queue: deque[Pair] = deque()
        self._under_way: Pair | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._paid_until = 0.0
        """When what was compared so far is within the bytes per second."""

    def offer(self, pair: Pair) -> bool:
        """Have a pair compared, if there is room. Never blocks."""
        size = pair.size
        ledger = self._ledger
        if (
            self.why
            or self.held + size > MAX_BYTES
            or ledger.held + size > ledger.keep_up_to
            or not ledger.take(self, size)
        ):
            self.dropped += 1
            return False
        self._queue.append(pair)
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = self._tasks.spawn(self._run(), name="compare")
        return True

    def evict(self) -> None:
        """See `Holder`: what nobody waits for goes first."""
        self.dropped += len(self._queue) + (self._under_way is not None)
        self._queue.clear()
        self._under_way = None
        self._ledger.release(self, self.held)

    # The process

    async def _run(self) -> None:
        while True:
            code = await self._converse()
            self.evict()
            self.why = _MISSING if code == NO_NUMPY else "the process that compares has ended"
            _log.warning(self.why, extra={"code": code, "restart_s": self._pause_s})
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(_MAX_PAUSE_S, 2 * self._pause_s)
            self.why = ""
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()

    async def _converse(self) -> int:
        """Start the process and feed it until it ends. Returns its exit code."""
        self.starts += 1
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LINE_BYTES,
                start_new_session=True,  # what a terminal interrupts is us
            )
        except OSError as error:
            _log.warning("comparison cannot be started", extra={"why": str(error)})
            return -1
        self.pid = process.pid
        try:
            await self._feed(process)
        except (OSError, EOFError, ValueError):
            try:
                await asyncio.wait_for(process.wait(), _EXIT_S)
            except TimeoutError:
                pass  # it is ended below, and its exit code lost
        finally:
            self.pid = None
            if process.returncode is None:
                process.kill()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            await process.stdout.read()  # to its end, which closes the pipe
            await process.wait()
        return process.returncode or 0

    async def _feed(self, process: asyncio.subprocess.Process) -> None:
        """
        Raises:
            EOFError: the process has ended.
            OSError: likewise, or it is stuck.
            ValueError: it says something else than results.
        """
        reported_at = self._clock()
        is_reported = True
        while True:
            now = self._clock()
            if not is_reported and now - reported_at >= _REPORT_S:
                await self._send(process, [REPORT])
                reported_at, is_reported = now, True
            if not self._queue:
                self._wake.clear()
                try:
                    wait_s = None if is_reported else _REPORT_S
                    await asyncio.wait_for(self._wake.wait(), wait_s)
                except TimeoutError:
                    continue
            if not self._queue:  # it was evicted meanwhile
                continue
            await asyncio.sleep(max(0.0, self._paid_until - now))
            if not self._queue:
                continue
            pair = self._under_way = self._queue.popleft()
            await self._send(process, pack(pair))
            self._paid_until = max(now, self._paid_until) + pair.size / _BYTES_PER_S
            is_reported = False
            self._pause_s = _FIRST_PAUSE_S
            if self._under_way is pair:  # else it was evicted
                self._under_way = None
                self._ledger.release(self, pair.size)

    async def _send(self, process: asyncio.subprocess.Process, pieces: list[bytes]) -> None:
        """Send a frame, and take what the process says until it has dealt with it."""
        assert process.stdin is not None
        assert process.stdout is not None
        async with asyncio.timeout(_STUCK_S):
            process.stdin.writelines(pieces)
            await process.stdin.drain()
            while (line := await process.stdout.readline()) != b"\n":
                if not line:
                    raise EOFError
                said = json.loads(line)
                self._found(said["name"], said["kind"], Tally.from_json(said["tally"]))
