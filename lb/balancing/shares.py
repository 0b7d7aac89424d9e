"""The open sequences of a model by backend, and how much of each backend's time they take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lb.balancing.habits import Habit, faded
from lb.domain.backend import Backend

_QUIET: Final = 0.05
"""What an open sequence that is quiet counts, in parts of a usual one: it may go on any time."""
_BESIDE: Final = 0.5
"""What the time counts that sequences of other models take: they share the device, but no
instance."""
_AT_ONCE_S: Final = 0.05
"""How long what one of those that are open does is taken to be the same."""
_TOTALS_S: Final = 0.5
"""How long what all models take together is taken to be the same."""


class OpenModel:
    """The open sequences of one model."""

    __slots__ = ("habit", "name", "number", "open", "shares")

    def __init__(self, name: bytes, number: int, habit: Habit) -> None:
        self.name = name
        self.habit = habit
        self.number = number
        """Stands for the name in keys. Never used again."""
        self.open = 0
        self.shares: dict[Backend, Share] = {}

    def row_key(self, sequence_id: int | str) -> bytes:
        """What tells its sequences from all others."""
        if isinstance(sequence_id, int):
            return b"%x i%x" % (self.number, sequence_id)
        return b"%x s%b" % (self.number, sequence_id.encode("utf-8", "surrogateescape"))


class Share:
    """Those of them that run on one backend, until it dies."""

    __slots__ = (
        "_assumed", "_at", "_seen", "backend", "cost", "deaths", "model", "number", "open", "time",
    )  # fmt: skip

    def __init__(self, model: OpenModel, backend: Backend, number: int) -> None:
        self.model = model
        self.backend = backend
        self.number = number
        """Stands for it in rows."""
        self.deaths = backend.deaths
        self.open = 0
        self.cost = model.habit.cost(backend)
        self._seen = 0.0
        self._assumed = 0.0
        self._at = 0.0
        self.time = 0.0
        """`part` when all were last looked at."""

    @property
    def is_lost(self) -> bool:
        """Its backend has died since."""
        return self.deaths != self.backend.deaths

    # Steps per second: sums over its sequences that fade as each of them does

    def add(self, seen: float, assumed: float, now: float) -> None:
        """So many more steps per second were seen, or are assumed of a new sequence."""
        left = faded(1.0, now - self._at)
        self._seen = self._seen * left + seen
        self._assumed = self._assumed * left + assumed
        self._at = now

    def take(self, seen: float, assumed: float, at: float) -> None:
        """A sequence is over that had so many at a time, which is not after the last addition."""
        left = faded(1.0, self._at - at)
        self._seen = max(0.0, self._seen - seen * left)
        self._assumed = max(0.0, self._assumed - assumed * left)

    def seen(self, now: float) -> float:
        """Steps per second, as far as there were any of late."""
        return faded(self._seen, now - self._at)

    def expected(self, now: float) -> float:
        """The same with what is assumed of those that are new."""
        return faded(self._seen + self._assumed, now - self._at)

    def part(self, now: float) -> float:
        """The part of the backend's time that they take; 1 is all of it."""
        return self.seen(now) * self.model.habit.step_s(self.backend)


class Totals:
    """The parts of their time that open sequences of all models take at backends, looked at now
    and then."""

    __slots__ = ("_at", "parts")

    def __init__(self) -> None:
        self.parts: dict[Backend, float] = {}
        self._at = -_TOTALS_S

    def hold(self, now: float) -> bool:
        """Whether they are new enough."""
        return 0.0 <= now - self._at < _TOTALS_S

    def renew(self, shares: Iterable[Share], now: float) -> dict[Backend, float]:
        """Look again at all there is."""
        self._at = now
        parts: dict[Backend, float] = {}
        self.parts = parts
        for share in shares:
            share.time = 0.0 if share.is_lost else share.part(now)
            parts[share.backend] = parts.get(share.backend, 0.0) + share.time
        return parts


def usual_rate(habit: Habit, shares: Iterable[Share], now: float) -> float:
    """Steps per second to expect of a new sequence: as of those before it, and not less than of
    those that are open, so that very many that begin at once are spread by their number."""
    if not 0.0 <= now - habit.open_rate_at < _AT_ONCE_S:
        running = 0
        expected = 0.0
        for share in shares:
            if not share.is_lost:
                running += share.open
                expected += share.expected(now)
        habit.open_rate = expected / running if running else 0.0
        habit.open_rate_at = now if running else 0.0
    return max(habit.rate, habit.open_rate)


def by_work(
    habit: Habit,
    shares: Mapping[Backend, Share],
    totals: Totals,
    candidates: Sequence[Backend],
    slots: int,
    now: float,
) -> Backend:
    """The backend whose time would be spoken for the least with one more sequence.

    Args:
        habit: of its model.
        shares: of its model.
        totals: of all models.
        candidates: not empty.
        slots: sequences of the model that one backend runs at once; 0: that is not known.
        now: monotonic seconds.
    """
    usual = usual_rate(habit, shares.values(), now)
    parts = totals.parts
    best: Backend | None = None
    best_is_full = True
    best_work = 0.0
    for backend in candidates:
        share = shares.get(backend)
        beside = parts.get(backend, 0.0)
        rate = usual
        is_full = False
        if share is not None and not share.is_lost:
            is_full = 0 < slots <= share.open
            rate += share.expected(now) + _QUIET * usual * share.open
            beside = max(0.0, beside - share.time)
        work = rate * habit.unit_s(backend, now) + _BESIDE * beside
        is_better = is_full < best_is_full or (is_full == best_is_full and work < best_work)
        is_equal = is_full == best_is_full and work == best_work
        if best is None or is_better or (is_equal and _turn(backend) < _turn(best)):
            best = backend
            best_is_full = is_full
            best_work = work
    assert best is not None
    return best


def _turn(backend: Backend) -> tuple[float, int]:
    """Whose turn it is of those that are equal: the least one's."""
    return (backend.in_flight + 1) * backend.inverse_weight, backend.last_sequence
