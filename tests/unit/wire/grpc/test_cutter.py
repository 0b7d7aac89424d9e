"""Messages are told apart by their prefixes."""

from __future__ import annotations

from lb.wire.grpc.cutter import MessageCutter
from lb.wire.grpc.message import frame_message


def test_a_piece_ends_with_its_message() -> None:
    cutter = MessageCutter()
    stream = frame_message(b"one") + frame_message(b"") + frame_message(b"three")
    assert cutter.is_between
    assert cutter.advance(stream, 0) == 8
    assert cutter.is_between
    assert cutter.advance(stream, 8) == 13
    assert cutter.is_between
    assert cutter.advance(stream, 13) == len(stream)
    assert cutter.is_between


def test_within_a_prefix_and_within_a_message_it_is_not_between() -> None:
    cutter = MessageCutter()
    assert cutter.advance(b"\0\0", 0) == 2
    assert not cutter.is_between
    assert cutter.advance(memoryview(b"\0\0\x02a"), 0) == 4
    assert not cutter.is_between
    assert cutter.advance(b"bcd", 0) == 1
    assert cutter.is_between


def test_a_copy_goes_on_by_itself() -> None:
    cutter = MessageCutter()
    cutter.advance(frame_message(b"four")[:6], 0)
    twin = cutter.copy()
    assert twin.advance(b"our", 0) == 3
    assert twin.is_between
    assert not cutter.is_between
