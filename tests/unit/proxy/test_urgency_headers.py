from __future__ import annotations

import pytest

from lb.proxy.urgency_headers import duration_of, priority_of


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"200ms", 0.2), (b"1.5s", 1.5), (b"250", 0.25), (b"0", 0.0), (b"0.5ms", 0.0005)],
)
def test_a_duration_is_in_milliseconds_or_as_it_says(value: bytes, seconds: float) -> None:
    assert duration_of(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [b"", b"soon", b"-1", b"1h", b"1e9", b"5 s", b"9" * 30])
def test_what_is_no_duration_says_nothing(value: bytes) -> None:
    assert duration_of(value) is None


def test_a_priority_is_a_number_from_1_to_100() -> None:
    assert [priority_of(value) for value in (b"1", b"7", b"999")] == [1, 7, 100]
    assert [priority_of(value) for value in (b"", b"0", b"-1", b"high", b"1.5")] == [0] * 5
