"""One request that may go to a backend which gets no others: its answer decides what follows."""

from __future__ import annotations

from lb.domain.backend import Backend


class Trial:
    """Whoever places requests takes it, once."""

    __slots__ = ("backend", "is_open")

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.is_open = True

    def __repr__(self) -> str:
        return f"<Trial {self.backend.name} {'open' if self.is_open else 'taken'}>"
