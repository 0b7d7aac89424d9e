"""The latest changes of state of all backends, with their causes, for people who look."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

KEPT: Final = 100
"""Changes that are remembered: more than fit a screen, and about 20 KiB."""
_TOGETHER_S: Final = 1.0
"""Two ports of one backend that change within this time did so for one cause."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """One change of one backend, of one of its ports, or of one model on it."""

    at: float
    """Monotonic seconds."""
    backend: str
    subject: str
    """What changed: ports (`http`, `grpc`), a model, or empty for the backend as a whole."""
    before: str
    """Empty where there was nothing before."""
    after: str
    why: str


class ChangeLog:
    """Remembers the last `KEPT` changes. The log of the process has them all."""

    __slots__ = ("_changes",)

    def __init__(self) -> None:
        self._changes: deque[StateChange] = deque(maxlen=KEPT)

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, change: StateChange) -> None:
        """Remember a change. A second port that follows the first one shares its entry."""
        last = self._changes[-1] if self._changes else None
        if (
            last is not None
            and last.subject
            and change.subject
            and (last.backend, last.after) == (change.backend, change.after)
            and change.at - last.at < _TOGETHER_S
        ):
            if change.subject not in last.subject.split(", "):
                self._changes[-1] = replace(last, subject=f"{last.subject}, {change.subject}")
            return
        self._changes.append(change)

    def newest_first(self) -> Iterator[StateChange]:
        """All that are remembered."""
        return reversed(self._changes)
