"""What backends counted that are gone or began anew: sums over all backends never fall."""

from __future__ import annotations

from typing import Final

from lb.kserve.merge.counters import BATCHES, LAST, RESPONSES, Counters, ModelKey, Path
from lb.kserve.merge.steps import Pace, Steps

MAX_COUNTERS: Final = 250_000
"""Numbers that are kept of all models: about 30 MB. Three backends with a thousand models each have
100,000, their overhead included."""
MAX_BASE: Final = 16_384
"""Numbers that are kept of one model for all backends together that are gone or began anew. One
backend of a Triton's has 9,200 with all rows that count."""
_ROWS: Final = frozenset({BATCHES, RESPONSES})
_U64: Final = 2**64 - 1
_ENTRY: Final = 8
"""What an entry costs beside its numbers, in numbers: its name, and the objects that hold it."""
_NUMBER_WORK: Final = 2
"""What it costs to add a number, in bytes that a step may read."""
_MAX_BACKENDS: Final = 256
"""Backends whose counters are kept apart, per model, if not more than half as many are asked. The
ones that were heard of longest ago are added up beyond that."""


class _Row:
    """What one backend said last about one model."""

    __slots__ = ("answered_at", "counters")

    def __init__(self, counters: Counters, answered_at: float) -> None:
        self.counters = counters
        self.answered_at = answered_at


class _Model:
    """What is kept of one version of a model."""

    __slots__ = ("base", "rows", "size")

    def __init__(self) -> None:
        self.base: Counters = {}
        """Sum of what was counted by those who began anew."""
        self.rows: dict[str, _Row] = {}
        """By backend, the one that spoke longest ago first."""
        self.size = _ENTRY
        """Numbers that are kept, and what holds them."""

    def put(self, backend: str, row: _Row) -> None:
        """Keep what `backend` says instead of what it said before."""
        before = self.rows.pop(backend, None)
        if before is not None:
            self.size -= _ENTRY + len(before.counters)
        self.rows[backend] = row
        self.size += _ENTRY + len(row.counters)

    def fold(self, backend: str) -> None:
        """Keep what `backend` counted, and begin anew with it."""
        newest = self.rows.pop(backend).counters
        base = _bounded(added(self.base, newest), newest)
        self.size += len(base) - len(self.base) - _ENTRY - len(newest)
        self.base = base


class StatisticsMemory:
    """Counters by model and backend. Times are monotonic seconds.

    A Triton counts from zero when it starts, and when it loads a model again. That is seen when a
    number falls. If it has outgrown the old one by the time it is looked at, what the old one
    counted is lost; the sum does not fall by that either.
    """

    def __init__(self) -> None:
        self.asked = 0
        """Backends that are asked at the same time."""
        self._models: dict[ModelKey, _Model] = {}
        """The one that was spoken of longest ago first."""
        self._size = 0

    def __len__(self) -> int:
        """Numbers that are kept."""
        return self._size

    def take(
        self,
        backend: str,
        key: ModelKey,
        counters: Counters,
        asked_at: float,
        answered_at: float,
        *,
        is_whole: bool = True,
    ) -> None:
        """Take over what a backend says.

        Args:
            backend: its name.
            key: which model.
            counters: all its numbers.
            asked_at: when it was asked.
            answered_at: when it answered.
            is_whole: whether no rows were left out because they are too many.
        """
        known = self._models.pop(key, None)
        before = 0 if known is None else known.size
        model = self._models[key] = known or _Model()
        row = model.rows.get(backend)
        if row is not None and _has_fallen(row.counters, counters, is_whole):
            if asked_at < row.answered_at:
                return  # an older answer that came later
            model.fold(backend)
        model.put(backend, _Row(counters, answered_at))
        if len(model.rows) > max(_MAX_BACKENDS, 2 * self.asked):
            model.fold(next(iter(model.rows)))
        self._size += model.size - before

    def total(self, key: ModelKey) -> Steps[Counters]:
        """The sum over all backends that were ever heard of. What is taken between its steps is not
        in it."""
        model = self._models.get(key)
        if model is None:
            return {}
        total = dict(model.base)
        pace = Pace()
        for row in tuple(model.rows.values()):
            _add(total, row.counters)
            if pace.count(_NUMBER_WORK * (_ENTRY + len(row.counters))):
                yield
        return total

    def trim(self) -> None:
        """Forget the models that were spoken of longest ago, where that is too much.

        Not to be done before the sum of a model is made: that needs all that was taken for it.
        """
        while self._size > MAX_COUNTERS:
            key = next(iter(self._models))
            self._size -= self._models.pop(key).size


def added(one: Counters, other: Counters) -> Counters:
    """The sum of both, which are left alone; of `last_inference` the later."""
    total = dict(one)
    _add(total, other)
    return total


def _add(total: Counters, other: Counters) -> None:
    for path, value in other.items():
        known = total.get(path, 0)
        total[path] = max(known, value) if path == (LAST,) else known + value


def _has_fallen(before: Counters, now: Counters, is_whole: bool) -> bool:
    # Not by the time of the last inference: clocks are set back. Not by a row that had to make
    # room for another one.
    missing = 0 if is_whole else _U64
    return any(
        now.get(path, missing if path[0] in _ROWS else 0) < value and path != (LAST,)
        for path, value in before.items()
    )


def _bounded(base: Counters, newest: Counters) -> Counters:
    """Leave out what is too much: rows and numbers that the newest part of the sum does not have,
    the ones that were first there before the others."""
    excess = len(base) - MAX_BASE
    if excess <= 0:
        return base
    kept = {_row_of(path) for path in newest}
    sizes: dict[Path, int] = {}
    for path in base:
        row = _row_of(path)
        if row not in kept:
            sizes[row] = sizes.get(row, 0) + 1
    dropped = set()
    for row, size in sizes.items():
        if excess <= 0:
            break
        dropped.add(row)
        excess -= size
    return {path: value for path, value in base.items() if _row_of(path) not in dropped}


def _row_of(path: Path) -> Path:
    """The row that a number belongs to; for one outside of rows its own path."""
    return path[:2] if path[0] in _ROWS else path
