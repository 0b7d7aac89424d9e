"""Durations and sizes: what is accepted, what is refused, and that writing inverts reading."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.settings.units import (
    MAX_DURATION_S,
    MAX_SIZE,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("100ms", 0.1),
        ("700ms", 0.7),
        ("250us", 0.00025),
        ("2m", 120.0),
        ("1.5h", 5400.0),
        ("0", 0.0),
        ("0ms", 0.0),
        ("8784h", MAX_DURATION_S),
        (0, 0.0),
        (5, 5.0),
        (0.25, 0.25),
        (0.00001, 0.00001),
    ],
)
def test_duration_is_read_as_seconds(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "",
        "s",
        "-1s",
        "1 s",
        "1S",
        "1d",
        "1s ",
        "1m30s",
        ".5s",
        "1e3",
        "٣s",
        "nan",
        -1,
        True,
        float("inf"),
        float("nan"),
        None,
        [],
        "8785h",
        1e300,
        "9" * 5000,
    ],
)
def test_duration_refuses_what_is_no_duration(value: object) -> None:
    with pytest.raises(ValueError, match=r"^expected a duration .*, got "):
        parse_duration(value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.1, "100ms"),
        (1.0, "1s"),
        (90.0, "90s"),
        (120.0, "2m"),
        (3600.0, "1h"),
        (0.00025, "250us"),
        (1e-07, "0.0000001s"),
        (1.5, "1500ms"),
    ],
)
def test_duration_is_written_in_the_largest_whole_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(min_value=0, max_value=MAX_DURATION_S, allow_subnormal=False))
def test_every_written_duration_reads_back_unchanged(seconds: float) -> None:
    seconds = round(seconds, 12)
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("64KiB", 65536),
        ("1MiB", 1 << 20),
        ("2GiB", 2 << 30),
        ("512B", 512),
        ("70000", 70000),
        (0, 0),
        (8192, 8192),
        (MAX_SIZE, MAX_SIZE),
    ],
)
def test_size_is_read_as_bytes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "value",
    [
        "",
        "KiB",
        "-1",
        "64KB",
        "64k",
        "64 KiB",
        "1.5MiB",
        "1e3",
        "٣",
        1.0,
        True,
        None,
        {},
        "9" * 18 + "GiB",
        MAX_SIZE + 1,
        -1,
    ],
)
def test_size_refuses_what_is_no_size(value: object) -> None:
    with pytest.raises(ValueError, match=r"^expected a size .*, got "):
        parse_size(value)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0"), (1000, "1000"), (1024, "1KiB"), (3 << 20, "3MiB"), (1 << 30, "1GiB")],
)
def test_size_is_written_in_the_largest_unit_that_divides_it(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(min_value=0, max_value=MAX_SIZE))
def test_every_written_size_reads_back_unchanged(size: int) -> None:
    assert parse_size(format_size(size)) == size
