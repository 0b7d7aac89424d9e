"""Starting the next process with our listening sockets, and giving way to it once it is ready.

    old                                     new
    starts it, with the sockets, and   ->   binds nothing, reads its settings, probes the backends,
    what operators have said                those that operators added among them
                                       <-   "prepared"
    "operator", "sequences" ...        ->   knows what exists nowhere else
    "begin"                            ->   accepts
                                       <-   "ready"
    stops accepting, drains
    "sequences" as they come and go   <->   until the old one has ended

Both accept for a moment, so no connection is refused, and those that the kernel has queued belong
to the socket. Whatever goes wrong before "ready" leaves the old process as it was.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

from lb.domain.errors import LoadBalancerError
from lb.runtime.doors import Doors
from lb.runtime.handover import SequenceNews, operator_state, sequence_parts
from lb.runtime.notify import ready, reloading
from lb.runtime.predecessor import MOST_UNSENT, VARIABLE, line, unsent
from lb.runtime.wiring import Product

_log = logging.getLogger(__name__)

_INIT: Final = 1
_STOP_S: Final = 5.0
"""How long a new process that is not wanted may take to end."""
_LINE_BYTES: Final = 1 << 20
_MOST_GREETING: Final = 64 << 10
"""Characters: what nobody reads yet must fit the buffer of the socket. What does not is told later,
and backends that operators added are then probed only once the new process serves."""


class UpgradeFailed(LoadBalancerError):
    """The next process did not become ready; this one goes on. The message says why."""


class Upgrader:
    """Starts the next process."""

    def __init__(
        self,
        product: Product,
        doors: Doors,
        give_way: Callable[[int], None],
        command: tuple[str, ...] | None = None,
    ) -> None:
        """
        Args:
            product: its state is handed over.
            doors: its sockets likewise.
            give_way: called with the id of the new process once that accepts.
            command: that starts it; the one that started this process if left out.
        """
        self._product = product
        self._doors = doors
        self._give_way = give_way
        self._command = command or (sys.executable, *sys.orig_argv[1:])
        self.news = SequenceNews(product)
        """Of sequences, for all processes that hear of them."""
        self._lock = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        """To the next process, which hears of sequences until we end."""
        self.begun = asyncio.Event()
        """This process serves: nobody takes over before."""
        self.closed = ""
        """Why nobody may take over any more, if so."""

    async def upgrade(self, why: str) -> int:
        """Start the next process and give way to it. Returns its id.

        Raises:
            UpgradeFailed: this process goes on.
        """
        if os.getpid() == _INIT:
            raise self._failed(
                why,
                "this process is the first of its container, which ends with it: replace the "
                "container, or run the process below an init such as tini",
            )
        if self._lock.locked():
            raise self._failed(why, "another upgrade is under way")
        await self.begun.wait()
        async with self._lock:
            if self.closed:
                raise self._failed(why, self.closed)
            reloading(os.environ)
            try:
                pid = await self._start(why)
            except UpgradeFailed:
                ready(os.environ)
                raise
            self.closed = f"process {pid} has taken over"
            self._give_way(pid)
            ready(os.environ, main_pid=pid)
            return pid

    async def ask(self, why: str) -> None:
        """As `upgrade`, for those who do not wait for its outcome."""
        try:
            await self.upgrade(why)
        except UpgradeFailed:
            return  # it is in the log

    def close(self) -> None:
        """We end."""
        if self._writer is not None:
            self._writer.close()

    async def _start(self, why: str) -> int:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.to_thread(self._spawn, theirs)
            except OSError as error:
                ours.close()
                raise self._failed(why, f"cannot start {self._command[0]}: {error}") from error
        _log.info("next process started", extra={"by": why, "pid": process.pid})
        limit_s = self._product.settings.upgrade.timeout
        writer = None
        try:
            async with asyncio.timeout(limit_s):
                self._greet(ours)
                reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_LINE_BYTES)
                await self._converse(reader, writer)
        except TimeoutError:
            reason = f"the new process was not ready within {limit_s:g} s"
        except (OSError, ValueError) as error:
            reason = f"the new process has gone: {error}"
        except UpgradeFailed as failure:
            reason = str(failure)
        else:
            _log.info("next process is ready", extra={"pid": process.pid})
            self._writer = writer
            self._product.tasks.spawn(self._follow(reader), name="next process")
            process.returncode = 0  # we shall not wait for its end, whatever `Popen` thinks of that
            return process.pid
        self.news.forget(self._tell)
        self._writer = None
        process.terminate()
        if writer is None:
            ours.close()
        else:
            writer.transport.abort()
        code = await asyncio.to_thread(_end, process)
        raise self._failed(why, f"{reason} (it ended with {code})")

    def _failed(self, why: str, reason: str) -> UpgradeFailed:
        _log.error("upgrade failed, this process goes on", extra={"by": why, "why": reason})
        return UpgradeFailed(reason)

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        environment = {**os.environ, VARIABLE: str(theirs.fileno())}
        return subprocess.Popen(
            self._command, env=environment, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL
        )

    def _greet(self, ours: socket.socket) -> None:
        bound = self._doors.listeners.bound.values()
        listeners = [
            {"name": each.name, "wanted": str(each.wanted), "is_ours": each.is_ours}
            for each in bound
        ]
        greeting: dict[str, Any] = {"listeners": listeners}
        operator = operator_state(self._product)
        if len(json.dumps(operator)) < _MOST_GREETING:
            greeting["operator"] = operator
        text = json.dumps(greeting).encode() + b"\n"
        socket.send_fds(ours, [text], [each.socket.fileno() for each in bound])
        ours.setblocking(False)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer until the new process is ready."""
        while text := await reader.readline():
            event = json.loads(text)
            if "failed" in event:
                raise UpgradeFailed(f"the new process says: {event['failed']}")
            if "prepared" in event:
                await self._tell_state(writer)
            if "ready" in event:
                return
        raise UpgradeFailed("the new process ended before it was ready; its log says why")

    async def _tell_state(self, writer: asyncio.StreamWriter) -> None:
        """Tell what exists nowhere else, and go on telling until we end."""
        self._writer = writer
        writer.write(line("operator", operator_state(self._product)))
        self.news.follow(self._tell)
        for rows in sequence_parts(self._product):
            self._tell(rows)
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(line("begin"))
        await writer.drain()

    def _tell(self, rows: list[list[Any]]) -> None:
        if self._writer is not None and unsent(self._writer) < MOST_UNSENT:
            self._writer.write(line("sequences", rows))

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        """Hear of sequences that begin and end at the next process, until we end."""
        try:
            while text := await reader.readline():
                self.news.hear(json.loads(text).get("sequences", ()), self._tell)
        except OSError as error:
            _log.info("next process has gone", extra={"why": str(error)})
        finally:
            self.news.forget(self._tell)


def _end(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process that was told to end, but not for ever; return its exit code."""
    try:
        return process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
