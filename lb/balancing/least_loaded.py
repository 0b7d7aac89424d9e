"""The default policy: the least-loaded backend, by exact in-flight counts.

Score: (in flight + 1) / weight. The lowest wins, full backends are skipped, ties go to whoever
was picked least recently. Up to `EXACT_LIMIT` backends every one is looked at. Above that the
first idle one of a few is taken, since none can be less loaded: these few stay the same for some
picks and then move on by one, so that requests which few backends can serve share connections
that are in use, and all backends have their turn. Otherwise one in a random place is taken if it is
idle, or a window of them is looked at, plus the runner-up of the pick before: with that memory a
sample is about as good as the full scan at a cost that does not grow (Mitzenmacher, Prabhakar,
Shah: "Load balancing with memory", 2002; our figures: docs/decisions/0004-pick-at-scale.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from lb.balancing.score import PickSequence, least_loaded_with_room
from lb.balancing.tuning import TUNING
from lb.domain.backend import Backend
from lb.domain.pool import Picker

WINDOW: Final = TUNING.pick_window
EXACT_LIMIT: Final = TUNING.pick_all_up_to
STAY: Final = TUNING.pick_stay
_INFINITY: Final = float("inf")


class LeastLoaded:
    """The policy. One instance serves both protocols."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._turn = PickSequence()

    def build(self, backends: Sequence[Backend]) -> Picker:
        """Make the picker that suits the size of the set."""
        self._turn.resume(backends)
        if len(backends) <= EXACT_LIMIT:
            return LeastLoadedPicker(backends, self._turn)
        return WindowPicker(backends, self._turn, self._rng)


class LeastLoadedPicker:
    """Scans every backend: exact, and the cheapest way for a few. O(n)."""

    __slots__ = ("_backends", "_turn")

    def __init__(self, backends: Sequence[Backend], turn: PickSequence) -> None:
        self._backends = tuple(backends)
        self._turn = turn

    def pick(self) -> Backend | None:
        """Return the least-loaded backend; None when all are full."""
        # HOT PATH (benchmarks/bench_pick.py). The score and `has_room` are written out: two
        # calls per backend would treble the cost.
        best = None
        best_score = _INFINITY
        best_turn = 0
        for backend in self._backends:
            in_flight = backend.in_flight
            score = (in_flight + 1) * backend.inverse_weight
            if score <= best_score:
                limit = backend.max_in_flight
                if limit and in_flight >= limit:
                    continue
                if score < best_score or backend.last_pick < best_turn:
                    best = backend
                    best_score = score
                    best_turn = backend.last_pick
        if best is not None:
            turn = self._turn
            turn.number = best.last_pick = turn.number + 1
        return best


class WindowPicker:
    """Looks at a window of a large set and at the last runner-up. O(1)."""

    __slots__ = (
        "_backends", "_best", "_count", "_place", "_random", "_runner_up", "_stay", "_turn",
        "_wrapped",
    )  # fmt: skip

    def __init__(self, backends: Sequence[Backend], turn: PickSequence, rng: Random) -> None:
        # Neighbours in the file are often alike (slices of one GPU), so a window should not
        # be made of neighbours.
        self._backends = tuple(rng.sample(backends, len(backends)))
        self._count = len(self._backends)
        self._wrapped = self._backends + self._backends[:WINDOW]
        self._best = min(backend.inverse_weight for backend in backends)
        """The lowest score that there can be: of an idle one of the largest weight."""
        self._random = rng.random
        self._runner_up = self._backends[0]
        self._place = 0
        """Where idle ones are looked for first."""
        self._stay = STAY
        self._turn = turn

    def pick(self) -> Backend | None:
        """Return the best backend in sight; None only when every backend is full."""
        # HOT PATH (benchmarks/bench_pick.py). Gives up exactness above EXACT_LIMIT backends:
        # 2 us for any number of them, where scanning 200 takes 11 us; an idle one takes 0.3.
        place = self._place
        first = self._wrapped[place]
        if first.in_flight:
            for first in self._wrapped[place + 1 : place + WINDOW]:
                if not first.in_flight:
                    break
        if not first.in_flight and first.inverse_weight == self._best:
            self._stay -= 1
            if not self._stay:
                self._stay = STAY
                self._place = (place + 1) % self._count
            turn = self._turn
            turn.number = first.last_pick = turn.number + 1
            return first
        start = int(self._random() * self._count)
        first = self._wrapped[start]
        if not first.in_flight and first.inverse_weight == self._best:
            turn = self._turn
            turn.number = first.last_pick = turn.number + 1
            return first
        return self._best_in_window(start)

    def _best_in_window(self, start: int) -> Backend | None:
        # HOT PATH (benchmarks/bench_pick.py). Scores are written out, as above.
        best: Backend | None = None
        best_score = _INFINITY
        second = candidate = self._runner_up
        second_score = _INFINITY
        limit = candidate.max_in_flight
        if not limit or candidate.in_flight < limit:
            best = candidate
            best_score = (candidate.in_flight + 1) * candidate.inverse_weight
        for backend in self._wrapped[start : start + WINDOW]:
            in_flight = backend.in_flight
            score = (in_flight + 1) * backend.inverse_weight
            if score < second_score and backend is not best:
                limit = backend.max_in_flight
                if limit and in_flight >= limit:
                    continue
                if score < best_score:
                    second = best or backend
                    second_score = best_score
                    best = backend
                    best_score = score
                else:
                    second = backend
                    second_score = score
        self._runner_up = second
        if best is None:
            best = least_loaded_with_room(self._backends)
            if best is None:
                return None
        turn = self._turn
        turn.number = best.last_pick = turn.number + 1
        return best
