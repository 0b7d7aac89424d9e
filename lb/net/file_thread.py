"""Reads files in a daemon thread, so that a file system that hangs stops nothing else.

A read from a network file system may take for ever, and nothing can end it. The event loop never
reads files, therefore, and nobody joins the thread that does. When a read hangs, another thread
reads the other files, and nobody asks for the hanging one again before it has answered.

If the system has no thread left, work waits for one as long as for a file that does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from time import monotonic
from typing import Final, Generic, Protocol, TypeVar

from lb.domain.errors import LoadBalancerError
from lb.net.files import TOUCHED
from lb.net.tasks import TaskOwner

_log = logging.getLogger(__name__)

STALL_S: Final = 5.0
"""A file that has not answered for so long hangs. Disks that have to start up need less. Work that
has had no thread for so long is given up."""
_CHECKS: Final = 5
"""Looks at a job within that time. At the first one that finds it waiting for a file, another
thread takes over the queue: many files may hang at once, and the others must not wait for each."""
_MOST_REPLACED: Final = 8
"""Threads that may wait for a file that is slow, beside the one that takes jobs. Each hanging file
holds one; beyond this number nobody reads the other files any more."""
_MOST_COUNTED: Final = 100
"""Files that have a counter of their own. The configuration names few files, but a discovery
source could name new ones without end."""
_OTHERS: Final = "(others)"

_T = TypeVar("_T")


class FileStalled(LoadBalancerError):
    """A file cannot be read now: it does not answer, and the message names it, or there is no
    thread to read it."""


class Follower(Protocol):
    """Something that is made from files and goes along with their changes."""

    def poll(self) -> Callable[[], None] | None:
        """Read what has changed. Runs in the thread and changes nothing that others see.

        Returns:
            What puts the news in force, to be called in the event loop; None without news.
        """
        ...

    def __hash__(self) -> int: ...


class _Job(Generic[_T]):
    """One piece of work and whoever waits for its result."""

    __slots__ = (
        "discard", "future", "is_over", "is_replaced", "key", "queued_at", "thread", "timer",
        "work",
    )  # fmt: skip

    def __init__(
        self,
        key: Hashable,
        work: Callable[[], _T],
        future: asyncio.Future[_T],
        discard: Callable[[_T], None] | None,
    ) -> None:
        self.key = key
        self.work = work
        self.future = future
        self.discard = discard
        self.queued_at = monotonic()
        self.thread = 0
        """Identifier of the thread that has taken it; 0: none yet."""
        self.is_over = False
        self.is_replaced = False
        """Its thread waits, and another one has taken over the queue."""
        self.timer: asyncio.TimerHandle | None = None


class FileThread:
    """Does all work with files of a running process, one piece after the other."""

    def __init__(self, *, stall_s: float = STALL_S) -> None:
        """
        Args:
            stall_s: seconds after which a file that does not answer counts as hanging.
        """
        self._stall_s = stall_s
        self._lock = threading.Lock()
        """Held for a moment by whoever reads or writes the next two, or what a job says of its
        thread."""
        self._queue: deque[_Job[object]] = deque()
        self._has_thread = False
        """A thread takes jobs from the queue, until there are none."""
        self._is_short_of_threads = False
        """The last attempt to start a thread has failed."""
        self._jobs: dict[Hashable, _Job[object]] = {}
        """Queued and running jobs by their keys."""
        self._replaced: set[_Job[object]] = set()
        """Running jobs whose thread has been replaced."""
        self._stalled: dict[_Job[object], tuple[str, float]] = {}
        """Jobs that hang: for which file, and since when."""
        self._tasks = TaskOwner()
        self._is_closed = False
        self._stalls: dict[str, int] = {}

    @property
    def stalls(self) -> Mapping[str, int]:
        """Counter: times that a file did not answer, by file."""
        return self._stalls

    @property
    def stalled(self) -> int:
        """Reads that hang now."""
        return len(self._stalled)

    async def run(
        self,
        key: Hashable,
        work: Callable[[], _T],
        *,
        discard: Callable[[_T], None] | None = None,
    ) -> _T:
        """Do some work in the thread, and return or raise what it returns or raises.

        Args:
            key: names the work. Work of one name is never done twice at the same time.
            work: may wait for files; changes nothing that the event loop reads.
            discard: called in the event loop with a result that came too late.

        Raises:
            FileStalled: a file does not answer, or still does not since the last time, or no
                thread can be started.
        """
        before = self._jobs.get(key)
        if before is not None:
            raise FileStalled(self._why(before))
        if self._is_closed:
            raise FileStalled("files are not read any more, since the process ends")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        job: _Job[object] = _Job(key, work, future, discard)  # type: ignore[arg-type]
        self._submit(job, loop)
        try:
            return await future
        except asyncio.CancelledError:
            self._withdraw(job)
            raise

    def follow(self, follower: Follower) -> None:
        """Have a follower look at its files, unless it still does so since the last time."""
        if follower not in self._jobs and not self._is_closed:
            self._tasks.spawn(self._follow(follower), name="files: look")

    async def aclose(self) -> None:
        """End everything, but not a thread that hangs: it ends with the process."""
        self._is_closed = True
        for job in self._jobs.values():
            if job.timer is not None:
                job.timer.cancel()
            job.future.cancel()
        await self._tasks.aclose()

    async def _follow(self, follower: Follower) -> None:
        try:
            apply = await self.run(follower, follower.poll)
        except FileStalled:
            return  # it is in the log, and the next look follows
        if apply is not None:
            apply()

    # The event loop

    def _submit(self, job: _Job[object], loop: asyncio.AbstractEventLoop) -> None:
        self._jobs[job.key] = job
        self._check_later(job, loop)
        with self._lock:
            self._queue.append(job)
            if not self._has_thread:
                self._start_thread()

    def _start_thread(self) -> None:
        """Start a thread that takes jobs. Called with the lock held."""
        # A daemon thread: the interpreter does not wait for it at its end.
        thread = threading.Thread(target=self._work, name="files", daemon=True)
        was_short = self._is_short_of_threads
        try:
            thread.start()
        except RuntimeError as error:  # a limit of the system; the next check tries again
            self._has_thread, self._is_short_of_threads = False, True
            if not was_short:
                _log.error("no thread can be started to read files", extra={"error": str(error)})
            return
        self._has_thread, self._is_short_of_threads = True, False
        if was_short:
            _log.info("a thread reads files again")

    def _withdraw(self, job: _Job[object]) -> None:
        """Nobody waits for a job any more: forget it, unless a thread has taken it."""
        with self._lock:
            if job not in self._queue:
                return
            self._queue.remove(job)
        self._jobs.pop(job.key, None)
        if job.timer is not None:
            job.timer.cancel()

    def _check_later(self, job: _Job[object], loop: asyncio.AbstractEventLoop) -> None:
        job.timer = loop.call_later(self._stall_s / _CHECKS, self._check, job, loop)

    def _check(self, job: _Job[object], loop: asyncio.AbstractEventLoop) -> None:
        """Let another thread take over from a job that waits for a file, and give up on it when
        that takes too long."""
        job.timer = None
        with self._lock:
            touched = TOUCHED.get(job.thread) if job.thread and not job.is_over else None
            waited_s = 0.0 if touched is None else monotonic() - touched[1]
            has_room = len(self._replaced) < _MOST_REPLACED and not job.is_replaced
            if has_room and waited_s >= self._stall_s / _CHECKS / 2:
                job.is_replaced = True
                self._replaced.add(job)
                self._start_thread()
            elif self._queue and not self._has_thread:
                self._start_thread()
            is_given_up = not (job.thread or self._has_thread) and (
                monotonic() - job.queued_at >= self._stall_s
            )
        if is_given_up:
            self._withdraw(job)
        elif touched is not None and waited_s >= self._stall_s:
            self._stalled[job] = touched
            self._count(touched[0])
            _log.warning("file does not answer", extra={"file": touched[0]})
        elif job.thread or len(self._stalled) <= _MOST_REPLACED:
            self._check_later(job, loop)  # its turn may come, or it computes
            return
        if not job.future.done():
            job.future.set_exception(FileStalled(self._why(job)))

    def _count(self, file: str) -> None:
        counted = file if file in self._stalls or len(self._stalls) < _MOST_COUNTED else _OTHERS
        self._stalls[counted] = self._stalls.get(counted, 0) + 1

    def _why(self, job: _Job[object]) -> str:
        stalled = self._stalled.get(job)
        if stalled is not None:
            return f"{stalled[0]} does not answer: its file system hangs"
        if len(self._stalled) > _MOST_REPLACED:
            files = ", ".join(sorted({file for file, _ in self._stalled.values()}))
            return f"files cannot be read while these do not answer: {files}"
        if self._is_short_of_threads:
            return "no thread can be started to read files"
        return "files are still being read since the last time"

    def _end(self, job: _Job[object], result: object, error: Exception | None) -> None:
        self._jobs.pop(job.key, None)
        if job.timer is not None:
            job.timer.cancel()
        self._replaced.discard(job)
        stalled = self._stalled.pop(job, None)
        if stalled is not None:
            fields = {"file": stalled[0], "after_s": round(monotonic() - stalled[1], 3)}
            _log.info("file answers again", extra=fields)
        if not job.future.done():
            if error is None:
                job.future.set_result(result)
            else:
                job.future.set_exception(error)
        elif error is None and job.discard is not None:
            job.discard(result)

    # The threads

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._has_thread = False
                    return
                job = self._queue.popleft()
                job.thread = threading.get_ident()
            result, error = None, None
            try:
                result = job.work()
            except Exception as raised:  # it belongs to whoever waits
                error = raised
            with self._lock:
                job.is_over = True
                is_replaced = job.is_replaced
            try:
                loop = job.future.get_loop()
                loop.call_soon_threadsafe(self._end, job, result, error)
            except RuntimeError:
                return  # the loop has been closed: the process ends
            if is_replaced:
                return
            del job, result, error
