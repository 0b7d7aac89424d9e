"""Plain versions of the pickers: what they must choose, without a thought for speed."""

from __future__ import annotations

from collections.abc import Sequence

from lb.balancing.score import score
from lb.domain.backend import Backend


def least_loaded(backends: Sequence[Backend]) -> Backend | None:
    """The lowest score with room; ties go to the least recently picked, then to the first."""
    free = [backend for backend in backends if backend.has_room]
    return min(free, key=lambda backend: (score(backend), backend.last_pick), default=None)


def window(order: Sequence[Backend], runner_up: Backend, start: int, size: int) -> Backend | None:
    """The best of `size` backends from `start` on, around the end, and of the last runner-up.

    Ties go to the first in the window if it is idle and none has a larger weight, then to the
    runner-up, then to whoever comes first. When all these are full, the best of all.
    """
    if is_unbeatable(order[start], order):
        return order[start]
    seen = [runner_up, *(order[(start + step) % len(order)] for step in range(size))]
    for pool in (seen, order):
        free = [backend for backend in pool if backend.has_room]
        if free:
            return min(free, key=score)
    return None


class Stay:
    """Where idle ones are looked for first: one place on after so many of them were found."""

    def __init__(self, order: Sequence[Backend], size: int, picks: int) -> None:
        self._order = order
        self._size = size
        self._picks = picks
        self._found = 0

    def idle(self) -> Backend | None:
        """The first idle one in sight, if nothing can beat it."""
        order = self._order
        place = self._found // self._picks
        seen = [order[(place + step) % len(order)] for step in range(self._size)]
        found = next((each for each in seen if not each.in_flight), None)
        if found is None or not is_unbeatable(found, order):
            return None
        self._found += 1
        return found


def is_unbeatable(backend: Backend, others: Sequence[Backend]) -> bool:
    """Whether it is idle, and of the largest weight."""
    return not backend.in_flight and score(backend) == min(each.inverse_weight for each in others)


class RoundRobin:
    """Virtual deadlines in a plain list, searched and sorted at every pick."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        waiting = sorted(backends, key=lambda backend: backend.last_pick)
        self._number = len(waiting)
        self._turns = [
            (backend.inverse_weight * (rank + 1) / len(waiting), rank, backend)
            for rank, backend in enumerate(waiting)
        ]

    def pick(self) -> Backend | None:
        """The earliest with room; full ones before it lose their turn."""
        self._turns.sort(key=lambda turn: turn[:2])
        at = next((at for at, turn in enumerate(self._turns) if turn[2].has_room), None)
        if at is None:
            return None
        for passed in range(at):
            due, number, backend = self._turns[passed]
            self._turns[passed] = (due + backend.inverse_weight, number, backend)
        due, _, chosen = self._turns[at]
        self._number += 1
        self._turns[at] = (due + chosen.inverse_weight, self._number, chosen)
        return chosen
