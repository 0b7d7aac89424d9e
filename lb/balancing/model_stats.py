"""What is learnt of a model, over all its model backends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from lb.balancing.cost import MIN_SAMPLES, Cost

TAIL: Final = 1.3
"""A request that ends within this many times `ModelStats.tail_s` is no later than others."""
_UNKNOWN_S: Final = 0.01
"""Seconds that an execution is assumed to take while no model backend is known."""
IDLE_TIE_TOLERANCE: Final = 0.25
"""Idle model backends that differ by less than this part take turns. That costs at most this part
of an execution, and learnt costs differ by as much for no reason."""
_VARIED_PART: Final = 0.03
"""The weight of one execution in the average deviation from predictions."""
_PER_VARIED: Final = 1.5
"""The tolerance is at least this many times that deviation. Where costs vary by what cannot be seen
of a request, equal model backends seem to differ since they have had other requests."""
_MAX_TIE_TOLERANCE: Final = 0.8
"""The tolerance at most."""
_TAIL_PART: Final = 0.005
"""The weight of one request in the tail. Rare crowds make the tail, so several of them have to be
remembered."""
_TAIL_OFFS: Final = 3.0
"""The tail is this many mean deviations above the mean. The mean deviation of an exponential
distribution is 0.74 of its mean."""
_TAIL_KNOWN: Final = 16
"""The tail is known from this many arrivals on."""
_TAIL_FOR_S: Final = 1.0
"""The tail is forgotten when no request has arrived for this many seconds."""


class Costed(Protocol):
    """A model backend, as far as `ModelStats` knows it."""

    @property
    def cost(self) -> Cost:
        """What an execution takes there."""
        ...


class ModelStats:
    """What is learnt of one version of a model, over all its model backends."""

    __slots__ = (
        "_arrivals", "_arrived_at", "_executed", "_mean_s", "_off_s", "_side_by_side", "_varied",
        "best", "best_s", "idle_tie_tolerance", "tail_s", "usual", "version",
    )  # fmt: skip

    def __init__(self) -> None:
        self.version = 0
        """A number that changes whenever something is learnt that estimates depend on."""
        self.usual = Cost()
        """The typical cost of a request on any model backend; of a batch its part. The measure of
        queued work."""
        self.best_s = _UNKNOWN_S
        """Seconds that an execution takes on the fastest model backend. It is assumed of unknown
        ones, so that they are tried."""
        self.best: Costed | None = None
        """The fastest model backend."""
        self.idle_tie_tolerance = IDLE_TIE_TOLERANCE
        """Idle model backends that differ by no more than this part take turns."""
        self._side_by_side = 1
        """The most executions that run side by side on a model backend."""
        self._executed = 0
        self._varied = 0.0
        """The average deviation of executions from predictions, as a part of the larger of both."""
        self.tail_s = 0.0
        """Seconds that few requests would exceed if all were dispatched in the order of arrival.
        0: not known, or requests are not executed one after the other."""
        self._arrivals = 0
        self._arrived_at = 0.0
        self._mean_s = 0.0
        self._off_s = 0.0

    def run_in_parallel(self, instances: int) -> None:
        """Note how many executions a model backend runs side by side."""
        if instances > self._side_by_side:
            self._side_by_side = instances
            self.usual.run_in_parallel(instances)

    def lost(self, model_backends: Iterable[Costed]) -> None:
        """Find the fastest of the model backends that are left after others are gone."""
        known = [
            model_backend
            for model_backend in model_backends
            if model_backend.cost.count >= MIN_SAMPLES
        ]
        self.version += 1
        if self.best in known:
            return
        self.best = min(known, key=_mean_s, default=None)
        if self.best is not None:
            self.best_s = self.best.cost.mean_s

    def executed(self, took_s: float, expected_s: float) -> None:
        """Note how long an execution took, and how long it was expected to take."""
        off_s, larger_s = took_s - expected_s, took_s
        if off_s < 0.0:
            off_s, larger_s = -off_s, expected_s
        self._executed += 1
        part = max(_VARIED_PART, 1.0 / self._executed)
        self._varied += part * (off_s / larger_s - self._varied)
        self.idle_tie_tolerance = min(
            max(_PER_VARIED * self._varied, IDLE_TIE_TOLERANCE), _MAX_TIE_TOLERANCE
        )

    def on_arrival(self, takes_s: float, now: float) -> None:
        """Note a new request that would take so long if all went in order."""
        if now - self._arrived_at > _TAIL_FOR_S:
            self._arrivals = 0
            self.tail_s = 0.0
        self._arrived_at = now
        self._arrivals += 1
        part = max(_TAIL_PART, 1.0 / self._arrivals)
        off_s = takes_s - self._mean_s
        self._mean_s += part * off_s
        self._off_s += part * (abs(off_s) - self._off_s)
        if self._arrivals >= _TAIL_KNOWN:
            self.tail_s = self._mean_s + _TAIL_OFFS * self._off_s


def _mean_s(model_backend: Costed) -> float:
    return model_backend.cost.mean_s
