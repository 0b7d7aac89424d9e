"""The `grpc-timeout` field ("gRPC over HTTP2": TimeoutValue TimeoutUnit)."""

from __future__ import annotations

import re
from typing import Final

_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


def parse_timeout(value: bytes) -> float | None:
    """Seconds, or None where the value is malformed (more than eight digits, no unit)."""
    match = _TIMEOUT.fullmatch(value)
    return int(match[1]) * _UNITS[match[2]] if match else None
