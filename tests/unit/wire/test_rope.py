"""A rope reads like the bytes that its pieces hold, and copies none of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.wire.rope import Rope, rope_of

PIECES = st.lists(st.binary(max_size=6), max_size=6)


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
