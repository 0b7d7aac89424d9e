"""How many log lines of one kind are written: enough to see what happens, not what a flood makes.

What is left out is told by one line with the number, at most once a second for each kind.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final

MAX_KINDS: Final = 256
"""Kinds beyond these are one together."""
_REPORT_S: Final = 1.0


class _Kind:
    """The bucket of one kind."""

    __slots__ = ("at", "left_out", "since", "tokens")

    def __init__(self, tokens: float, now: float) -> None:
        self.tokens = tokens
        self.at = now
        self.left_out = 0
        self.since = now
        """When the first of those was left out."""


class LineLimit:
    """A token bucket for each kind of line. Times are monotonic seconds."""

    def __init__(self, rate: float, burst: int) -> None:
        """
        Args:
            rate: lines per second of one kind.
            burst: lines at once after a quiet time.
        """
        self._rate = rate
        self._burst = burst
        self._kinds: dict[Hashable, _Kind] = {}
        self._owing: dict[Hashable, _Kind] = {}
        """Kinds whose last lines were left out."""

    def admits(self, kind: Hashable, now: float) -> bool:
        """Whether one more line of a kind may be written."""
        found = self._kinds.get(kind)
        if found is None:
            if len(self._kinds) >= MAX_KINDS:
                kind = None
            found = self._kinds.setdefault(kind, _Kind(self._burst, now))
        found.tokens = min(self._burst, found.tokens + max(now - found.at, 0.0) * self._rate)
        found.at = now
        if found.tokens >= 1.0:
            found.tokens -= 1.0
            return True
        if not found.left_out:
            found.since = now
            self._owing[kind] = found
        found.left_out += 1
        return False

    def left_out(self, now: float, *, all_of_them: bool = False) -> Iterator[tuple[Hashable, int]]:
        """Yield kinds and how many of their lines were left out, once that is a second ago.

        Args:
            now: the time.
            all_of_them: at the end, also those of the last second.
        """
        for kind, found in tuple(self._owing.items()):
            if all_of_them or now - found.since >= _REPORT_S:
                del self._owing[kind]
                count, found.left_out = found.left_out, 0
                yield kind, count
