"""Frames that are wrong by themselves."""

from __future__ import annotations

import pytest

from lb.wire.http2 import frames as fr
from lb.wire.http2.frames import ErrorCode, Http2Error
from lb.wire.http2.shape import check_shape, is_own_parent, strip

SIZE, CALM, BAD = (
    ErrorCode.FRAME_SIZE_ERROR,
    ErrorCode.ENHANCE_YOUR_CALM,
    ErrorCode.PROTOCOL_ERROR,
)


def verdict(kind: int, stream: int, length: int) -> ErrorCode | None:
    try:
        check_shape(kind, stream, length)
    except Http2Error as error:
        return error.code
    return None


@pytest.mark.parametrize("kind", range(12))
def test_every_kind_belongs_on_a_stream_or_on_none(kind: int) -> None:
    lengths = {fr.PING: 8, fr.RST_STREAM: 4, fr.WINDOW_UPDATE: 4}
    length = lengths.get(kind, 0)
    connection = kind in (fr.SETTINGS, fr.PING, fr.GOAWAY)
    either = kind == fr.WINDOW_UPDATE or kind > fr.CONTINUATION
    never = kind == fr.PUSH_PROMISE
    assert verdict(kind, 1, length) == (BAD if connection or never else None)
    assert verdict(kind, 0, length) == (None if connection or either else BAD)


@pytest.mark.parametrize(
    ("kind", "stream", "length", "code"),
    [
        (fr.PING, 0, 7, SIZE),
        (fr.RST_STREAM, 1, 5, SIZE),
        (fr.WINDOW_UPDATE, 0, 3, SIZE),
        (fr.PRIORITY, 1, 4, None),
        (fr.GOAWAY, 0, 16_384, None),
        (fr.GOAWAY, 0, 16_385, CALM),
        (fr.PRIORITY, 1, 16_385, CALM),
        (fr.HEADERS, 1, 2**20, None),
        (fr.DATA, 1, 2**20, None),
        (fr.SETTINGS, 0, 32 * 6, None),
        (fr.SETTINGS, 0, 33 * 6, CALM),
        (0x77, 0, 2**20, None),
    ],
)
def test_sizes(kind: int, stream: int, length: int, code: ErrorCode | None) -> None:
    assert verdict(kind, stream, length) == code


@pytest.mark.parametrize(
    ("flags", "payload", "left"),
    [
        (0, b"abc", b"abc"),
        (fr.PADDED, b"\2abc\0\0", b"abc"),
        (fr.PRIORITY_FLAG, b"12345abc", b"abc"),
        (fr.PADDED | fr.PRIORITY_FLAG, b"\1" + b"12345abc\0", b"abc"),
        (fr.PADDED, b"\0", b""),
    ],
)
def test_padding_and_priority_are_taken_off(flags: int, payload: bytes, left: bytes) -> None:
    assert strip(flags, payload) == left


@pytest.mark.parametrize(
    ("flags", "payload", "code"),
    [
        (fr.PADDED, b"", SIZE),
        (fr.PADDED, b"\4abc", BAD),
        (fr.PRIORITY_FLAG, b"1234", SIZE),
        (fr.PADDED | fr.PRIORITY_FLAG, b"\0" + b"1234", SIZE),
        (fr.PADDED | fr.PRIORITY_FLAG, b"\1" + b"12345", BAD),
    ],
)
def test_less_than_the_flags_say_is_refused(flags: int, payload: bytes, code: ErrorCode) -> None:
    with pytest.raises(Http2Error) as caught:
        strip(flags, payload)
    assert caught.value.code is code


def test_a_stream_may_not_depend_on_itself() -> None:
    assert is_own_parent(3, b"\x80\0\0\3\x10")
    assert not is_own_parent(3, b"\0\0\0\1\x10")
