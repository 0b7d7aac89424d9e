"""Attempts whose answers do not begin in time go elsewhere, where the operator wants that.

Nothing is set per request, so it costs nothing where it is off. An attempt that may not go
elsewhere goes on; the time for the whole request is another matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from lb.domain.operation import OperationKind
from lb.proxy.exchange import Exchange
from lb.settings.model import Settings

_SCANS: Final = 10
"""Within the shortest time: an attempt is given up at most a tenth of that late."""
_LEAST_S: Final = 0.02
"""Between two scans."""
_TIMED: Final = frozenset({OperationKind.INFERENCE, OperationKind.READ})
"""A stream is answered when it is, and what changes servers may take long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTimes:
    """How long an answer may take to begin, from the end of its request. Seconds; 0 is no limit."""

    common: float = 0.0
    models: Mapping[bytes, float] = field(default_factory=dict)
    """Where it is another one, by the name of the model."""

    def of(self, model: bytes) -> float:
        """Return the time-out of one model."""
        return self.models.get(model, self.common)

    @property
    def shortest(self) -> float:
        """Return the shortest time-out of all; 0 where there is no limit at all."""
        return min((each for each in (self.common, *self.models.values()) if each), default=0.0)


def attempt_times(settings: Settings) -> AttemptTimes:
    """Read from settings how long answers may take to begin."""
    own = {name.encode(): each.attempt_timeout for name, each in settings.models.items()}
    return AttemptTimes(
        common=settings.timeouts.attempt,
        models={name: seconds for name, seconds in own.items() if seconds is not None},
    )


class AttemptTimeout:
    """Finds the attempts that are late. A check of `AttemptScan`."""

    may_rest: Final = True
    """Nobody waits for the attempts of requests that are over."""

    def __init__(self, times: AttemptTimes | None = None) -> None:
        self.times = times or AttemptTimes()
        """The times in force."""

    def configure(self, times: AttemptTimes) -> None:
        """Go by other times from now on. The monitor is to be woken."""
        self.times = times

    def interval_s(self, _now: float) -> float:
        """See `AttemptCheck`."""
        shortest = self.times.shortest
        return max(shortest / _SCANS, _LEAST_S) if shortest else inf

    def begin(self, _now: float) -> None:
        """See `AttemptCheck`."""

    def check(self, exchange: Exchange, since: float, now: float) -> bool:
        """See `AttemptCheck`. An attempt that is late is asked once to end."""
        limit_s = self.times.of(exchange.model)
        if not limit_s or exchange.operation.kind not in _TIMED or now - since < limit_s:
            return False
        exchange.attempt_late()
        return True
