"""Counts of the calls of our own that clients' calls to all backends become."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from lb.domain.backend import Backend

CallKey = tuple[str, Backend, str]
"""Operation, backend and outcome."""


class OwnCalls:
    """Plain counters, read at scrape time."""

    def __init__(self) -> None:
        self.counts: Counter[CallKey] = Counter()

    def count(self, operation: str, backend: Backend, outcome: str) -> None:
        """One call ended.

        Args:
            operation: its name.
            backend: who was asked.
            outcome: `ok`, `error` when the backend answered one, or why it did not answer.
        """
        self.counts[operation, backend, outcome] += 1

    def retain(self, backends: Set[Backend]) -> None:
        """Forget what was counted for all other backends."""
        for key in [key for key in self.counts if key[1] not in backends]:
            del self.counts[key]
