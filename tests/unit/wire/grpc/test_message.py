"""Message prefixes, and the model's name at the start of a message."""

from __future__ import annotations

import pytest

from lb.kserve import inference_pb2 as pb
from lb.wire.grpc.message import NAME_SEARCH_LIMIT, MessageMeter, frame_message, model_name


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
