"""Attempts that are left on backends which are down because they are silent.

What may leave such a backend does so when that is found out. A stream may be left there, since the
backend may go on and answer it. It is checked again now and then: its client may half-close it
later, or its requests may go again once another backend is up or the budget of re-runs allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

_INTERVAL_S: Final = 1.0
"""Between two scans."""


class Stuck(Protocol):
    """An attempt at a backend that is down because it is silent."""

    def backend_hung(self) -> None:
        """End it, if that is allowed. It may be over by now."""
        ...


class SilentBackends:
    """Looks after attempts on silent backends. A check of the monitor."""

    may_rest: Final = True
    """Without an open request there is no attempt."""

    def __init__(self, stuck: Callable[[], Iterable[Stuck]]) -> None:
        """
        Args:
            stuck: gives the attempts under way on backends that are down because they are silent.
        """
        self._stuck = stuck

    def interval_s(self, _now: float) -> float:
        """See `Check`."""
        return _INTERVAL_S

    def begin(self, _now: float) -> tuple[Stuck, ...]:
        """See `Check`."""
        return tuple(self._stuck())

    def check(self, attempt: Stuck, _now: float) -> None:
        """See `Check`."""
        attempt.backend_hung()

    def end(self) -> None:
        """See `Check`."""
