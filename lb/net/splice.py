"""Long bodies that go from one socket to another without passing through the process.

Linux moves what a socket has received to another one by reference, by way of a pipe (splice(2)):
that saves the copy that a read costs, the copy that a write costs, and the memory between them. A
pump does so for the middle of a body; its beginning and its end take the usual way. So does every
difficulty: when the sink takes no more, a little of what waits is handed to its transport, which
then reports as always that it is full, and that it is not; ends and errors are left for the
transports to find.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable
from typing import Any, Final

from lb.net.intake import Intake, TakeHeader
from lb.net.stored import Store, StoredBytes

LEAST: Final = 512 * 1024
"""Bytes from which on it pays: a pump's beginning and end cost as much as copying a part."""
PIPE_BYTES: Final = 256 * 1024
"""What one pump moves at once, and what may wait in it: as much as one read brings."""
MOST: Final = 32
"""Pumps at once. Each has three descriptors; where there are more bodies, they are copied."""
_TAIL: Final = 4096
"""What is left to the usual way, which sees where the body ends and what comes after it."""
_PIECE: Final = 16 * 1024
"""What a sink's transport gets to wait with."""
_IN_A_ROW: Final = 4
"""Pipes filled in one iteration of the loop."""
_SET_PIPE_SIZE: Final = 1031
"""F_SETPIPE_SZ; `fcntl` has the name where it was built with it."""

Moved = Callable[[int], None]
Pipe = tuple[int, int]


class Pump:
    """Moves a part of a body of known length; `Pumps.start` makes it."""

    __slots__ = (
        "_fd", "_from", "_high", "_is_reading", "_left", "_loop", "_moved", "_over", "_pipe",
        "_pumps", "_to", "_to_fd", "held", "is_over",
    )  # fmt: skip

    def __init__(
        self,
        pumps: Pumps,
        pipe: Pipe,
        fd: int,
        ends: tuple[asyncio.Transport, asyncio.Transport, int],
        size: int,
        moved: Moved,
        over: Callable[[], None],
    ) -> None:
        self._pumps = pumps
        self._loop = pumps.loop
        self._pipe = pipe
        self._fd = fd
        self._from, self._to, self._high = ends
        self._to_fd = descriptor(self._to)
        self._left = size - _TAIL
        self._moved = moved
        self._over = over
        self._is_reading = True
        self.held = 0
        """Bytes in the pipe: they have come and were not written yet."""
        self.is_over = False

    def begin(self) -> None:
        """Take over from the source's transport."""
        self._from.pause_reading()
        # The sink then reports whatever it could not write.
        self._to.set_write_buffer_limits(high=0)
        self._loop.add_reader(self._fd, self._turn)

    def set_reading(self, wanted: bool) -> None:
        """Go on, or let the source wait until the sink has caught up."""
        if self.is_over or wanted is self._is_reading:
            return
        self._is_reading = wanted
        if not wanted:
            self._loop.remove_reader(self._fd)
        elif self._push():
            if self._left > 0:
                self._loop.add_reader(self._fd, self._turn)
            else:
                self.end()

    def end(self) -> None:
        """Give back to the source's transport; what is held is dropped. Idempotent."""
        if self.is_over:
            return
        self.is_over = True
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._pumps.take_back(self._pipe, is_empty=not self.held)
        self.held = 0
        if not self._to.is_closing():
            self._to.set_write_buffer_limits(high=self._high)
        if self._is_reading and not self._from.is_closing():
            self._from.resume_reading()
        self._over()

    def _turn(self) -> None:
        """The source has something."""
        for _ in range(_IN_A_ROW):
            if not (self._push() and self._pull() and self._push()):
                return
            if self._left <= 0:
                self.end()
                return

    def _pull(self) -> bool:
        """Fill the pipe, which is empty. False when nothing came."""
        try:
            size = os.splice(
                self._fd, self._pipe[1], min(self._left, PIPE_BYTES), flags=os.SPLICE_F_NONBLOCK
            )
        except BlockingIOError:
            return False
        except OSError:
            size = 0
        if not size:
            self.end()
            return False
        self._left -= size
        self.held = size
        self._moved(size)
        return True

    def _push(self) -> bool:
        """Write what the pipe holds. False while the sink takes no more, or when it is over."""
        while self.held and not self.is_over:
            try:
                self.held -= os.splice(
                    self._pipe[0], self._to_fd, self.held, flags=os.SPLICE_F_NONBLOCK
                )
            except BlockingIOError:
                self._hand_over(_PIECE)
                if not self._is_reading or self._to.get_write_buffer_size():
                    return False
            except OSError:
                self._hand_over(self.held)
                self.end()
        return not self.is_over

    def _hand_over(self, most: int) -> None:
        """Let the sink's transport write some of what the pipe holds."""
        piece = os.read(self._pipe[0], min(most, self.held))
        self.held -= len(piece)
        self._to.write(piece)


