"""Long messages in few pieces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.wire.pieces import LONG, MANY, join_short


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


@pytest.mark.parametrize("sizes", [[1], [1000], [100, 1], range(1000, 0, -1), [1] * 37 + [1000]])
def test_pieces_of_any_sizes_are_few_and_moved_a_few_times_only(sizes: Sequence[int]) -> None:
    pieces: list[bytes | memoryview] = [b"head"]
    sent = [bytes((number % 256,)) * sizes[number % len(sizes)] for number in range(10_000)]
    moved = 0
    for piece in sent:
        pieces.append(piece)
        before = {id(each) for each in pieces}
        join_short(pieces)
        moved += sum(len(each) for each in pieces if id(each) not in before)
        assert len(pieces) < 100
    assert b"".join(pieces) == b"head" + b"".join(sent)
    assert moved < 10 * sum(map(len, sent))


def test_no_join_moves_more_than_a_little() -> None:
    read = bytes(LONG)
    pieces: list[bytes | memoryview] = [read] * (3 * MANY)
    join_short(pieces)
    assert all(piece is read for piece in pieces)
    for size in (1000, *[LONG - 1] * 100, 5, 7):
        pieces.append(bytes(size))
        join_short(pieces)
    assert max(map(len, pieces)) < 2 * LONG


@given(st.lists(st.binary(max_size=40), max_size=400))
def test_nothing_is_lost_and_there_are_few_pieces(given_pieces: list[bytes]) -> None:
    pieces: list[bytes | memoryview] = []
    for piece in given_pieces:
        pieces.append(piece)
        join_short(pieces)
    assert b"".join(pieces) == b"".join(given_pieces)
    assert len(pieces) <= 2 * MANY
