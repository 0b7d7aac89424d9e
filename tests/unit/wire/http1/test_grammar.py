"""Shared grammar: lengths, codings, connection options."""

from __future__ import annotations

import pytest

from lb.wire.http1.errors import MessageError
from lb.wire.http1.grammar import (
    connection_options,
    has_violation,
    is_canonical_length,
    is_field_section,
    parse_length,
    require_chunked,
    trimmed,
    without_nominated,
)


@pytest.mark.parametrize(
    ("value", "length"), [(b" 0", 0), (b"007\t", 7), (b"9223372036854775807", 2**63 - 1)]
)
def test_lengths_are_read(value: bytes, length: int) -> None:
    assert parse_length(value) == length


@pytest.mark.parametrize(
    "value",
    [b"", b" ", b"+1", b"1_0", b"1,1", b"\xb2", b"1\x0c", b"9" * 20, b"9223372036854775808"],
)
def test_other_lengths_are_refused(value: bytes) -> None:
    with pytest.raises(MessageError):
        parse_length(value)


def test_canonical_lengths_are_known() -> None:
    assert all(is_canonical_length(value) for value in (b"0", b" 10", b"7"))
    assert not any(is_canonical_length(value) for value in (b" 00", b"01", b"  1", b"1 "))


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"gzip", 501),
        (b"gzip, chunked", 501),
        (b"chunked, chunked", 400),
        (b"a b", 400),
        (b"", 400),
    ],
)
def test_other_codings_are_refused(value: bytes, status: int) -> None:
    with pytest.raises(MessageError) as caught:
        require_chunked(value)
    assert caught.value.status == status


def test_connection_options_are_lower_case_and_tolerate_empty_elements() -> None:
    assert connection_options(b" ,Close,, X-a\t,") == {b"close", b"x-a"}
    assert connection_options(b"") == frozenset()


@pytest.mark.parametrize("value", [b"a b", b'"a"', b"a;b", b"a,\x00"])
def test_other_connection_values_are_refused(value: bytes) -> None:
    with pytest.raises(MessageError):
        connection_options(value)


def test_odd_values_take_linear_time() -> None:
    # 32 KiB is the most a head may hold; quadratic work on it would stop the loop for seconds.
    spaces = b"a" + b" " * 32_000 + b"b"
    assert trimmed(spaces) == spaces
    for read in (connection_options, require_chunked, parse_length):
        with pytest.raises(MessageError):
            read(spaces)


def test_nominated_lines_go_unless_they_are_end_to_end() -> None:
    lines = [b"A: 1", b"Host: b", b"c: 2"]
    assert without_nominated(lines, frozenset((b"a", b"host"))) == [b"Host: b", b"c: 2"]


def test_field_sections_are_whole_lines() -> None:
    assert is_field_section(b"")
    assert is_field_section(b"a:\r\nb: c\xff\r\n")
    assert not is_field_section(b"a: b")
    assert not is_field_section(b"a : b\r\n")


def test_violations_are_seen_from_any_start() -> None:
    assert not has_violation(b"a\r\nb\r", 0)
    assert not has_violation(b"a\r\nb", 2)
    assert has_violation(b"a\nb", 1)
    assert has_violation(b"ab\rc", 2)


def test_options_of_several_fields_are_collected_without_copying_them() -> None:
    first = connection_options(b"a, b")
    assert connection_options(b"c", first) is first
    assert first == {b"a", b"b", b"c"}
    assert connection_options(b"a", frozenset()) == {b"a"}
