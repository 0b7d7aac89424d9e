"""Weighted round robin, smooth: a backend of weight 3 gets three turns, spread over the round.

Earliest deadline first: each backend's next turn stands on a virtual clock, 1/weight apart, and
the earliest goes first. After any number of picks every backend has had its share to within one
or two requests, as long as none is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace

from lb.balancing.score import PickSequence
from lb.domain.backend import Backend
from lb.domain.pool import Picker


class RoundRobin:
    """The policy. Where the round stands is kept in `Backend.last_pick`, so it survives."""

    def __init__(self) -> None:
        self._turn = PickSequence()

    def build(self, backends: Sequence[Backend]) -> Picker:
        """Make a picker over a non-empty set; whoever waited longest goes first."""
        self._turn.resume(backends)
        return RoundRobinPicker(backends, self._turn)


class RoundRobinPicker:
    """Takes turns by virtual deadlines. O(log n)."""

    __slots__ = ("_deadlines", "_turn")

    def __init__(self, backends: Sequence[Backend], turn: PickSequence) -> None:
        self._turn = turn
        waiting = sorted(backends, key=lambda backend: backend.last_pick)
        # First turns are spread over the first round: otherwise it would start with all the
        # turns of the heaviest, and every rebuild would favour it.
        self._deadlines = [
            (backend.inverse_weight * (rank + 1) / len(waiting), turn.number + rank + 1, backend)
            for rank, backend in enumerate(waiting)
        ]
        turn.number += len(waiting)
        heapify(self._deadlines)

    def pick(self) -> Backend | None:
        """Return the next in turn; None when all are full."""
        # HOT PATH (benchmarks/bench_pick.py). `has_room` is written out for the first in turn.
        deadlines = self._deadlines
        due, _, backend = deadlines[0]
        limit = backend.max_in_flight
        if limit and backend.in_flight >= limit:
            return self._pick_with_room()
        turn = self._turn
        turn.number = backend.last_pick = number = turn.number + 1
        heapreplace(deadlines, (due + backend.inverse_weight, number, backend))
        return backend

    def _pick_with_room(self) -> Backend | None:
        """Pass over the full ones. They lose their turn, so none returns with a backlog."""
        deadlines = self._deadlines
        full: list[tuple[float, int, Backend]] = []
        while deadlines and not deadlines[0][2].has_room:
            full.append(heappop(deadlines))
        if not deadlines:
            deadlines.extend(full)  # popped in order, so this is a heap again
            return None
        chosen = self.pick()
        for due, number, backend in full:
            heappush(deadlines, (due + backend.inverse_weight, number, backend))
        return chosen
