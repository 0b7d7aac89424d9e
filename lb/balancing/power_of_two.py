"""Power of two choices: draw two distinct backends, take the less loaded.

Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001). For several
proxies in front of the same backends: their choices do not run after each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from lb.balancing.score import least_loaded_with_room
from lb.domain.backend import Backend
from lb.domain.pool import Picker


class PowerOfTwo:
    """The policy."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def build(self, backends: Sequence[Backend]) -> Picker:
        """Make a picker over a non-empty set."""
        return PowerOfTwoPicker(backends, self._rng)


class PowerOfTwoPicker:
    """Draws two; looks at all only when both are full. O(1)."""

    __slots__ = ("_backends", "_random")

    def __init__(self, backends: Sequence[Backend], rng: Random) -> None:
        self._backends = tuple(backends)
        self._random = rng.random

    def pick(self) -> Backend | None:
        """Return the less loaded of two; None when every backend is full."""
        # HOT PATH (benchmarks/bench_pick.py). `int(random() * n)` instead of `randrange`, which
        # costs four times as much; its bias is below 2**-44 for hundreds of backends.
        backends = self._backends
        count = len(backends)
        draw = self._random
        first = backends[int(draw() * count)]
        if count > 1:
            # Drawn among the others: the last one stands in for the first draw.
            second = backends[int(draw() * (count - 1))]
            if second is first:
                second = backends[-1]
            if (second.in_flight + 1) * second.inverse_weight < (
                first.in_flight + 1
            ) * first.inverse_weight:
                first, second = second, first
            if first.has_room:
                return first
            if second.has_room:
                return second
        return first if first.has_room else least_loaded_with_room(backends)
