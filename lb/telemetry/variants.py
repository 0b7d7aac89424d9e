"""What the metrics say of variants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from lb.domain.backend import Histogram

_SAME: Final = 0.001
"""Percent by which shares are not told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantStatus:
    """One variant as it is now."""

    name: str
    """That clients use."""
    variant: str
    model: str
    version: str
    """Empty where the Triton decides."""
    percent: float
    file_percent: float
    """The same by the configuration file."""
    is_ready: bool
    """Some backend serves it."""
    answers: int
    """Requests that were answered."""
    errors: int
    """Those among them that failed."""
    durations: Histogram
    """Of good answers."""
    changed: str
    """What has changed the shares of the name since the file was read; empty: nothing has."""
    why: str
    """Why the last rollback of the name was made."""
    rollbacks: Mapping[str, int]
    """By cause."""

    @property
    def differs(self) -> bool:
        """Whether the share is another one than that of the file."""
        return abs(self.percent - self.file_percent) > _SAME


VariantStatuses = Callable[[], Iterable[VariantStatus]]
