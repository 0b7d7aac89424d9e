"""What other workers have in flight at a model backend, and what this one has told them."""

from __future__ import annotations

from typing import Any

from lb.domain.backend import Backend
from lb.sharing.board import Entry


class SharedLoad:
    """One model on one backend, as workers tell each other of it."""

    __slots__ = (
        "backend", "count", "counted_at", "high", "model_queue", "own_entry", "rows", "work_s",
    )  # fmt: skip

    def __init__(self, key: int, model_queue: Any, backend: Backend) -> None:
        """
        Args:
            key: of the entry on the board.
            model_queue: the `ModelQueue` of its model.
            backend: where the model is.
        """
        self.own_entry = Entry(key)
        self.model_queue = model_queue
        self.backend = backend
        self.counted_at: Any = None
        """The `ModelBackend` whose load contains the next four."""
        self.count = 0
        self.high = 0
        self.rows = 0
        self.work_s = 0.0
