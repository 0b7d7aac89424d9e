"""Attempts whose answers do not begin in time go elsewhere, where the operator wants that.

Nothing is set per request, so it costs nothing where it is off: all attempts under way are looked
at now and then. One that may not go elsewhere goes on; the time for the whole request is another
matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from lb.domain.operation import OperationKind
from lb.net.timers import Timer, TimerWheel
from lb.proxy.exchange import Attempt, Exchange
from lb.proxy.sent import SentTimes

_LOOKS: Final = 10
"""Within the shortest time: an attempt is given up at most a tenth of that late."""
_LEAST_S: Final = 0.02
"""Between two looks."""
_TIMED: Final = frozenset({OperationKind.INFERENCE, OperationKind.READ})
"""A stream is answered when it is, and what changes servers may take long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTimes:
    """How long an answer may take to begin, from the end of its request. Seconds; 0 is no limit."""

    common: float = 0.0
    models: Mapping[bytes, float] = field(default_factory=dict)
    """Where it is another one, by the name of the model."""

    def of(self, model: bytes) -> float:
        """Of one model."""
        return self.models.get(model, self.common)

    @property
    def shortest(self) -> float:
        """Of all; 0 where there is no limit at all."""
        return min((each for each in (self.common, *self.models.values()) if each), default=0.0)


class Patience:
    """Looks after the attempts of both relays."""

    def __init__(
        self,
        timers: TimerWheel,
        clock: Callable[[], float],
        under_way: Callable[[], Iterable[Exchange]],
    ) -> None:
        """
        Args:
            timers: to look now and then.
            clock: monotonic seconds.
            under_way: gives the attempts that have not ended.
        """
        self._timers = timers
        self._clock = clock
        self._under_way = under_way
        self._timer: Timer | None = None
        self._sent = SentTimes()
        self._asked: set[Attempt] = set()
        """Attempts under way that were late, and were asked once to end."""
        self.times = AttemptTimes()

    def use(self, times: AttemptTimes) -> None:
        """Go by these from now on."""
        self.times = times
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._arm()

    def _arm(self) -> None:
        shortest = self.times.shortest
        if shortest:
            self._timer = self._timers.after(max(shortest / _LOOKS, _LEAST_S), self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._clock()
        times = self.times
        self._sent.begin_look()
        asked, self._asked = self._asked, set()
        for exchange in tuple(self._under_way()):
            limit_s = times.of(exchange.model)
            if not limit_s or exchange.operation.kind not in _TIMED:
                continue
            attempt = exchange.attempt
            if attempt is None or attempt.outcome is not None:
                continue  # the end of another one took it along
            since = self._sent.since(exchange, attempt, now)
            if since is None:
                continue
            if attempt in asked:
                self._asked.add(attempt)
            elif now - since >= limit_s:
                self._asked.add(attempt)
                exchange.attempt_late()
        self._arm()
