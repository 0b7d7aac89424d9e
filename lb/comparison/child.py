"""Runs the process that compares: starts it when there is something to compare, feeds it, and
starts it again when it dies.

It is a fresh interpreter and no fork, so that it shares nothing with us: a thread would hold the
interpreter from requests for milliseconds. What it has not answered is held here, in the memory
budget, up to a bound; beyond that pairs are dropped and counted.
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
from lb.wire.memory_budget import MemoryBudget

_log = logging.getLogger(__name__)

MAX_BYTES: Final = 32 * 2**20
"""Payload that waits to be compared."""
_BYTES_PER_S: Final = 64 * 2**20
"""Payload compared in a second on average: the process takes about a second of a processor for
so much."""
_GATHER_S: Final = 0.25
"""Pairs of so long go to the process together: nobody waits for them, and each exchange with it
costs us about as much as a copy does otherwise."""
_BATCH_BYTES: Final = 2**20
_BATCH_PAIRS: Final = 256
"""A batch ends with the pair that reaches either."""
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

Found = Callable[[int, str, Tally], None]
"""Is told of a shadow, a kind (`shadow` or `noise`), and what was found since the last time."""


class ComparisonProcess:
    """Compares pairs of answers in another process. A `Holder` of what waits. To be used from one
    event loop."""

    def __init__(
        self,
        memory_budget: MemoryBudget,
        tasks: TaskOwner,
        found: Found,
        clock: Callable[[], float],
        command: tuple[str, ...] = (sys.executable, "-m", _MODULE),
    ) -> None:
        """
        Args:
            memory_budget: has the bytes that wait.
            tasks: owns the task that feeds the process.
            found: is told of what was found.
            clock: monotonic seconds.
            command: that runs the process.
        """
        self.held = 0
        """For the memory budget, which writes it."""
        self.dropped = 0
        """Pairs that were not compared: the process is behind, or died with them."""
        self.starts = 0
        self.pid: int | None = None
        """The number of the process; None where there is none."""
        self.why = ""
        """Why nothing is compared now; empty where it is."""
        self._memory_budget = memory_budget
        memory_budget.spares += (self,)
        self._tasks = tasks
        self._found = found
        self._clock = clock
        self._command = command
        self._queue: deque[Pair] = deque()
        self._under_way: list[Pair] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._paid_until = 0.0
        """When what was compared so far is within the bytes per second."""

    def offer(self, pair: Pair) -> bool:
        """Have a pair compared, if there is room. Never blocks."""
        size = pair.size
        memory_budget = self._memory_budget
        if (
            self.why
            or self.held + size > MAX_BYTES
            or memory_budget.held + size > memory_budget.keep_up_to
            or not memory_budget.take(self, size)
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
        self.dropped += len(self._queue) + len(self._under_way)
        self._queue.clear()
        self._under_way = []
        self._memory_budget.release(self, self.held)

    @property
    def charged_to(self) -> None:
        """See `Holder`: no client waits for it."""
        return None

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
        while True:
            wait_s = 0.0
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
                wait_s = _GATHER_S
            await asyncio.sleep(max(wait_s, self._paid_until - self._clock()))
            pairs = self._under_way = self._next_batch()
            if not pairs:  # they were evicted meanwhile
                continue
            size = sum([each.size for each in pairs])
            self._paid_until = max(self._clock(), self._paid_until) + size / _BYTES_PER_S
            await self._send(process, pairs)
            self._pause_s = _FIRST_PAUSE_S
            if self._under_way is pairs:  # else they were evicted
                self._under_way = []
                self._memory_budget.release(self, size)

    def _next_batch(self) -> list[Pair]:
        pairs: list[Pair] = []
        size = 0
        while self._queue and size < _BATCH_BYTES and len(pairs) < _BATCH_PAIRS:
            pair = self._queue.popleft()
            size += pair.size
            pairs.append(pair)
        return pairs

    async def _send(self, process: asyncio.subprocess.Process, pairs: list[Pair]) -> None:
        """Have pairs compared, and take what was found."""
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdin.is_closing():  # it died while there was nothing to send; uvloop minds
            raise EOFError
        async with asyncio.timeout(_STUCK_S):
            for pair in pairs:
                process.stdin.writelines(pack(pair))
            process.stdin.write(REPORT)
            await process.stdin.drain()
            while (line := await process.stdout.readline()) != b"\n":
                if not line:
                    raise EOFError
                said = json.loads(line)
                self._found(said["shadow"], said["kind"], Tally.from_json(said["tally"]))
