"""Random choice in proportion to the weights: no state, nothing to tune."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from random import Random

from lb.domain.backend import Backend
from lb.domain.pool import Picker


class RandomChoice:
    """The policy."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def build(self, backends: Sequence[Backend]) -> Picker:
        """Make a picker over a non-empty set."""
        return RandomPicker(backends, self._rng)


class RandomPicker:
    """Draws one by weight. O(log n)."""

    __slots__ = ("_backends", "_cumulative", "_last", "_random", "_rng", "_total")

    def __init__(self, backends: Sequence[Backend], rng: Random) -> None:
        self._backends = tuple(backends)
        self._cumulative = tuple(accumulate(backend.spec.weight for backend in backends))
        self._total = self._cumulative[-1]
        self._last = len(self._backends) - 1
        self._rng = rng
        self._random = rng.random

    def pick(self) -> Backend | None:
        """Return a backend drawn by weight among those with room; None when all are full."""
        # HOT PATH (benchmarks/bench_pick.py). Cumulative weights are computed at build time; what
        # is drawn beyond the share of one that starts slowly is drawn again by shares.
        # `_last` bounds the search, because the product may round up to the total.
        at = bisect(self._cumulative, self._random() * self._total, 0, self._last)
        backend = self._backends[at]
        if backend.share < 1.0 and self._random() >= backend.share:
            return self._pick_with_room()
        return backend if backend.has_room else self._pick_with_room()

    def _pick_with_room(self) -> Backend | None:
        free = [backend for backend in self._backends if backend.has_room]
        if not free:
            return None
        return self._rng.choices(free, [each.spec.weight * each.share for each in free])[0]
