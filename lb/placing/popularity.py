"""How much models are used: what decides which one makes room.

Use is counted with a decay. How long the past should count depends on the traffic: long while the
popularity of models stays as it is, short after it has changed. So there are two half-lives.
Each keeps a list of the models that would be loaded if it alone decided, and counts what its misses
would have cost lately. The one with the lower cost is believed (Gramacy, Warmuth, Brandt and Ari,
"Adaptive Caching by Refetching", NIPS 2002).

Time is counted in uses for each loaded model, not in seconds: traffic may be slow or fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from lb.placing.copies import Model

HALF_LIVES: Final = (4.0, 100.0)
"""Uses for each loaded model after which a use counts half. The short one follows a change, the
long one tells apart models that are used nearly as much (`benchmarks.eviction`)."""
REMEMBERED: Final = 60.0
"""Uses for each loaded model after which the cost of a miss counts 1 / e. Long enough for some
misses of each half-life, which come with every sixth use or so."""


@dataclass(slots=True)
class _Estimate:
    """Use by one half-life."""

    half_life: float
    uses: dict[Model, tuple[float, float]] = field(default_factory=dict)
    """Use of each model, and the age at which it was computed."""
    loaded: set[Model] = field(default_factory=set)
    """Models that would be loaded if this estimate decided."""
    cost: float = 0.0
    """Seconds of its loads, old ones less."""

    def value(self, model: Model, age: float) -> float:
        uses, at = self.uses.get(model, (0.0, age))
        return uses * math.exp2((at - age) / self.half_life)


class Popularity:
    """Counts uses of models."""

    def __init__(self) -> None:
        self._age = 0.0
        """Uses so far, each divided by the models that were loaded then."""
        self._places = 1.0
        """The most models that were loaded lately: fewer are ready while some are replaced."""
        self._estimates = [_Estimate(half_life) for half_life in HALF_LIVES]

    def used(self, models: Iterable[Model], loaded: int, load_s: Callable[[Model], float]) -> None:
        """Count a use of each model.

        Args:
            models: their names.
            loaded: how many models are loaded.
            load_s: says how many seconds loading takes.
        """
        for model in models:
            keep = math.exp(-1.0 / (REMEMBERED * self._places))
            places = self._places = max(float(loaded), self._places * keep, 1.0)
            self._age += 1.0 / places
            age = self._age
            for each in self._estimates:
                each.uses[model] = each.value(model, age) + 1.0, age
                each.cost *= keep
                if model in each.loaded:
                    continue
                each.cost += load_s(model)
                while len(each.loaded) >= math.ceil(places):
                    worth = {one: each.value(one, age) * load_s(one) for one in each.loaded}
                    each.loaded.remove(min(worth, key=lambda one: (worth[one], one)))
                each.loaded.add(model)

    def of(self, model: Model) -> float:
        """Say how much a model is used."""
        best = min(self._estimates, key=lambda each: each.cost)
        return best.value(model, self._age)

    def retain(self, known: Collection[Model]) -> None:
        """Forget all other models."""
        for each in self._estimates:
            each.loaded.intersection_update(known)
            each.uses = {model: uses for model, uses in each.uses.items() if model in known}
