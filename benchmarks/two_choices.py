"""Two random choices, as Envoy's LEAST_REQUEST places requests: a peer for simulations."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from lb.domain.backend import Backend


class TwoChoices:
    """The policy (M. Mitzenmacher, "The power of two choices in randomized load balancing", 2001).
    Limits of backends are not observed."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def build(self, backends: Sequence[Backend]) -> TwoChoicesPicker:
        """Make a picker over a non-empty set."""
        return TwoChoicesPicker(backends, self._rng)


class TwoChoicesPicker:
    """Draws two different backends and takes the less loaded one."""

    def __init__(self, backends: Sequence[Backend], rng: Random) -> None:
        self._backends = backends
        self._rng = rng

    def pick(self) -> Backend:
        """Return one of the backends."""
        drawn = self._rng.sample(self._backends, min(2, len(self._backends)))
        return min(drawn, key=lambda each: (each.in_flight + 1) * each.inverse_weight)
