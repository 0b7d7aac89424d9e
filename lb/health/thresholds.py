"""How many probes decide, and how often they are sent."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

REPROBE_S: Final = 0.1
"""Time between probes while it is unclear whether a port changes sides."""
JITTER: Final = 0.1
"""The interval varies by this share of itself, so that many balancers do not fall into step."""
_SUSPECT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The health settings of one backend; times in seconds."""

    interval_s: float = 1.0
    timeout_s: float = 2.0
    rise: int = 2
    """Good probes in a row that bring a port back."""
    fall: int = 3
    """Missed probes in a row that take a port out."""

    @property
    def suspect_after_s(self) -> float:
        """How long a port may owe an answer and be silent before others are preferred."""
        return min(_SUSPECT_S, self.timeout_s / 2)

    def jittered_interval_s(self, rng: Random) -> float:
        """One interval, give or take a tenth."""
        return self.interval_s * (1 + JITTER * (2 * rng.random() - 1))
