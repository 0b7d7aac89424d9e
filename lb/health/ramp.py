"""Slow start: a backend that joins or comes back gets its share of the load little by little.

The share is relative to the one that has most of its own: when all begin together, each has all of
it at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lb.domain.backend import Backend
from lb.settings.model import Settings

MIN_SHARE: Final = 0.1
"""Part of its share with which a backend begins: enough to notice that it is slow or fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RampRules:
    """How fast a share grows."""

    window_s: float = 10.0
    """Until it is whole; 0: at once."""

    def share(self, age_s: float) -> float:
        """What part of its share a backend has so long after it began."""
        if age_s >= self.window_s:
            return 1.0
        return max(MIN_SHARE, age_s / self.window_s)


NO_RAMP = RampRules(window_s=0.0)


def ramp_rules(settings: Settings) -> RampRules:
    """Read from settings how a backend that joins or comes back gets its share."""
    return RampRules(window_s=settings.slow_start.window)


class Ramps:
    """Those that have begun of late. Sets `Backend.share`. Times are monotonic seconds."""

    def __init__(self, rules: RampRules) -> None:
        self.rules = rules
        self._began: dict[Backend, float] = {}

    def configure(self, rules: RampRules) -> None:
        """Go by other rules from now on."""
        self.rules = rules

    def begin(self, backend: Backend, now: float) -> None:
        """A backend begins to serve; nothing new where it began a moment ago."""
        if self.rules.window_s > 0.0:
            self._began.setdefault(backend, now)

    def end(self, backend: Backend) -> None:
        """It does not serve any more."""
        if self._began.pop(backend, None) is not None:
            backend.set_share(1.0)

    def advance(self, serving: Iterable[Backend], now: float) -> bool:
        """Set the shares of all that have begun of late. Returns whether some have ended.

        Args:
            serving: all that get requests.
            now: the time.
        """
        if not self._began:
            return False
        rules = self.rules
        shares = {each: rules.share(now - began) for each, began in self._began.items()}
        most = max((shares.get(each, 1.0) for each in serving), default=1.0)
        ended = [each for each, share in shares.items() if share >= 1.0]
        for backend, share in shares.items():
            backend.set_share(min(share / most, 1.0))
        for backend in ended:
            del self._began[backend]
        return bool(ended)
