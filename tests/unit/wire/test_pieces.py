"""Long messages in few pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lb.wire.pieces import MANY, join_short


def test_few_pieces_are_left_alone() -> None:
    pieces: list[bytes | memoryview] = [b"a"] * MANY
    join_short(pieces)
    assert pieces == [b"a"] * MANY


def test_a_long_message_is_moved_a_few_times_only() -> None:
    pieces: list[bytes | memoryview] = []
    moved = 0
    for _ in range(20_000):
        pieces.append(b"abcdefgh")
        before = {id(piece) for piece in pieces}
        join_short(pieces)
        moved += sum(len(piece) for piece in pieces if id(piece) not in before)
    assert b"".join(pieces) == b"abcdefgh" * 20_000
    assert len(pieces) <= MANY
    assert moved < 10 * 160_000


@given(st.lists(st.binary(max_size=40), max_size=400))
def test_nothing_is_lost_and_there_are_few_pieces(given_pieces: list[bytes]) -> None:
    pieces: list[bytes | memoryview] = []
    for piece in given_pieces:
        pieces.append(piece)
        join_short(pieces)
    assert b"".join(pieces) == b"".join(given_pieces)
    assert len(pieces) <= 2 * MANY
