"""Bytes that lie in several buffers, read and cut without joining them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Final, Protocol


class Stored(Protocol):
    """Bytes that lie outside of the memory of the process, as in `lb.net.stored`. They never
    change."""

    def __len__(self) -> int: ...

    def part(self, begin: int, end: int) -> Stored:
        """Some of them, from `begin` to before `end`, where they lie."""
        ...

    def followed_by(self, other: Stored) -> Stored | None:
        """These and others as one, if the others lie right behind them."""
        ...

    def read(self) -> bytes:
        """A copy in memory."""
        ...

    def send(self, fd: int) -> int:
        """Write them to a socket, as far as it takes them at once or fails. Returns how many
        bytes went."""
        ...


Payload = bytes | memoryview
Held = bytes | memoryview | Stored
_EMPTY: Final = memoryview(b"")
_READ_BYTES: Final = 1 << 16
"""Bytes of a stored piece that are read into memory to see some of them."""


def in_memory(pieces: Iterable[Held]) -> list[Payload]:
    """Read those of some pieces that lie elsewhere; the others stay as they are."""
    return [piece if isinstance(piece, bytes | memoryview) else piece.read() for piece in pieces]


def _part(piece: Held, begin: int, end: int) -> Held:
    """Some bytes of a piece, not copied."""
    if isinstance(piece, bytes | memoryview):
        return piece[begin:end]
    return piece.part(begin, end)


class Rope:
    """Pieces in the order of their bytes. It never changes once made."""

    __slots__ = ("_piece", "_pieces", "_size", "_start", "_starts", "_stop")

    def __init__(self, pieces: Iterable[Held]) -> None:
        """
        Args:
            pieces: the buffers. They must not change as long as the rope, or a part of it, is used.
        """
        self._pieces: list[Held] = [
            memoryview(piece) if isinstance(piece, bytes) else piece
            for piece in pieces
            if len(piece)
        ]
        self._starts = [0, *accumulate(map(len, self._pieces))]
        self._size = self._starts.pop()
        self._piece = _EMPTY
        """The piece that was read last, or what was read of it."""
        self._start = self._stop = 0
        """Where that begins and ends."""

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, at: int) -> int:
        """The byte at a place, as of `bytes`; not counted from the end."""
        if not self._start <= at < self._stop:
            self._find(at)
        return self._piece[at - self._start]

    def _find(self, at: int) -> None:
        """Have the piece with a byte at hand.

        Raises:
            IndexError: there is no such byte.
        """
        if not 0 <= at < self._size:
            raise IndexError("beyond the end of a rope")
        place = bisect_right(self._starts, at) - 1
        piece = self._pieces[place]
        self._start = self._starts[place]
        if isinstance(piece, bytes | memoryview):
            self._piece = memoryview(piece)
        else:
            begin = at - self._start
            self._piece = memoryview(piece.part(begin, min(begin + _READ_BYTES, len(piece))).read())
            self._start = at
        self._stop = self._start + len(self._piece)

    def u32(self, at: int) -> int:
        """The number in four bytes, little-endian.

        Raises:
            IndexError: there are none.
        """
        if not self._start <= at < self._stop:
            self._find(at)
        here = at - self._start
        four: Payload = self._piece[here : here + 4]
        if len(four) < 4:
            four = self.read(at, at + 4)
        return int.from_bytes(four, "little")

    def pieces(self, begin: int, end: int) -> list[Held]:
        """Bytes from `begin` to before `end`, as far as there are any, where they lie."""
        end = min(end, self._size)
        if begin >= end:
            return []
        first = bisect_right(self._starts, begin) - 1
        last = bisect_right(self._starts, end - 1)
        found = self._pieces[first:last]
        found[-1] = _part(found[-1], 0, end - self._starts[last - 1])
        found[0] = _part(found[0], begin - self._starts[first], len(found[0]))
        return found

    def views(self, begin: int, end: int) -> list[memoryview]:
        """The same bytes in memory: views, unless they lie elsewhere."""
        return [memoryview(piece) for piece in in_memory(self.pieces(begin, end))]

    def part(self, begin: int, end: int) -> Rope:
        """The same bytes as a rope of their own."""
        return Rope(self.pieces(begin, end))

    def read(self, begin: int, end: int) -> bytes:
        """The same bytes, joined: for short ones."""
        return b"".join(self.views(begin, end))

    def joined(self) -> bytes:
        """All of it in one buffer, for what cannot read a rope."""
        return b"".join(in_memory(self._pieces))


def rope_of(data: Payload | Rope) -> Rope:
    """Bytes as a rope, whether they are one already or lie in one buffer."""
    return data if isinstance(data, Rope) else Rope([data])
