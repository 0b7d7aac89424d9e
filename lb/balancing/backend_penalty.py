"""What is known of a backend for all models: failures, limits, and what it has measured itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lb.balancing.tuning import TUNING
from lb.domain.backend import Backend
from lb.domain.load import Measured

_PER_FAILURE: Final = TUNING.penalty_per_failure
_MAX_FACTOR: Final = TUNING.max_penalty
_HALF_LIFE_S: Final = TUNING.penalty_half_life_s
_NEGLIGIBLE: Final = TUNING.negligible_penalty
_LEFT_AFTER_SUCCESS: Final = TUNING.penalty_after_success


class BackendPenalty:
    """A backend, and by how much it counts as slower because requests failed there."""

    __slots__ = ("_factor_at", "backend", "factor", "measured", "uncounted")

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.uncounted = 0
        """Requests that count toward the backend's limit beside `Backend.in_flight`: tickets that
        are to begin here, which the caller does not count yet, and requests of other workers."""
        self.measured: Mapping[tuple[bytes, bytes], Measured] = {}
        """How long executions take as it has measured them, by model and version."""
        self.factor = 1.0
        """By how much it counts as slower because requests failed there."""
        self._factor_at = 0.0

    def measured_of(self, model: bytes, version: bytes) -> Measured | None:
        """Find how long executions of a version take. Without a version: of the newest that ran."""
        if version:
            return self.measured.get((model, version))
        found = [each for each in self.measured if each[0] == model]
        return self.measured[max(found, key=_newness)] if found else None

    def on_failure(self, now: float) -> None:
        """Note a request that failed in a way that speaks against the backend."""
        self.factor = min(_PER_FAILURE * self.factor_now(now), _MAX_FACTOR)
        self._factor_at = now

    def on_success(self, now: float) -> None:
        """Note a good answer. Earlier failures count less, so that a backend is not avoided for
        long because of the requests of some client."""
        left = _LEFT_AFTER_SUCCESS * self.factor_now(now)
        self.factor = left if left >= _NEGLIGIBLE else 1.0
        self._factor_at = now

    def factor_now(self, now: float) -> float:
        """Find what is left of the penalty."""
        if self.factor == 1.0:
            return 1.0
        left: float = self.factor * 0.5 ** ((now - self._factor_at) / _HALF_LIFE_S)
        if left < _NEGLIGIBLE:
            self.factor = left = 1.0
        return left


def _newness(version: tuple[bytes, bytes]) -> tuple[int, bytes]:
    """Sort versions, which are numbers without leading zeros."""
    return len(version[1]), version[1]
