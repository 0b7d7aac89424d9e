"""What clients say in headers of how urgent a request is."""

from __future__ import annotations

import re
from typing import Final

_DURATION: Final = re.compile(rb"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s)?")
_SECONDS: Final = {b"s": 1.0, b"ms": 0.001, None: 0.001}
_PRIORITY: Final = re.compile(rb"[0-9]{1,3}")
_LOWEST: Final = 100


def duration_of(value: bytes) -> float | None:
    """The seconds that `200ms`, `1.5s` or a number of milliseconds stands for; None: for none."""
    match = _DURATION.fullmatch(value)
    return float(match[1]) * _SECONDS[match[2]] if match is not None else None


def priority_of(value: bytes) -> int:
    """The priority that a header names, 1 being the highest; 0 where it names none."""
    return min(int(value), _LOWEST) if _PRIORITY.fullmatch(value) is not None else 0
