"""A rope reads like the bytes that its pieces hold, and copies none of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.wire.rope import Held, Rope, Stored, in_memory, rope_of

PIECES = st.lists(st.binary(max_size=6), max_size=6)


class Elsewhere:
    """Bytes that a rope is not to read before somebody wants them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.reads = 0

    def __len__(self) -> int:
        return len(self._data)

    def part(self, begin: int, end: int) -> Elsewhere:
        return Elsewhere(self._data[begin:end])

    def followed_by(self, other: Stored) -> Stored | None:
        return None

    def read(self) -> bytes:
        self.reads += 1
        return self._data

    def send(self, fd: int) -> int:
        return 0


@given(PIECES, st.integers(0, 63), st.integers(0, 40), st.integers(0, 40))
def test_it_reads_alike_wherever_its_pieces_lie(
    pieces: list[bytes], places: int, begin: int, end: int
) -> None:
    held: list[Held] = [
        Elsewhere(piece) if places >> at & 1 else piece for at, piece in enumerate(pieces)
    ]
    text = b"".join(pieces)
    rope = Rope(held)
    assert [rope[at] for at in range(len(text))] == list(text)
    assert b"".join(in_memory(rope.pieces(begin, end))) == text[begin:end]
    assert b"".join(rope.views(begin, end)) == text[begin:end]
    assert rope.part(begin, end).joined() == text[begin:end]
    if begin + 4 <= len(text):
        assert rope.u32(begin) == int.from_bytes(text[begin : begin + 4], "little")


def test_what_lies_elsewhere_is_not_read_to_be_cut() -> None:
    stored = Elsewhere(b"0123456789")
    rope = Rope([b"ab", stored, b"c"])
    [whole] = rope.pieces(2, 12)
    [some] = rope.part(3, 7).pieces(0, 4)
    assert isinstance(whole, Elsewhere)
    assert isinstance(some, Elsewhere)
    assert (len(whole), len(some)) == (10, 4)
    assert whole.reads == some.reads == stored.reads == 0
    assert rope.read(3, 7) == b"1234"


@given(PIECES, st.integers(0, 40), st.integers(0, 40))
def test_it_reads_like_its_bytes(pieces: list[bytes], begin: int, end: int) -> None:
    text = b"".join(pieces)
    rope = Rope(pieces)
    assert len(rope) == len(text)
    assert [rope[at] for at in reversed(range(len(text)))] == list(reversed(text))
    assert rope.read(begin, end) == text[begin:end]
    assert rope.part(begin, end).joined() == text[begin:end]
    if begin + 4 <= len(text):
        assert rope.u32(begin) == int.from_bytes(text[begin : begin + 4], "little")


def test_what_is_beyond_it_is_an_error() -> None:
    rope = Rope([b"ab", b"", b"c"])
    for at in (-1, 3):
        with pytest.raises(IndexError):
            rope[at]
    with pytest.raises(IndexError):
        rope.u32(3)


def test_views_are_of_the_same_buffers() -> None:
    first, second = b"0123456789", b"abcdefghij"
    views = Rope([first, second]).views(5, 12)
    assert [view.obj for view in views] == [first, second]
    assert views[0].obj is first
    assert [bytes(view) for view in views] == [b"56789", b"ab"]


def test_bytes_may_be_given_as_they_are() -> None:
    rope = Rope([b"a"])
    assert rope_of(rope) is rope
    assert rope_of(b"ab").joined() == b"ab"
