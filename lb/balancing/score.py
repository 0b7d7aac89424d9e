"""What a request would cost on a backend, and whose turn it is: shared by the policies."""

from __future__ import annotations

from collections.abc import Iterable

from lb.domain.backend import Backend


def score(backend: Backend) -> float:
    """Load per unit of weight, this request included; lower is better."""
    return (backend.in_flight + 1) * backend.inverse_weight


def least_loaded_with_room(backends: Iterable[Backend]) -> Backend | None:
    """Return the backend with the lowest score that is not full; None when all are."""
    return min((backend for backend in backends if backend.has_room), key=score, default=None)


class PickSequence:
    """The sequence that numbers picks; one per policy, so that its pickers share it."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def resume(self, backends: Iterable[Backend]) -> None:
        """Continue after the newest pick of `backends`, which another policy may have made.

        Without it a changed policy would start at zero, and every backend it had picked once
        would look least recently picked until the count had caught up.
        """
        self.number = max(self.number, *(backend.last_pick for backend in backends))
