"""Long bodies that are held whole: taken from a socket without the copies that a transport makes.

A transport of uvloop reads into a buffer of its own, and copies what came into an object. For tens
of megabytes that copy costs a fifth of the CPU time of the request. So an intake takes the middle
of such a body itself: it leaves it in the kernel (`lb.net.stored`), or where that is not possible,
reads it straight into the memory that keeps it. The beginning and the end of the body take the
usual way, which sees what follows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from lb.net.stored import KernelPipe, Store, StoredBytes

READ_BYTES: Final = 1 << 18
"""Read at once at most, as a transport of uvloop does. With 1 MiB a batch of 38 MB took 7 % more
CPU time."""


class Intake:
    """Takes the middle of one body; `Pumps.collect` makes it."""

    __slots__ = (
        "_fd", "_from", "_is_reading", "_left", "_loop", "_over", "_pipe", "_store", "_take",
        "is_over",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        source: asyncio.Transport,
        fd: int,
        size: int,
        store: Store,
        take: Callable[[bytes | StoredBytes], None],
        over: Callable[[], None],
    ) -> None:
        """
        Args:
            loop: which says when there is something to read.
            source: whose reading it takes over.
            fd: a descriptor of the same socket, which it closes.
            size: bytes to take.
            store: keeps what it can.
            take: takes what came.
            over: told when reading is the source's again, for whatever reason.
        """
        self._loop = loop
        self._from = source
        self._fd = fd
        self._left = size
        self._store = store
        self._pipe: KernelPipe | None = None
        """Gets what comes, while it has room."""
        self._take = take
        self._over = over
        self._is_reading = True
        self.is_over = False

    def begin(self) -> None:
        """Take over from the source's transport."""
        self._from.pause_reading()
        self._loop.add_reader(self._fd, self._turn)

    def set_reading(self, wanted: bool) -> None:
        """Go on, or let the source wait."""
        if self.is_over or wanted is self._is_reading:
            return
        self._is_reading = wanted
        if wanted:
            self._loop.add_reader(self._fd, self._turn)
        else:
            self._loop.remove_reader(self._fd)

    def end(self) -> None:
        """Give back to the source's transport. Idempotent."""
        if self.is_over:
            return
        self.is_over = True
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._pipe = None
        if self._is_reading and not self._from.is_closing():
            self._from.resume_reading()
        self._over()

    def _turn(self) -> None:
        """The source has something. Its end, or an error, is left for its transport to find."""
        try:
            piece = self._move() or os.read(self._fd, min(self._left, READ_BYTES))
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self.end()
            return
        self._left -= len(piece)
        self._take(piece)
        if not self._left:
            self.end()

    def _move(self) -> StoredBytes | None:
        """Move what has come into a pipe. None where there is no pipe, or nothing comes any more.

        Raises:
            BlockingIOError: nothing has come.
            OSError: the source has failed.
        """
        pipe = self._pipe
        if pipe is not None and not pipe.is_full:
            try:
                return self._filled(pipe)
            except BlockingIOError:
                pass  # as long as the source has something, it has no place left
        self._pipe = pipe = self._store.new_pipe()
        return None if pipe is None else self._filled(pipe)

    def _filled(self, pipe: KernelPipe) -> StoredBytes | None:
        before = pipe.size
        if not pipe.fill(self._fd, self._left):
            return None
        return StoredBytes(self._store, pipe, before, pipe.size)
