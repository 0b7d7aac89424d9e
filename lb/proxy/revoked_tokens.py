"""Streams of inferences whose token is valid no more end. Other requests do not: they were allowed
when they came, and are soon over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from lb.access.gate import Gate

_INTERVAL_S: Final = 0.25
"""Between two looks at whether tokens have changed."""


class TokenHolder(Protocol):
    """A stream whose token is valid no more."""

    def lose_token(self) -> None:
        """End it. It may be over by now."""
        ...


class RevokedTokens:
    """Ends these streams. A check of the monitor."""

    may_rest: Final = True
    """Without an open request there is no stream."""

    def __init__(
        self, gate: Callable[[], Gate], holders: Callable[[], Iterable[TokenHolder]]
    ) -> None:
        """
        Args:
            gate: the one in force.
            holders: finds the streams, by the gate in force.
        """
        self._gate = gate
        self._holders = holders
        self._seen: tuple[Gate, int] | None = None
        """The gate, and the generation of its tokens, by which streams were last looked at."""

    def interval_s(self, _now: float) -> float:
        """See `Check`."""
        return _INTERVAL_S

    def begin(self, _now: float) -> tuple[TokenHolder, ...]:
        """See `Check`."""
        gate = self._gate()
        seen = gate, gate.generation
        if seen == self._seen:
            return ()
        self._seen = seen
        return tuple(self._holders())

    def check(self, holder: TokenHolder, _now: float) -> None:
        """See `Check`."""
        holder.lose_token()

    def end(self) -> None:
        """See `Check`."""
