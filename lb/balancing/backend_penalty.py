"""A BackendPenalty: a backend, with what all model queues have there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lb.domain.backend import Backend
from lb.domain.load import Measured

_MAX_FACTOR: Final = 8.0
"""So much keeps nearly all requests off where others can do them. More made backends that all fail
half of the requests wait for each other."""
_HALF_LIFE_S: Final = 2.0
_NEGLIGIBLE: Final = 1.1
_LEFT_AFTER_SUCCESS: Final = 0.5
"""What a good answer leaves of a penalty: it lasts where more than half of the requests fail."""


class BackendPenalty:
    """A backend, with what all model queues have there."""

    __slots__ = ("_factor_at", "backend", "due", "factor", "measured")

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.due = 0
        """Tickets that are to begin here and that nobody was told of: `in_flight` lacks them."""
        self.measured: Mapping[tuple[bytes, bytes], Measured] = {}
        """What it says that executions take, by model and version."""
        self.factor = 1.0
        """By how much it counts as slower because requests failed there."""
        self._factor_at = 0.0

    def measured_of(self, model: bytes, version: bytes) -> Measured | None:
        """What executions of a version take; without one it is the newest that has run."""
        if version:
            return self.measured.get((model, version))
        found = [each for each in self.measured if each[0] == model]
        return self.measured[max(found, key=_newness)] if found else None

    def on_failure(self, now: float) -> None:
        """A request failed in a way that speaks against the backend."""
        self.factor = min(1.5 * self.factor_now(now), _MAX_FACTOR)
        self._factor_at = now

    def on_success(self, now: float) -> None:
        """A request went well: what failed before counts less, so that a backend is not avoided for
        long because of the requests of some client."""
        left = _LEFT_AFTER_SUCCESS * self.factor_now(now)
        self.factor = left if left >= _NEGLIGIBLE else 1.0
        self._factor_at = now

    def factor_now(self, now: float) -> float:
        """What is left of the penalty."""
        if self.factor == 1.0:
            return 1.0
        left: float = self.factor * 0.5 ** ((now - self._factor_at) / _HALF_LIFE_S)
        if left < _NEGLIGIBLE:
            self.factor = left = 1.0
        return left


def _newness(version: tuple[bytes, bytes]) -> tuple[int, bytes]:
    """Versions are numbers without leading zeros."""
    return len(version[1]), version[1]
