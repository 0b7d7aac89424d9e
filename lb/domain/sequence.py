"""Sequences: requests of a stateful model that belong together (Triton's `sequence_batching`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class SequenceKey(NamedTuple):
    """What tells sequences apart. Triton counts the integer 77 and the string "77" as two."""

    model: bytes
    id: int | str


class SequenceStep(NamedTuple):
    """What one request says of its sequence."""

    key: SequenceKey
    is_start: bool = False
    is_end: bool = False


class Question:
    """Asks other processes that serve clients what they have told of sequences and has not come
    yet. It is over when all have answered, have gone, or take too long."""

    __slots__ = ("_when_over", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self._when_over: list[Callable[[], None]] = []

    def when_over(self, call: Callable[[], None]) -> None:
        """Have something called when it is over; at once if it is."""
        if self.is_over:
            call()
        else:
            self._when_over.append(call)

    def end(self) -> None:
        """It is over. May be called again."""
        self.is_over = True
        calls, self._when_over = self._when_over, []
        for call in calls:
            call()
