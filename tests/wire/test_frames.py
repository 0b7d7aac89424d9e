"""Frames of the kit, against another implementation."""

from __future__ import annotations

import pytest
from hyperframe.frame import Frame

from tests.wire import frames


@pytest.mark.parametrize("step", [97, 1009, 16384, 100_000])
def test_frame_reader_finds_the_same_frames_at_every_split(step: int) -> None:
    sent = [
        (frames.SETTINGS, 0, 0, b""),
        (frames.HEADERS, frames.END_HEADERS, 1, b"x" * 300),
        (frames.DATA, frames.END_STREAM, 1, b"y" * 70_000),
        (frames.PING, frames.ACK, 0, b"12345678"),
    ]
    wire = b"".join(frames.frame(*each) for each in sent)
    reader = frames.FrameReader()
    found = [
        each
        for start in range(0, len(wire), step)
        for each in reader.feed(wire[start : start + step])
    ]
    assert found == sent


def test_frames_are_what_another_implementation_reads() -> None:
    wire = frames.frame(frames.DATA, frames.END_STREAM, 5, b"abc")
    parsed, length = Frame.parse_frame_header(memoryview(wire[:9]))
    parsed.parse_body(memoryview(wire[9:]))
    assert (type(parsed).__name__, parsed.stream_id, length) == ("DataFrame", 5, 3)
    assert parsed.data == b"abc"
    assert parsed.flags == {"END_STREAM"}
