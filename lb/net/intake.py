"""Long bodies that are held whole: taken from a socket without the copies that a transport makes.

A transport of uvloop reads into a buffer of its own, and copies what came into an object. For tens
of megabytes that copy costs a fifth of the CPU time of the request. So an intake takes the middle
of such a body itself: it leaves it in the kernel (`lb.net.stored`), or where that is not possible,
reads it straight into the memory that keeps it. The beginning and the end of the body take the
usual way, which sees what follows.

A body may come in runs with a header of fixed size before each, such as DATA frames of HTTP/2.
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
_READS_PER_TURN: Final = 4
"""Reads before other connections have their turn: a run, a header, and the next run."""

TakeHeader = Callable[[bytes], int]


class Intake:
    """Takes the middle of one body; `Pumps.collect` makes it."""

    __slots__ = (
        "_fd", "_from", "_header_size", "_is_reading", "_left", "_loop", "_over", "_pipe",
        "_store", "_take", "_take_header", "is_over",
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
        header: tuple[int, TakeHeader] | None = None,
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
            header: bytes of the header before each further run, and what takes it: that returns
                the size of the run, or 0 if the source is to read on. None: there is one run.
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
        self._header_size = 0
        self._take_header: TakeHeader | None = None
        if header is not None:
            self._header_size, self._take_header = header
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
        for is_again in range(_READS_PER_TURN):
            try:
                piece = self._read(bool(is_again))
            except BlockingIOError:
                return
            except OSError:
                piece = b""
            if not piece:
                self.end()
                return
            if self._left:
                self._left -= len(piece)
                self._take(piece)
                is_done = not self._left and self._take_header is None
            else:
                assert self._take_header is not None
                assert isinstance(piece, bytes)
                self._left = self._take_header(piece)
                is_done = not self._left
            if is_done:
                self.end()
            if self.is_over or not self._is_reading:
                return

    def _read(self, is_again: bool) -> bytes | StoredBytes:
        """Take some of a run, or of a header. Returns nothing at the end of the source.

        Args:
            is_again: the source was read in this turn already, so it may have nothing more.

        Raises:
            BlockingIOError: nothing has come.
            OSError: the source has failed.
        """
        if not self._left:
            return os.read(self._fd, self._header_size)
        pipe = self._pipe
        if pipe is not None and not pipe.is_full:
            try:
                return self._fill(pipe)
            except BlockingIOError:
                if is_again:
                    raise
                # The source has something, so the pipe has no place left.
        self._pipe = pipe = self._store.new_pipe()
        if pipe is None:
            return os.read(self._fd, min(self._left, READ_BYTES))
        return self._fill(pipe)

    def _fill(self, pipe: KernelPipe) -> bytes | StoredBytes:
        """Move what has come into a pipe, as `_read`."""
        before = pipe.size
        if not pipe.fill(self._fd, self._left):
            return b""
        return StoredBytes(self._store, pipe, before, pipe.size)
