"""What the metrics say of shadow traffic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lb.domain.backend import Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowStatus:
    """The copies of the requests for one name, as they are now."""

    name: str
    """That clients use."""
    is_paused: bool
    outcomes: Mapping[tuple[str, str], int]
    """What became of copies, by kind (`shadow` or `noise`) and outcome."""
    durations: Mapping[str, Histogram]
    """Of answers to copies, by kind."""
    compared: Mapping[tuple[str, str], int]
    """Pairs of answers, by kind and result: `same`, `different` or `unreadable`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowStatuses:
    """All of it."""

    names: Iterable[ShadowStatus] = ()
    dropped: int = 0
    """Pairs of answers that were not compared."""
