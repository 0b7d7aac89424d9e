"""Sequences are told apart as Triton does it."""

from __future__ import annotations

from lb.domain.sequence import SequenceKey


def test_the_type_of_an_id_is_part_of_it() -> None:
    keys = {SequenceKey(b"m", 77), SequenceKey(b"m", "77"), SequenceKey(b"n", 77)}
    assert len(keys) == 3
    assert SequenceKey(b"m", 77) in keys
