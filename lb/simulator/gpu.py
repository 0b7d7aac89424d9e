"""A GPU as simulated Tritons see it, one or several on the same: how busy it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

INTERVAL_S: Final = 2.0
"""How often Triton looks (`--metrics-interval-ms`)."""
MEMORY_BYTES: Final = 16 * 2**30
_USED_BYTES: Final = 2**30
MODEL_BYTES: Final = 2**30
"""Memory that a model takes which is loaded on request."""


class SimulatedGpu:
    """Counts when anything runs on it."""

    def __init__(
        self,
        uuid: str,
        *,
        is_slice: bool = False,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            uuid: tells it from others.
            is_slice: it is a part of a GPU (MIG), of which no utilisation is known.
            interval_s: utilisation is that of so many seconds.
            clock: seconds.
        """
        self.uuid = uuid
        self.memory_total = MEMORY_BYTES
        self.memory_used = _USED_BYTES
        self._is_slice = is_slice
        self._interval_s = interval_s
        self._clock = clock
        self._begun = clock()
        """The interval that runs."""
        self._counted_until = self._begun
        self._busy_s = 0.0
        self._last = 0.0
        self._running = 0

    @contextmanager
    def used(self) -> Iterator[None]:
        """Use it meanwhile."""
        self._count()
        self._running += 1
        try:
            yield
        finally:
            self._count()
            self._running -= 1

    @property
    def utilization(self) -> float | None:
        """The part of the last whole interval in which anything ran, 0 to 1."""
        self._count()
        return None if self._is_slice else self._last

    def _count(self) -> None:
        """Count the time since the last look."""
        now = self._clock()
        while now >= (end := self._begun + self._interval_s):
            self._busy_s += (end - self._counted_until) * bool(self._running)
            self._last = self._busy_s / self._interval_s
            self._busy_s = 0.0
            self._begun = self._counted_until = end
        self._busy_s += (now - self._counted_until) * bool(self._running)
        self._counted_until = now
