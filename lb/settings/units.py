"""Durations and sizes as operators write them: `100ms`, `2m`, `64KiB`.

Durations become seconds as float, sizes become bytes as int. The `format_*` functions are the
exact inverse of the `parse_*` functions: parsing what they return gives the same number.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, WithJsonSchema

from lb.settings.problems import show

_DURATION_UNITS: Final = {
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
    "us": Decimal("0.000001"),
}
_SIZE_UNITS: Final = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
_DURATION: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,30})?)(h|ms|us|m|s)?", re.ASCII)
_SIZE: Final = re.compile(r"([0-9]{1,19})(GiB|MiB|KiB|B)?", re.ASCII)

MAX_DURATION_S: Final = 366 * 86400.0
"""Longest duration: a year. Event loops count timers in 64-bit milliseconds or microseconds."""
MAX_SIZE: Final = (1 << 63) - 1
"""Largest size: what the operating system's signed 64-bit sizes can say."""


def parse_duration(value: object) -> float:
    """Turn `1s`, `100ms`, `2m`, `1.5h`, `250us` or a plain number of seconds into seconds.

    Raises:
        ValueError: with a message that says what was expected.
    """
    # Not repr alone: it writes small numbers as 1e-05.
    text = f"{Decimal(repr(value)):f}" if type(value) in (int, float) else value
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"expected a duration such as 500ms, 1s or 2m, got {show(value)}")
    seconds = float(Decimal(match[1]) * _DURATION_UNITS[match[2] or "s"])
    if seconds > MAX_DURATION_S:
        raise ValueError(f"expected a duration of at most 8784h, got {show(value)}")
    return seconds


def format_duration(seconds: float) -> str:
    """Write seconds in the largest unit that needs no fraction; `0s` for zero."""
    exact = Decimal(repr(seconds))
    for unit, factor in _DURATION_UNITS.items():
        if exact % factor == 0 and (exact or unit == "s"):
            return f"{int(exact / factor)}{unit}"
    return f"{exact:f}s"


def parse_size(value: object) -> int:
    """Turn `64KiB`, `1MiB`, `2GiB`, `512B` or a plain number of bytes into bytes.

    Raises:
        ValueError: with a message that says what was expected.
    """
    text = repr(value) if type(value) is int else value
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"expected a size such as 65536, 64KiB or 1MiB, got {show(value)}")
    size = int(match[1]) * _SIZE_UNITS[match[2] or "B"]
    if size > MAX_SIZE:
        raise ValueError(f"expected a size of at most {MAX_SIZE}, got {show(value)}")
    return size


def format_size(size: int) -> str:
    """Write bytes in the largest unit that divides them; plain bytes otherwise."""
    for unit, factor in _SIZE_UNITS.items():
        if factor > 1 and size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


_DURATION_TEXT: Final = {
    "type": "string",
    "pattern": f"^{_DURATION.pattern}$",
    "examples": ["500ms", "1s", "2m"],
    "description": "A number and h, m, s, ms or us.",
}
_SECONDS: Final = {"type": "number", "maximum": MAX_DURATION_S, "description": "Seconds."}
_SIZE_TEXT: Final = {
    "type": "string",
    "pattern": f"^{_SIZE.pattern}$",
    "examples": ["64KiB", "1MiB"],
    "description": "A whole number and KiB, MiB, GiB or B.",
}
_BYTES: Final = {"type": "integer", "minimum": 0, "description": "Bytes."}

Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema({"anyOf": [_DURATION_TEXT, _SECONDS | {"minimum": 0}]}),
]
"""Seconds, zero or more."""
PositiveDuration = Annotated[
    Duration,
    Field(gt=0),
    WithJsonSchema(
        {
            "anyOf": [
                _DURATION_TEXT | {"pattern": f"^(?=.*[1-9]){_DURATION.pattern}$"},
                _SECONDS | {"exclusiveMinimum": 0},
            ]
        }
    ),
]
"""Seconds, more than zero."""
Size = Annotated[int, BeforeValidator(parse_size), WithJsonSchema({"anyOf": [_SIZE_TEXT, _BYTES]})]
"""Bytes, zero or more."""
