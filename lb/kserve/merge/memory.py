"""What backends counted that are gone or began anew: sums over all backends never fall."""

from __future__ import annotations

from typing import Final

from lb.kserve.merge.counters import LAST, Counters, ModelKey

MAX_COUNTERS: Final = 250_000
"""About 30 MB. Three backends with a thousand models each have 75,000."""
_MAX_ROWS: Final = 256
"""Backends whose counters are kept apart, per model; the oldest are added up beyond that."""


class _Row:
    """What one backend said last about one model."""

    __slots__ = ("answered_at", "counters")

    def __init__(self, counters: Counters, answered_at: float) -> None:
        self.counters = counters
        self.answered_at = answered_at


class _Model:
    """What is kept of one version of a model."""

    __slots__ = ("base", "rows")

    def __init__(self) -> None:
        self.base: Counters = {}
        """Sum of what was counted by those who began anew."""
        self.rows: dict[str, _Row] = {}
        """By backend, the one that spoke longest ago first."""

    @property
    def size(self) -> int:
        """Numbers that are kept. A row without any is one: it takes memory, too."""
        return len(self.base) + sum(len(row.counters) or 1 for row in self.rows.values())

    def fold(self, backend: str) -> None:
        """Keep what `backend` counted, and begin anew with it."""
        self.base = added(self.base, self.rows.pop(backend).counters)


class StatisticsMemory:
    """Counters by model and backend. Times are monotonic seconds.

    A Triton counts from zero when it starts, and when it loads a model again. That is seen when a
    number falls. If it has outgrown the old one by the time it is looked at, what the old one
    counted is lost; the sum does not fall by that either.
    """

    def __init__(self) -> None:
        self._models: dict[ModelKey, _Model] = {}
        """The one that was spoken of longest ago first."""
        self._size = 0

    def __len__(self) -> int:
        """Numbers that are kept."""
        return self._size

    def take(
        self, backend: str, key: ModelKey, counters: Counters, asked_at: float, answered_at: float
    ) -> None:
        """Take over what a backend says.

        Args:
            backend: its name.
            key: which model.
            counters: all its numbers.
            asked_at: when it was asked.
            answered_at: when it answered.
        """
        model = self._models.pop(key, None) or _Model()
        self._models[key] = model
        before = model.size
        row = model.rows.get(backend)
        if row is not None and _has_fallen(row.counters, counters):
            if asked_at < row.answered_at:
                return  # an older answer that came later
            model.fold(backend)
        model.rows.pop(backend, None)
        model.rows[backend] = _Row(counters, answered_at)
        if len(model.rows) > _MAX_ROWS:
            model.fold(next(iter(model.rows)))
        self._size += model.size - before

    def total(self, key: ModelKey) -> Counters:
        """The sum over all backends that were ever heard of."""
        model = self._models.get(key)
        if model is None:
            return {}
        total = model.base
        for row in model.rows.values():
            total = added(total, row.counters)
        return total

    def trim(self) -> None:
        """Forget what was spoken of longest ago, where that is too much.

        Not to be done before the sums of an answer are made: they need all that was taken for it.
        """
        while self._size > MAX_COUNTERS and len(self._models) > 1:
            key = next(iter(self._models))
            self._size -= self._models.pop(key).size


def added(one: Counters, other: Counters) -> Counters:
    """The sum of both, which are left alone; of `last_inference` the later."""
    total = dict(one)
    for path, value in other.items():
        known = total.get(path, 0)
        total[path] = max(known, value) if path == (LAST,) else known + value
    return total


def _has_fallen(before: Counters, now: Counters) -> bool:
    # Not by the time of the last inference: clocks are set back.
    return any(now.get(path, 0) < value and path != (LAST,) for path, value in before.items())
