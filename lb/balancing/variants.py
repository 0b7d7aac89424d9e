"""Which variant of a name serves a request: by weights, and the same on every replica.

A key, such as a user's id, goes to the variant with the lowest score, and a score rests on nothing
but the key, the variant's name and its weight: weighted rendezvous hashing (Thaler and
Ravishankar, 1998; with weights Schindelhauer and Schomaker, 2005). So shares follow the weights,
and a variant whose weight rises relative to the others gains keys from them and loses none.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from math import fsum, inf, log


class WeightedChoice:
    """Chooses among variants by their weights. Immutable."""

    __slots__ = ("_steps", "_variants", "weights")

    def __init__(self, names: Sequence[str], weights: Sequence[float]) -> None:
        """
        Args:
            names: of the variants; each is part of what is hashed.
            weights: of the variants, in the same order; a share is a weight by their sum. Where
                all are 0 the first variant gets everything.
        """
        self.weights = tuple(weights)
        self._variants = [
            (index, name.encode() + b"\0", 1.0 / weight)
            for index, (name, weight) in enumerate(zip(names, weights, strict=True))
            if weight > 0
        ]
        """Index, what is hashed before the key, and the inverse of the weight."""
        total = fsum(weights)
        below = 0.0
        self._steps: list[tuple[float, int]] = []
        """Where the share of a variant ends, for `by_draw`."""
        for index, _, inverse in self._variants:
            below += 1.0 / (inverse * total)
            self._steps.append((below, index))

    def by_key(self, key: bytes) -> int:
        """Return the index of the variant of a key."""
        variants = self._variants
        if len(variants) < 2:
            return variants[0][0] if variants else 0
        best, lowest = 0, inf
        for index, salt, inverse in variants:
            digest = blake2b(salt + key, digest_size=8).digest()
            # Uniform in (0, 1], so its negative logarithm is exponential, with rate 1.
            uniform = (int.from_bytes(digest, "big") + 1) / (1 << 64)
            score = -log(uniform) * inverse
            if score < lowest:
                best, lowest = index, score
        return best

    def by_draw(self, drawn: float) -> int:
        """Return the index of the variant that a random number from 0 to 1 stands for."""
        for below, index in self._steps:
            if drawn < below:
                return index
        return self._steps[-1][1] if self._steps else 0


def with_shares(weights: Sequence[float], percents: Sequence[float | None]) -> tuple[float, ...]:
    """Return the weights, in percent, after some variants were given a share.

    Args:
        weights: of all variants before.
        percents: by variant, the share that it is given; None: what is left is divided among these
            in proportion to their weights, or equally where all those are 0.

    Raises:
        ValueError: the shares cannot be.
    """
    given = [each for each in percents if each is not None]
    if any(not 0 <= each <= 100 for each in given):
        raise ValueError("a share is a number from 0 to 100 percent")
    left = 100 - fsum(given)
    rest = [weight for weight, each in zip(weights, percents, strict=True) if each is None]
    if round(left, 6) < 0 or (not rest and round(left, 6)):
        raise ValueError(f"the shares add up to {fsum(given):g} percent")
    total = fsum(rest)
    return tuple(
        each
        if each is not None
        else max(left, 0.0) * (weight / total if total else 1.0 / len(rest))
        for weight, each in zip(weights, percents, strict=True)
    )
