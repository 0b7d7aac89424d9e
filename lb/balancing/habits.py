"""What sequences of one model are like: how often they step, and what a step costs at each backend.

An open sequence is work that is still to come. How much is its rate of steps, as observed, times
the learnt cost of a step: the part of a backend's time that is spoken for. The rate of a sequence
is an average that fades, so that one that has gone quiet counts less and less; a new one begins
with what is usual for its model.
"""

from __future__ import annotations

from math import exp
from typing import Final

from lb.domain.backend import Backend

FADE_S: Final = 10.0
"""A sequence that has gone quiet counts a third of what it did after so many seconds."""
STEP_RATE: Final = 1.0 / FADE_S
"""By how much one step raises the rate of its sequence, in steps per second."""
UNKNOWN_S: Final = 0.01
"""What a step is taken to cost while that is known of no backend."""
_WINDOW: Final = 64
"""Steps that a cost is the mean of, about."""
_KNOWN: Final = 4
"""Steps from which on a cost is one."""
_CLIP: Final = 4.0
"""How many times what is usual from its sending to its answer a step counts at most."""
_CLIP_S: Final = 0.001
_FIRST: Final = 0.1
"""Weight of the assumption that a sequence has one step per second."""
_KEEP: Final = 1.0 - 1.0 / 256.0
_MAX_PAUSE_S: Final = 60.0
"""Longer pauses are the end of a sequence that was not said."""
_ALIKE: Final = 1.3
"""Backends whose costs differ by less are alike."""
_RENEW_S: Final = 0.5


def faded(value: float, for_s: float) -> float:
    """What is left of a rate after so many seconds, at least 0, without a step."""
    return value * exp(-for_s / FADE_S)


class StepCost:
    """What a step of one model costs at one backend: how long the backend is busy with it.

    Steps that run side by side, or in one batch, share the time that passes between their ends.
    """

    __slots__ = ("_deviation_s", "_ended_at", "_whole_s", "count", "mean_s", "unsure_s")

    def __init__(self) -> None:
        self.count = 0
        """Steps learnt from."""
        self.mean_s = 0.0
        self.unsure_s = 0.0
        """By how much the mean may be off: about two standard errors."""
        self._deviation_s = 0.0
        self._ended_at = 0.0
        self._whole_s = 0.0
        """From sending a step to its answer, on average."""

    @property
    def is_known(self) -> bool:
        """Whether there were enough steps to tell."""
        return self.count >= _KNOWN

    def ended(self, began_at: float, now: float) -> None:
        """A step that was sent at a time was answered well."""
        whole_s = now - began_at
        took_s = max(0.0, now - max(began_at, self._ended_at))
        self._ended_at = now
        self.count = count = self.count + 1
        if count == 1 or (count == 2 and whole_s < self._whole_s):
            # The first execution often takes very long.
            self._whole_s = whole_s
            self.mean_s = self.unsure_s = self._deviation_s = took_s
            return
        weight = min(count, _WINDOW)
        most_s = _CLIP * self._whole_s + _CLIP_S
        self._whole_s += (min(whole_s, most_s) - self._whole_s) / weight
        off_s = min(took_s, most_s) - self.mean_s
        self.mean_s += off_s / weight
        self._deviation_s += (abs(off_s) - self._deviation_s) / weight
        # A standard deviation is 1.25 mean ones, and recent samples weigh more than old ones.
        self.unsure_s = 2.5 * self._deviation_s / (2 * weight - 1) ** 0.5


class Habit:
    """What is known of the sequences of one model, be any open or not."""

    __slots__ = ("_renewed_at", "_steps", "_time_s", "_units", "_usual_s", "costs")

    def __init__(self) -> None:
        self._steps = _FIRST
        self._time_s = _FIRST
        self.costs: dict[Backend, StepCost] = {}
        self._units: dict[Backend, float] = {}
        """Costs of those that are known, where those that are alike have the same."""
        self._usual_s = UNKNOWN_S
        """What a step is taken to cost at an unknown backend of weight 1: as at the best one."""
        self._renewed_at = -_RENEW_S

    @property
    def rate(self) -> float:
        """Steps per second of a sequence between its first step and its last one."""
        return self._steps / self._time_s

    def note(self, pause_s: float, *, is_step: bool) -> None:
        """A sequence was used again after a pause: a step of it begins, or is over."""
        self._time_s += min(pause_s, _MAX_PAUSE_S)
        if is_step:
            self._steps = _KEEP * self._steps + 1.0
            self._time_s *= _KEEP

    def cost(self, backend: Backend) -> StepCost:
        """The cost at a backend, to be taught."""
        cost = self.costs.get(backend)
        if cost is None:
            cost = self.costs[backend] = StepCost()
        return cost

    def step_s(self, backend: Backend) -> float:
        """Seconds of a backend that a step takes, as far as is known."""
        cost = self.costs.get(backend)
        if cost is not None and cost.is_known:
            return cost.mean_s
        return self._usual_s * backend.inverse_weight

    def unit_s(self, backend: Backend, now: float) -> float:
        """The same, to compare backends by: a bit behind, and equal where they are alike."""
        if not 0.0 <= now - self._renewed_at < _RENEW_S:
            self._renewed_at = now
            self._renew()
        unit = self._units.get(backend)
        if unit is None:
            return self._usual_s * backend.inverse_weight
        return unit / backend.share

    def keep_only(self, backends: frozenset[Backend]) -> None:
        """Forget backends that have gone."""
        for backend in self.costs.keys() - backends:
            del self.costs[backend]
            self._units.pop(backend, None)

    def _renew(self) -> None:
        known = sorted(
            ((cost.mean_s, cost.unsure_s, each) for each, cost in self.costs.items()
             if cost.is_known),
            key=lambda entry: entry[0],
        )  # fmt: skip
        self._units = units = {}
        at = 0
        while at < len(known):
            least_s, unsure_s, _ = known[at]
            end = at + 1
            while end < len(known) and (
                known[end][0] <= _ALIKE * least_s
                or known[end][0] - known[end][1] <= least_s + unsure_s
            ):
                end += 1
            mean_s = sum([each[0] for each in known[at:end]]) / (end - at)
            for _, _, backend in known[at:end]:
                units[backend] = mean_s
            at = end
        self._usual_s = min(
            [unit * backend.spec.weight for backend, unit in units.items()], default=UNKNOWN_S
        )
