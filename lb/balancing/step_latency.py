"""How long a step of a model takes on each backend, learnt from answers to steps of sequences."""

from __future__ import annotations

from typing import Final

from lb.balancing.tuning import TUNING
from lb.domain.backend import Backend

_DRIFT_PER_S: Final = TUNING.step_drift_per_s
_FORGET_S: Final = TUNING.step_forget_s
_MIN_STEPS: Final = TUNING.step_samples
_FLOOR_S: Final = 1e-3
"""No step counts as quicker: below that a difference is one of networks and event loops."""


class StepLatency:
    """Seconds of a quick step of one model at one backend, which hardly waited for others."""

    __slots__ = ("count", "quick_s", "stepped_at")

    def __init__(self) -> None:
        self.count = 0
        """Steps learnt from."""
        self.quick_s = 0.0
        """0 until the first step."""
        self.stepped_at = 0.0
        """When a step was answered last, in monotonic seconds."""

    def ended(self, began_at: float, now: float) -> None:
        """Learn from a step that was sent at a time and answered well now."""
        took_s = max(_FLOOR_S, now - began_at)
        if self.quick_s:
            took_s = min(took_s, self.quick_s * (1.0 + (now - self.stepped_at) * _DRIFT_PER_S))
        self.quick_s = took_s
        self.stepped_at = now
        self.count += 1


class StepLatencies:
    """The step latencies of one model by backend."""

    __slots__ = ("_by_backend",)

    def __init__(self) -> None:
        self._by_backend: dict[Backend, StepLatency] = {}

    def of(self, backend: Backend) -> StepLatency:
        """The latency at one backend, for the steps to come."""
        latency = self._by_backend.get(backend)
        if latency is None:
            latency = self._by_backend[backend] = StepLatency()
        return latency

    def known(self) -> dict[Backend, float]:
        """Seconds of a quick step by backend, without backends that are unknown, or to be tried
        again."""
        latencies = self._by_backend.items()
        newest = max([each.stepped_at for _, each in latencies], default=0.0)
        return {
            backend: each.quick_s / backend.share
            for backend, each in latencies
            if each.count >= _MIN_STEPS and newest - each.stepped_at <= _FORGET_S
        }

    def keep_only(self, backends: frozenset[Backend]) -> None:
        """Forget backends that have gone."""
        for backend in self._by_backend.keys() - backends:
            del self._by_backend[backend]
