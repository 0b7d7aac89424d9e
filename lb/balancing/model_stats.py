"""What is learnt of a model, over all its model backends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from lb.balancing.cost import MIN_SAMPLES, Cost
from lb.balancing.tuning import TUNING

TAIL: Final = TUNING.tail_ratio
_UNKNOWN_S: Final = TUNING.unknown_s
IDLE_TIE_TOLERANCE: Final = TUNING.idle_tie_tolerance
_TAIL_PART: Final = TUNING.tail_weight
_TAIL_OFFS: Final = TUNING.tail_deviations
_TAIL_KNOWN: Final = TUNING.tail_samples
_TAIL_FOR_S: Final = TUNING.tail_for_s


class Costed(Protocol):
    """A model backend, as far as `ModelStats` knows it."""

    @property
    def cost(self) -> Cost:
        """What an execution takes there."""
        ...


class ModelStats:
    """What is learnt of one version of a model, over all its model backends."""

    __slots__ = (
        "_arrived_at",
        "_known",
        "_mean_s",
        "_off_s",
        "_side_by_side",
        "answered_at",
        "arrival_s",
        "arrivals",
        "best",
        "best_s",
        "tail_s",
        "usual",
        "version",
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
        self.answered_at = 0.0
        """When a model backend has answered a request last."""
        self._side_by_side = 1
        """The most executions that run side by side on a model backend."""
        self.tail_s = 0.0
        """Seconds that few requests would exceed if all were dispatched in the order of arrival.
        0: not known, or requests are not executed one after the other."""
        self.arrivals = 0
        """Requests of this process that the tail was learnt from."""
        self.arrival_s = 0.0
        """Seconds that the last of them would have taken."""
        self._known = 0
        """Requests that the tail follows from, with those of other workers."""
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

    def on_arrival(self, takes_s: float, now: float) -> None:
        """Note a new request that would take so long if all went in order."""
        self.arrivals += 1
        self.arrival_s = takes_s
        self.learn_tail(takes_s, now)

    def learn_tail(self, takes_s: float, now: float) -> None:
        """Learn the tail from a request, of this process or of another worker."""
        if now - self._arrived_at > _TAIL_FOR_S:
            self._known = 0
            self.tail_s = 0.0
        self._arrived_at = now
        self._known += 1
        part = max(_TAIL_PART, 1.0 / self._known)
        off_s = takes_s - self._mean_s
        self._mean_s += part * off_s
        self._off_s += part * (abs(off_s) - self._off_s)
        if self._known >= _TAIL_KNOWN:
            self.tail_s = self._mean_s + _TAIL_OFFS * self._off_s


def _mean_s(model_backend: Costed) -> float:
    return model_backend.cost.mean_s
