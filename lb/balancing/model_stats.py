"""A ModelStats: what the model backends of one model queue know together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from lb.balancing.cost import MIN_SAMPLES, Cost

TAIL: Final = 1.3
"""Up to so many times `ModelStats.tail_s` is no later than others."""
_UNKNOWN_S: Final = 0.01
"""What is assumed while nothing is known of any model backend."""
IDLE_TIE_TOLERANCE: Final = 0.25
"""Idle model backends that differ by less than that part take turns: it costs at most that part of
one execution, and what was learnt of them differs by as much for no reason."""
_VARIED_PART: Final = 0.03
_PER_VARIED: Final = 1.5
_MAX_TIE_TOLERANCE: Final = 0.8
"""Where costs vary by what cannot be seen, model backends that seem to differ by more, too: these
have had other requests."""
_TAIL_PART: Final = 0.005
"""Of what is known of the tail, what one request counts: it is made by rare times in which much
waits, so several of these have to be remembered."""
_TAIL_OFFS: Final = 3.0
"""Mean deviations. That of an exponential distribution is 0.74 of its mean."""
_TAIL_KNOWN: Final = 16
_TAIL_FOR_S: Final = 1.0
"""When nobody has come for so long, what waited then is gone, and says nothing of later."""


class Costed(Protocol):
    """A model backend, as far as a ModelStats knows it."""

    cost: Cost
    """What an execution takes there."""


class ModelStats:
    """What the model backends of one model queue know together."""

    __slots__ = (
        "_arrivals", "_arrived_at", "_executed", "_mean_s", "_off_s", "_side_by_side", "_varied",
        "best", "best_s", "idle_tie_tolerance", "in_flight", "tail_s", "usual",
    )  # fmt: skip

    def __init__(self) -> None:
        self.in_flight = 0
        """Tickets under way."""
        self.usual = Cost()
        """What a request costs wherever it runs, of an execution that it shares its part: the
        measure of work that waits."""
        self.best_s = _UNKNOWN_S
        """What an execution takes on the fastest model backend: assumed of those that are not
        known, so that they are tried."""
        self.best: Costed | None = None
        """The fastest model backend."""
        self.idle_tie_tolerance = IDLE_TIE_TOLERANCE
        """Idle model backends that differ by no more than that part are alike."""
        self._side_by_side = 1
        """Executions that run side by side in some model backend."""
        self._executed = 0
        self._varied = 0.0
        """How far executions are from what was expected of them, in parts of the larger one."""
        self.tail_s = 0.0
        """What few requests would exceed if all went in the order in which they come; 0 where
        that is not known, or where requests do not run one after the other."""
        self._arrivals = 0
        self._arrived_at = 0.0
        self._mean_s = 0.0
        self._off_s = 0.0

    def run_in_parallel(self, instances: int) -> None:
        """A model backend runs so many executions side by side."""
        if instances > self._side_by_side:
            self._side_by_side = instances
            self.usual.run_in_parallel(instances)

    def lost(self, model_backends: Iterable[Costed]) -> None:
        """Something is gone, or not known any more: these are left. Find the fastest of them."""
        known = [
            model_backend
            for model_backend in model_backends
            if model_backend.cost.count >= MIN_SAMPLES
        ]
        if self.best in known:
            return
        self.best = min(known, key=_mean_s, default=None)
        if self.best is not None:
            self.best_s = self.best.cost.mean_s

    def executed(self, took_s: float, expected_s: float) -> None:
        """An execution took so long, of which so much was expected in its model backend."""
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
        """A request came that would take so long if all went in order."""
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
