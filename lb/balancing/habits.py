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
_KNOWN: Final = 16
"""Steps from which on a cost is one."""
_CLIP: Final = 4.0
"""How many times what is usual from its sending to its answer a step counts at most."""
_CLIP_S: Final = 0.001
_FIRST: Final = 0.1
"""Weight of the assumption that a sequence has one step per second."""
_KEEP: Final = 1.0 - 1.0 / 256.0
_MAX_PAUSE_S: Final = 60.0
"""Longer pauses are the end of a sequence that was not said."""
_ALIKE: Final = 1.5
"""Backends whose quickest steps differ by less are alike."""
_DRIFT_S: Final = 60.0
"""A backend may have become twice as slow when there was no quick step for so long."""
_DRIFT_AT_ONCE_S: Final = 5.0
_DOUBT_S: Final = 30.0
"""What was learnt of a backend holds half as much when only others were heard of for so long."""
_LEAST_S: Final = 1e-5
_RENEW_S: Final = 0.5


def faded(value: float, for_s: float) -> float:
    """What is left of a rate after so many seconds, at least 0, without a step."""
    return value * exp(-for_s / FADE_S)


class StepCost:
    """What a step of one model costs at one backend.

    Steps that run side by side, or in one batch, share the time that passes between their ends: so
    long the backend is busy with each. How fast it is shows in the quickest ones, whatever else it
    has to do.
    """

    __slots__ = ("_whole_s", "count", "ended_at", "mean_s", "quick_s")

    def __init__(self) -> None:
        self.count = 0
        """Steps learnt from."""
        self.mean_s = 0.0
        """How long the backend is busy with a step."""
        self.quick_s = 0.0
        """From sending a step to its answer, when all goes well."""
        self._whole_s = 0.0
        """The same on average."""
        self.ended_at = 0.0
        """When a step was answered last."""

    @property
    def is_known(self) -> bool:
        """Whether there were enough steps to tell."""
        return self.count >= _KNOWN

    def ended(self, began_at: float, now: float) -> None:
        """A step that was sent at a time was answered well."""
        whole_s = max(_LEAST_S, now - began_at)
        took_s = max(0.0, now - max(began_at, self.ended_at))
        drift_s = min(max(0.0, now - self.ended_at), _DRIFT_AT_ONCE_S)
        self.ended_at = now
        self.count = count = self.count + 1
        if count == 1:
            self.quick_s = self._whole_s = whole_s
            self.mean_s = took_s
            return
        drifted: float = self.quick_s * 2.0 ** (drift_s / _DRIFT_S)
        self.quick_s = min(whole_s, drifted)
        if count == 2 and whole_s < self._whole_s:
            # The first execution often takes very long.
            self._whole_s = whole_s
            self.mean_s = took_s
            return
        weight = min(count, _WINDOW)
        most_s = _CLIP * self._whole_s + _CLIP_S
        self._whole_s += (min(whole_s, most_s) - self._whole_s) / weight
        self.mean_s += (min(took_s, most_s) - self.mean_s) / weight


class Habit:
    """What is known of the sequences of one model, be any open or not."""

    __slots__ = (
        "_renewed_at",
        "_steps",
        "_time_s",
        "_units",
        "_usual_s",
        "costs",
        "open_rate",
        "open_rate_at",
    )

    def __init__(self) -> None:
        self._steps = _FIRST
        self._time_s = _FIRST
        self.costs: dict[Backend, StepCost] = {}
        self._units: dict[Backend, float] = {}
        """How quick those are that are known, where those that are alike have the same."""
        self._usual_s = UNKNOWN_S
        """What a step is taken to cost at an unknown backend of weight 1: as at the best one."""
        self._renewed_at = -_RENEW_S
        self.open_rate = 0.0
        """Steps per second of one of those that are open, when they were last looked at."""
        self.open_rate_at = 0.0

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
        """Seconds that a quick step takes, to compare backends by: equal where they are alike."""
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
        known = {each: cost for each, cost in self.costs.items() if cost.is_known}
        best_s = min([cost.quick_s for cost in known.values()], default=0.0)
        heard_at = max([cost.ended_at for cost in known.values()], default=0.0)
        quick = sorted(
            [(_doubted(cost, best_s, heard_at), each) for each, cost in known.items()],
            key=lambda entry: entry[0],
        )
        self._units = units = {}
        at = 0
        while at < len(quick):
            end = at + 1
            while end < len(quick) and quick[end][0] <= _ALIKE * quick[at][0]:
                end += 1
            alike = quick[at:end]
            mean_s = sum([each[0] for each in alike]) / len(alike)
            for _, backend in alike:
                units[backend] = mean_s
            at = end
        self._usual_s = min(
            [unit * backend.spec.weight for backend, unit in units.items()], default=UNKNOWN_S
        )


def _doubted(cost: StepCost, best_s: float, heard_at: float) -> float:
    """How quick a backend is that was not heard of while others were: perhaps as the best one."""
    sure: float = 0.5 ** ((heard_at - cost.ended_at) / _DOUBT_S)
    return best_s + (cost.quick_s - best_s) * sure
