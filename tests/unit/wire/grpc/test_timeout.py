"""`grpc-timeout`: every unit, and everything that is none."""

from __future__ import annotations

import pytest

from lb.wire.grpc.timeout import parse_timeout


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"2H", 7200.0),
        (b"3M", 180.0),
        (b"4S", 4.0),
        (b"5m", 0.005),
        (b"6u", 6e-6),
        (b"7n", 7e-9),
        (b"0S", 0.0),
        (b"00000001S", 1.0),
        (b"99999999H", 99_999_999 * 3600.0),
    ],
)
def test_a_timeout_is_its_number_of_units(value: bytes, seconds: float) -> None:
    assert parse_timeout(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value",
    [b"", b"S", b"1", b"1s", b"1h", b"123456789S", b"-1S", b"+1S", b"1.5S", b"1 S", b" 1S", b"1S ",
     b"1S\n", b"1SS", b"1_0S", b"0x1S", "\u0661S".encode()],
)  # fmt: skip
def test_anything_else_is_malformed(value: bytes) -> None:
    """No digits, nine digits, no unit, a wrong unit, signs, fractions, blanks, other digits."""
    assert parse_timeout(value) is None