class Pumps:
    """The pumps of one event loop, and their pipes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.running = 0
        """Those of them, and of bodies that are read into memory."""
        self.idle: list[Pipe] = []
        """Empty pipes of pumps that are over."""
        self.store = Store()
        """What is held of bodies that are collected."""
        self._is_able = hasattr(os, "splice")

    def start(
        self,
        source: asyncio.Transport,
        sink: asyncio.Transport,
        size: int,
        *,
        high: int,
        moved: Moved,
        over: Callable[[], None],
    ) -> Pump | None:
        """Move what comes from `source` to `sink` from now on.

        Args:
            source: it stops reading until the pump is over. Both have to be plain (`is_plain`).
            sink: nothing else may write to it meanwhile.
            size: bytes of the body that are still to come.
            high: water mark of the sink, which changes meanwhile.
            moved: told how many bytes have come.
            over: told when reading is the source's again, for whatever reason.

        Returns:
            None where that cannot be done, or would not pay, or there is too much of it already.
        """
        if (
            size < LEAST
            or not self._is_able
            or self.running >= MOST
            or sink.get_write_buffer_size()
            or sink.is_closing()
        ):
            return None
        try:
            fd = os.dup(descriptor(source))  # transports keep their own for themselves
        except OSError:
            return None
        try:
            pipe = self.idle.pop() if self.idle else _make_pipe()
        except OSError:
            os.close(fd)
            return None
        self.running += 1
        pump = Pump(self, pipe, fd, (source, sink, high), size, moved, over)
        pump.begin()
        return pump

    def collect(
        self,
        source: asyncio.Transport,
        size: int,
        *,
        take: Callable[[bytes | StoredBytes], None],
        over: Callable[[], None],
        header: tuple[int, TakeHeader] | None = None,
    ) -> Intake | None:
        """Hold what comes from `source` from now on.

        Args:
            source: as for `start`.
            size: as for `start`; with a header, of the first run alone.
            take: takes what came, in memory or where it is stored.
            over: as for `start`.
            header: stands before each further run, see `Intake`.

        Returns:
            None where that would not pay, or there is too much of it already.
        """
        if (size < LEAST and header is None) or self.running >= MOST:
            return None
        try:
            fd = os.dup(descriptor(source))
        except OSError:
            return None
        self.running += 1

        def ended() -> None:
            self.running -= 1
            over()

        first = size if header is not None else size - _TAIL
        intake = Intake(self.loop, source, fd, first, self.store, take, ended, header)
        intake.begin()
        return intake

    def take_back(self, pipe: Pipe, *, is_empty: bool) -> None:
        """A pump is over."""
        self.running -= 1
        if is_empty:
            self.idle.append(pipe)
        else:
            _close(pipe)

    def close(self) -> None:
        """Close the pipes that no pump has, and the store."""
        self.store.close()
        while self.idle:
            _close(self.idle.pop())


def is_plain(transport: asyncio.Transport) -> bool:
    """Whether what passes its socket is what passes the transport, and the socket is TCP's."""
    sock: Any = transport.get_extra_info("socket")
    return (
        sock is not None
        and sock.family != socket.AF_UNIX
        and transport.get_extra_info("sslcontext") is None
    )


def descriptor(transport: asyncio.Transport) -> int:
    """That of the socket of a transport."""
    return int(transport.get_extra_info("socket").fileno())


def _make_pipe() -> Pipe:
    pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.fcntl(pipe[1], _SET_PIPE_SIZE, PIPE_BYTES)
    except OSError:
        _close(pipe)
        raise
    return pipe


def _close(pipe: Pipe) -> None:
    for fd in pipe:
        os.close(fd)
