"""How many copies of a model its load needs: learnt from how busy the copies are.

Times are monotonic seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

Model = bytes
"""The name of a model as it stands on the wire."""

MEAN_S: Final = 30.0
"""Time constant of the mean work: a burst of seconds loads nothing, since a load takes as long."""
UP: Final = 0.7
"""Part of what its copies can do beyond which a model gets another copy."""
DOWN: Final = 0.3
"""Part below which a copy is too many. With one copy less than two, the work is below 0.6 of what
is left, so that the copy does not come back at once."""
HOLD_S: Final = 60.0
"""How long the work must be below `DOWN` before copies count as too many. They stay until a place
is short, and then a model that is loaded once should not have to go instead."""
_FORGOTTEN: Final = 0.001
"""Mean work below which nothing is kept of a model."""


class Sample(NamedTuple):
    """A model at one moment."""

    running: int
    """Requests that its copies run."""
    limit: float
    """Requests that one copy may run at a time, on average; 0: not known."""
    copies: int
    """Backends that have it ready."""


@dataclass(slots=True)
class _Work:
    """What was seen of a model."""

    at: float
    running: float = 0.0
    """Mean of the requests that run: their rate times the time that each takes (Little's law)."""
    limit: float = 0.0
    needed_at: float = -math.inf
    """When its work last was more than `DOWN` of what its copies can do."""


@dataclass(slots=True)
class CopyDemand:
    """Follows the work of models."""

    _work: dict[Model, _Work] = field(default_factory=dict)

    @property
    def followed(self) -> frozenset[Model]:
        """Models that have had work lately, to be sampled even without new requests."""
        return frozenset(self._work)

    def observe(self, samples: Mapping[Model, Sample], now: float) -> None:
        """Take notice of how models are used now; the others are taken to be idle."""
        for model, sample in samples.items():
            if sample.running and sample.limit > 0.0:
                self._work.setdefault(model, _Work(now))
        for model, work in list(self._work.items()):
            sample = samples.get(model, Sample(0, 0.0, 0))
            keep = math.exp((work.at - now) / MEAN_S)
            work.running += (sample.running - work.running) * (1.0 - keep)
            work.at = now
            work.limit = sample.limit or work.limit
            if work.running > DOWN * work.limit * sample.copies > 0.0:
                work.needed_at = now
            is_idle = not sample.running and work.running < _FORGOTTEN
            if is_idle and now - work.needed_at > HOLD_S:
                del self._work[model]

    def load(self, model: Model, copies: int) -> float:
        """What part of the time so many copies of a model are busy."""
        work = self._work.get(model)
        return work.running / (work.limit * copies) if work is not None and copies else 0.0

    def lacking(self, ready: Mapping[Model, int]) -> list[Model]:
        """Models that need another copy, the busiest first.

        Args:
            ready: copies of each model.
        """
        loads = {model: self.load(model, ready.get(model, 0)) for model in self._work}
        return sorted(
            (model for model, load in loads.items() if load > UP), key=lambda each: -loads[each]
        )

    def is_surplus(self, model: Model, now: float) -> bool:
        """Whether a model with several copies has had too many for `HOLD_S`."""
        work = self._work.get(model)
        return work is None or now - work.needed_at > HOLD_S
