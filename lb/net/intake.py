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
import socket
from collections.abc import Callable
from typing import Final

from lb.net.stored import KernelPipe, Store, StoredBytes

READ_BYTES: Final = 1 << 18
"""Read at once at most, as a transport of uvloop does. With 1 MiB a batch of 38 MB took 7 % more
CPU time."""
_READS_PER_TURN: Final = 4
"""Reads before other connections have their turn: a run, a header, and the next run."""

_GATHERED: Final = 1 << 20
"""Bytes of a run that gather in the socket before the loop is told (SO_RCVLOWAT, socket(7)). A
sender on the same machine brings 64 to 128 KiB at a time. When each of them was taken as it came, a
batch of 38 MB that was cut in four took a third more CPU time. 512 KiB gain less, 2 MiB no more."""
_LOOK_AFTER_S: Final = 0.25
"""Fewer bytes are taken after so long, so that a slow client is seen to send."""

TakeHeader = Callable[[bytes], int]


class Intake:
    """Takes the middle of one body; `Pumps.collect` makes it."""

    __slots__ = (
        "_fd", "_from", "_gathered", "_header_size", "_is_reading", "_left", "_look_later", "_loop",
        "_over", "_pipe", "_socket", "_store", "_take", "_take_header", "is_over",
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
        # Of whatever family: it is there for its options.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=fd)
        self._left = size
        self._gathered = 1
        """Bytes that gather before the loop is told."""
        self._look_later: asyncio.TimerHandle | None = None
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
        if self._take_header is None:
            self._gather(min(self._left, _GATHERED))
            self._look_later = self._loop.call_later(_LOOK_AFTER_S, self._look)
        self._loop.add_reader(self._fd, self._turn)

    def _gather(self, size: int) -> None:
        """Have the loop told once so many bytes are there."""
        if size != self._gathered:
            self._gathered = size
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _look(self) -> None:
        """Take what has come, however little it is."""
        if self._is_reading:
            self._turn(is_ready=False)
        if not self.is_over:
            self._look_later = self._loop.call_later(_LOOK_AFTER_S, self._look)

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
        if self._look_later is not None:
            self._look_later.cancel()
        self._loop.remove_reader(self._fd)
        self._gather(1)
        self._socket.close()
        self._pipe = None
        if self._is_reading and not self._from.is_closing():
            self._from.resume_reading()
        self._over()

    def _turn(self, *, is_ready: bool = True) -> None:
        """Take what has come. The end of the source, or an error, is left for its transport to
        find.

        Args:
            is_ready: the source has something.
        """
        for number in range(_READS_PER_TURN):
            try:
                piece = self._read(is_ready=is_ready and not number)
            except BlockingIOError:
                return
            except OSError:
                piece = b""
            if not piece:
                self.end()
                return
            if self._left:
                self._left -= len(piece)
                if self._left < self._gathered and self._left:
                    self._gather(self._left)
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

    def _read(self, *, is_ready: bool) -> bytes | StoredBytes:
        """Take some of a run, or of a header. Returns nothing at the end of the source.

        Args:
            is_ready: the source has something.

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
                if not is_ready:
                    raise
                # So the pipe has no place left.
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
