"""When a request is sent to a second backend: rules, and how long answers usually take."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

_REMEMBERED: Final = 200
"""Answers of a model."""
_ENOUGH: Final = 20
"""Fewer say nothing of a quantile."""
_SORT_EVERY: Final = 10
_MAX_MODELS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgeRules:
    """When and how often. Times in seconds."""

    quantile: float = 0.95
    """Of the times that answers of a model took: after so long a second backend is asked."""
    least_s: float = 0.01
    """The earliest time for a hedge: one that is sent sooner costs more than it saves."""
    share: float = 0.05
    """Of all requests that may be sent twice so."""


class _Recent:
    """The last answers of one model."""

    __slots__ = ("fresh", "ordered", "taken")

    def __init__(self) -> None:
        self.taken: deque[float] = deque(maxlen=_REMEMBERED)
        self.ordered: list[float] = []
        """As they were when they were sorted last."""
        self.fresh = 0
        """How many have come since."""


class Durations:
    """How long answers took, by model. Only samples are needed."""

    __slots__ = ("_models",)

    def __init__(self) -> None:
        self._models: dict[bytes, _Recent] = {}

    def add(self, model: bytes, took_s: float) -> None:
        """An answer came; names of models are made up by clients, so there is an end to them."""
        recent = self._models.get(model)
        if recent is None:
            if len(self._models) >= _MAX_MODELS:
                return
            recent = self._models[model] = _Recent()
        recent.taken.append(took_s)
        recent.fresh += 1

    def quantile(self, model: bytes, share: float) -> float:
        """The time that a share of the answers did not take; 0 where too little is known."""
        recent = self._models.get(model)
        if recent is None or len(recent.taken) < _ENOUGH:
            return 0.0
        if recent.fresh >= _SORT_EVERY or not recent.ordered:
            recent.ordered, recent.fresh = sorted(recent.taken), 0
        return recent.ordered[min(int(share * len(recent.ordered)), len(recent.ordered) - 1)]

    def models(self) -> tuple[bytes, ...]:
        """Those of which anything is known."""
        return tuple(self._models)
