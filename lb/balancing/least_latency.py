"""Least latency: the lowest peak latency times requests in flight (peak EWMA).

What a backend took is read from the counters that are kept of it anyway, when it is looked at. A
higher latency counts at once, a lower one little by little, as in Finagle's peak-sensitive moving
average; here it fades with picks instead of time, so that a backend which was slow once is tried
again. What it answered with errors, or not at all, counts as slow: who fails at once would look
best. Nothing is told of models here: where their cost differs, the scheduler does better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lb.balancing.score import PickSequence
from lb.balancing.tuning import TUNING
from lb.domain.backend import AppProtocol, Backend
from lb.domain.pool import Picker
from lb.domain.server_errors import is_backend_error

_SHARE: Final = TUNING.latency_weight
_HALF_LIFE: Final = TUNING.latency_half_life
_PENALTY: Final = TUNING.latency_failure_penalty
_FEW: Final = TUNING.latency_few_failures
_LEAST_S: Final = 1e-4
_SPARE: Final = 64
_PROTOCOLS: Final = tuple(AppProtocol)


class Everybody:
    """What is known of all backends together."""

    __slots__ = ("usual_s",)

    def __init__(self) -> None:
        self.usual_s = 0.0
        """What an attempt takes that does not fail."""


class Observed:
    """What is known of one backend."""

    __slots__ = ("_all", "_answered", "_bad", "_sum_s", "at", "bad_share", "peak_s")

    def __init__(self, everybody: Everybody) -> None:
        self._all = everybody
        self.peak_s = 0.0
        """0 until the first answer."""
        self.bad_share = 0.0
        """Part of the recent attempts that failed."""
        self.at = 0
        """Number of the pick at which something new was known."""
        self._answered = 0
        self._bad = 0
        self._sum_s = 0.0

    def refresh(self, backend: Backend, turn: int) -> None:
        """Read the counters of a backend, if they have changed."""
        sum_s = 0.0
        ended = 0
        for port in backend.ports:
            if port is not None:
                sum_s += port.latency.sum
                ended += port.attempts - port.in_flight
        if ended == self._answered:
            return
        count = max(1, ended - self._answered)
        mean_s = max(sum_s - self._sum_s, 0.0) / count
        self._answered = ended
        self._sum_s = sum_s
        self.at = turn
        peak_s = self.peak_s
        if mean_s > peak_s:
            self.peak_s = mean_s
        else:
            self.peak_s = peak_s + (mean_s - peak_s) * (1.0 - (1.0 - _SHARE) ** min(count, 100))
        bad = _bad(backend)
        failed = min(1.0, (bad - self._bad) / count)
        self._bad = bad
        self.bad_share += (failed - self.bad_share) * _SHARE
        if not failed:
            self._all.usual_s += (mean_s - self._all.usual_s) * _SHARE

    def latency_s(self, turn: int) -> float:
        """What a request is thought to take."""
        latency_s = self.peak_s
        if self.bad_share > _FEW:
            latency_s = max(latency_s, self._all.usual_s) * (1.0 + _PENALTY * self.bad_share)
        faded: float = 0.5 ** ((turn - self.at) / _HALF_LIFE)
        return max(latency_s * faded, _LEAST_S)


class LeastLatency:
    """The policy. One instance serves both protocols."""

    def __init__(self) -> None:
        self._turn = PickSequence()
        self._everybody = Everybody()
        self._observed: dict[Backend, Observed] = {}

    def build(self, backends: Sequence[Backend]) -> Picker:
        """Make a picker over a non-empty set."""
        self._turn.resume(backends)
        if len(self._observed) > 2 * len(backends) + _SPARE:
            self._observed = {
                backend: observed
                for backend, observed in self._observed.items()
                if backend.in_flight or backend in backends
            }
        for backend in backends:
            if backend not in self._observed:
                self._observed[backend] = Observed(self._everybody)
        pairs = tuple((backend, self._observed[backend]) for backend in backends)
        return LeastLatencyPicker(pairs, self._turn)


class LeastLatencyPicker:
    """Looks at every backend. O(n)."""

    __slots__ = ("_pairs", "_turn")

    def __init__(self, pairs: tuple[tuple[Backend, Observed], ...], turn: PickSequence) -> None:
        self._pairs = pairs
        self._turn = turn

    def pick(self) -> Backend | None:
        """Return the backend that will answer first; None when every one is full."""
        turn = self._turn
        number = turn.number + 1
        best: Backend | None = None
        best_score = (0.0, 0)
        for backend, observed in self._pairs:
            if not backend.has_room:
                continue
            observed.refresh(backend, number)
            load = (backend.in_flight + 1) * backend.inverse_weight
            score = (observed.latency_s(number) * load, backend.last_pick)
            if best is None or score < best_score:
                best = backend
                best_score = score
        if best is not None:
            turn.number = best.last_pick = number
        return best


def _bad(backend: Backend) -> int:
    """How many attempts at a backend have failed, or were answered with an error of it."""
    bad = 0
    for protocol, port in zip(_PROTOCOLS, backend.ports, strict=True):
        if port is None:
            continue
        bad += sum(port.failures.values())
        for code, count in port.codes.items():
            if is_backend_error(protocol, code):
                bad += count
    return bad
