"""Work that is done in steps, so that the event loop can serve others between them.

A piece of work is a generator. It yields after about a millisecond, and returns its result.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeAlias, TypeVar

ResultT = TypeVar("ResultT")

Steps: TypeAlias = Generator[None, None, ResultT]
"""Work that yields between its steps."""

_JOINED: Final = 64
"""Pieces of a long text that are joined to one: less than a step writes."""
STEP_BYTES: Final = 16 * 1024
"""Bytes of an answer that one step reads or writes. The slowest step takes about 60 ns per byte."""


def finish(work: Steps[ResultT]) -> ResultT:
    """Do all steps at once, and return the result."""
    while True:
        try:
            next(work)
        except StopIteration as stop:
            result: ResultT = stop.value
            return result


class Pace:
    """Says when a step is long enough."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done = 0

    def count(self, size: int) -> bool:
        """Count `size` bytes of work. True when the step should end; the count begins anew."""
        self._done += size
        if self._done < STEP_BYTES:
            return False
        self._done = 0
        return True


class LongText:
    """A text of very many pieces. Some are joined at a time, so that the step which finishes it has
    few left to join and to free."""

    __slots__ = ("_joined", "_pieces")

    def __init__(self) -> None:
        self._joined: list[bytes] = []
        self._pieces: list[bytes] = []

    def __len__(self) -> int:
        """Pieces that are left to join."""
        return len(self._joined) + len(self._pieces)

    def add(self, *pieces: bytes) -> None:
        """Write the next pieces."""
        self._pieces += pieces
        if len(self._pieces) >= _JOINED:
            self._joined.append(b"".join(self._pieces))
            self._pieces.clear()

    def finish(self, before: bytes, after: bytes) -> bytes:
        """The whole text, between two others."""
        return b"".join((before, *self._joined, *self._pieces, after))
