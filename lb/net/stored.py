"""Bytes that stay in the kernel: what a socket has received waits in pipes until it goes on.

Linux moves what a socket has received into a pipe by reference (splice(2)), and hands out further
references to what a pipe holds (tee(2)). So a long body can be held whole, cut, sent in parts, and
sent again, without being copied. To read 38 MB into memory and to write it from there takes as much
CPU time again as all else that is done to relay it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from typing import Any, Final

from lb.wire.rope import Stored

MOST_PIPES: Final = 32
"""Pipes of one event loop. Each has two descriptors, and counts with its capacity toward what Linux
lets a user have in pipes: 64 MiB (`fs.pipe-user-pages-soft`)."""
_CAPACITY: Final = 1 << 20
"""Capacity of a pipe, as Linux counts: it has a place for each 4 KiB. What is received takes a
place for up to 32 KiB, so more bytes may be in it."""
_MOST_BYTES: Final = 4 << 20
"""Bytes in one pipe, which are read into memory at once if they have to be."""
_SET_PIPE_SIZE: Final = 1031
"""F_SETPIPE_SZ; `fcntl` has the name where it was built with it."""
_FLAGS: Final = 2
"""SPLICE_F_NONBLOCK."""


class KernelPipe:
    """A pipe whose bytes are kept until nobody has any of them."""

    __slots__ = ("_store", "end", "size", "start")

    def __init__(self, store: Store | None) -> None:
        """
        Args:
            store: counts it, unless it is the store's own.

        Raises:
            OSError: the process or its user has too many.
        """
        self._store: Store | None = None
        self.size = 0
        """Bytes that went into it."""
        self.start, self.end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # `__del__` closes it if this fails.
        fcntl.fcntl(self.end, _SET_PIPE_SIZE, _CAPACITY)
        if store is not None:
            store.pipes += 1
            self._store = store

    def __del__(self) -> None:
        for name in ("start", "end"):
            fd = getattr(self, name, None)
            if fd is not None:
                os.close(fd)
        if self._store is not None:
            self._store.pipes -= 1

    def fill(self, fd: int, most: int) -> int:
        """Move what a socket has received into it. Returns how many bytes came: none at the end.

        Raises:
            BlockingIOError: it is full, or nothing has come.
            OSError: the socket has failed.
        """
        size = os.splice(fd, self.end, min(most, _MOST_BYTES - self.size), flags=_FLAGS)
        self.size += size
        return size

    @property
    def is_full(self) -> bool:
        """Whether it takes no more bytes, however few places they need."""
        return self.size >= _MOST_BYTES


class StoredBytes:
    """Some of the bytes in a pipe; see `lb.wire.rope.Stored`."""

    __slots__ = ("_begin", "_end", "_pipe", "_store")

    def __init__(self, store: Store, pipe: KernelPipe, begin: int, end: int) -> None:
        self._store = store
        self._pipe = pipe
        self._begin = begin
        self._end = end

    def __len__(self) -> int:
        return self._end - self._begin

    def part(self, begin: int, end: int) -> StoredBytes:
        """See `Stored`."""
        first = self._begin
        return StoredBytes(self._store, self._pipe, first + begin, min(first + end, self._end))

    def followed_by(self, other: Stored) -> StoredBytes | None:
        """See `Stored`."""
        if (
            isinstance(other, StoredBytes)
            and other._pipe is self._pipe
            and other._begin == self._end
        ):
            return StoredBytes(self._store, self._pipe, self._begin, other._end)
        return None

    def read(self) -> bytes:
        """See `Stored`."""
        return os.read(self._store.copy(self._pipe, self._begin, self._end), len(self))

    def send(self, fd: int) -> int:
        """See `Stored`."""
        left = size = len(self)
        start = self._store.copy(self._pipe, self._begin, self._end)
        try:
            while left:
                left -= os.splice(start, fd, left, flags=_FLAGS)
        except OSError:  # it is full, or has failed, which its transport finds out
            self._store.discard(left)
        return size - left


class Store:
    """What of one event loop lies in pipes."""

    def __init__(self) -> None:
        self.pipes = 0
        self._copy: KernelPipe | None = None
        """References to bytes of a pipe on their way out; empty otherwise."""
        self._sink = -1
        """/dev/null, which takes references as well."""
        self._tee: Any = None

    def new_pipe(self) -> KernelPipe | None:
        """An empty pipe; None where there are enough, or no more can be made."""
        if self.pipes >= MOST_PIPES or not self._prepare():
            return None
        try:
            return KernelPipe(self)
        except OSError:
            return None

    def _prepare(self) -> bool:
        """Have what takes bytes out of pipes. False where there is none."""
        if self._copy is not None:
            return True
        if not hasattr(os, "splice"):
            return False
        try:
            self._tee = ctypes.CDLL(None, use_errno=True).tee
            self._sink = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            self._copy = KernelPipe(None)
        except (AttributeError, OSError):
            self.close()
            return False
        return True

    def copy(self, pipe: KernelPipe, begin: int, end: int) -> int:
        """Have references to bytes of a pipe at hand, to be used at once.

        Returns:
            A descriptor to read them from. `discard` takes what is left.

        Raises:
            OSError: the store is closed.
        """
        copy = self._copy
        if copy is None:
            raise OSError("the store is closed")
        # Both have as many places, and the copy is empty, so there is room for all of it.
        if self._tee(pipe.start, copy.end, ctypes.c_size_t(end), _FLAGS) < end:
            raise OSError(ctypes.get_errno(), "tee")
        self.discard(begin)
        return copy.start

    def discard(self, size: int) -> None:
        """Drop references from the front of the copy."""
        copy = self._copy
        while size and copy is not None:
            size -= os.splice(copy.start, self._sink, size)

    def close(self) -> None:
        """Close what takes bytes out of pipes; what lies in them cannot be read any more."""
        self._copy = None
        if self._sink >= 0:
            os.close(self._sink)
            self._sink = -1
