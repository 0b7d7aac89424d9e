"""Message prefixes, and the model's name at the start of a message."""

from __future__ import annotations

import pytest

from lb.kserve import inference_pb2 as pb
from lb.wire.grpc.message import (
    NAME_SEARCH_LIMIT,
    MessageMeter,
    frame_message,
    model_name,
    nested_name,
)


def test_a_message_is_framed_uncompressed() -> None:
    assert frame_message(b"abc") == b"\0\0\0\0\3abc"
    assert frame_message(b"") == bytes(5)


def test_meter_knows_the_longest_message_once_its_prefix_is_there() -> None:
    meter = MessageMeter()
    meter.feed(frame_message(b"abc") + frame_message(b"") + b"\1\0\0\1")
    assert meter.largest == 3
    meter.feed(memoryview(b"\0"))
    assert meter.largest == 256
    meter.feed(bytes(256) + frame_message(bytes(300)))
    assert meter.largest == 300


@pytest.mark.parametrize("length", [1, 6, 127, 128, 200, NAME_SEARCH_LIMIT])
def test_name_is_that_of_the_request(length: int) -> None:
    request = pb.ModelInferRequest(model_name="m" * length, model_version="1", id="x")
    framed = frame_message(request.SerializeToString())
    assert model_name(framed) == b"m" * length


def test_more_bytes_are_asked_for_until_the_name_is_complete() -> None:
    framed = frame_message(pb.ModelInferRequest(model_name="m" * 150).SerializeToString())
    assert [model_name(framed[:size]) for size in range(len(framed))] == [None] * len(framed)


@pytest.mark.parametrize(
    "head",
    [
        frame_message(b""),
        frame_message(b"\x0a"),
        frame_message(b"\x12\x011"),
        b"\1" + frame_message(b"\x0a\6simple")[1:],
        frame_message(b"\x0a\xff\x7f" + bytes(50)),
        frame_message(b"\x0a\x00\x12\x011"),
        frame_message(b"") + frame_message(b"\x0a\6simple"),
        frame_message(b"\x0a\6sim") + frame_message(b"ple"),
    ],
    ids=[
        *("empty", "one byte", "version first", "compressed", "too long", "empty name"),
        *("empty before another", "cut off before another"),
    ],
)
def test_a_message_that_does_not_start_with_a_name_is_unnamed(head: bytes) -> None:
    """Empty and cut messages, another field first, compression, a name above the limit."""
    assert model_name(head) == b""


def nested(message: bytes, depth: int) -> bytes:
    """`message`, `depth` times wrapped as field 1, with something behind it each time."""
    for _ in range(depth):
        message = b"\x0a" + bytes([len(message)]) + message + b"\x10\x01"
    return frame_message(message)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_nested_name_is_found_as_soon_as_it_is_there(depth: int) -> None:
    framed = nested(b"\x0a\x03abc\x12\x01z", depth)
    found = [nested_name(framed[:size], depth) for size in range(len(framed) + 1)]
    first = found.index(b"abc")
    assert set(found[:first]) == {None}
    assert set(found[first:]) == {b"abc"}
    assert framed[:first].endswith(b"abc")


@pytest.mark.parametrize(
    "framed",
    [
        b"\1\0\0\0\4\x0a\x02\x0a\x00",  # compressed
        frame_message(b""),
        frame_message(b"\x12\x02\x0a\x00"),  # another field first
        frame_message(b"\x0a\x00"),  # nothing within
        frame_message(b"\x0a\x05\x0a\x01x"),  # longer than the message
        frame_message(b"\x0a\x02\x0a\x07"),  # a name that is longer than what holds it
        frame_message(b"\x0a" + b"\xff" * 11),  # no length
        nested(b"\x0a\x7c" + b"x" * 124, 0).replace(b"\x0a\x7c", b"\x0a\x7d"),
    ],
)
def test_what_has_no_nested_name_is_unnamed(framed: bytes) -> None:
    assert nested_name(framed, 1) == b""


def test_a_nested_name_is_not_searched_for_ever() -> None:
    name = b"m" * (NAME_SEARCH_LIMIT + 1)
    field = b"\x0a" + bytes([len(name) & 0x7F | 0x80, len(name) >> 7]) + name
    assert nested_name(frame_message(field), 0) == b""
