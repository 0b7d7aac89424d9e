"""What a target is, and how inputs are cut."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any
from zlib import crc32

TIME_LIMIT_S = 5.0
"""Of processor time, for one input. The slowest take 20 ms."""
MAX_SIZE = 4096
"""Bytes of a generated input; seeds may be longer."""
_BYTE_BY_BYTE = 300
_SEEDS = Path(__file__).parent / "seeds"


@dataclass(frozen=True)
class Target:
    """One parser and what it promises."""

    name: str
    check: Callable[[bytes], None]
    """Raises whatever it likes when a promise is broken."""
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...] = ()
    """Pieces of the grammar, for mutations."""
    examples: int = 200
    """Generated inputs in the smoke test; `make fuzz` goes on for as long as it may."""

    def __str__(self) -> str:
        return self.name


def stored_seeds(name: str) -> tuple[bytes, ...]:
    """Seeds that would differ in every run if they were made on the spot."""
    return tuple(path.read_bytes() for path in sorted((_SEEDS / name).iterdir()))


def cuttings(data: bytes) -> list[list[bytes]]:
    """The input in one piece, and in another way that depends on the input alone."""
    chance = Random(crc32(data))
    size = len(data)
    match chance.randrange(3):
        case 0 if size <= _BYTE_BY_BYTE:
            edges = range(size + 1)
        case 1:
            edges = sorted({0, chance.randint(0, size), size})
        case _:
            edges = sorted({0, size, *(chance.randint(0, size) for _ in range(12))})
    return [[data], [data[start:stop] for start, stop in pairwise(edges)]]


def same_for_every_cutting(read: Callable[[list[bytes]], Any], data: bytes) -> Any:
    """What `read` makes of the input, however it comes.

    Raises:
        AssertionError: it depends on how it comes.
    """
    whole, *others = (read(pieces) for pieces in cuttings(data))
    for other in others:
        assert other == whole, f"in pieces: {other!r}\nas a whole: {whole!r}"
    return whole


@contextmanager
def time_limit(seconds: float = TIME_LIMIT_S) -> Iterator[None]:
    """Raise TimeoutError in what computes for longer. Main thread only."""

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"one input took more than {seconds} s")

    previous = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
