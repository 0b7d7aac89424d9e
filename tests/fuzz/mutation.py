"""Changes to valid messages: what makes an input interesting is that most of it is right."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from hypothesis import strategies as st

from tests.fuzz.target import MAX_SIZE, Target

KINDS = 8


class Change(NamedTuple):
    """One edit. Numbers are taken modulo what there is, so that any of them will do."""

    kind: int
    at: int
    size: int
    word: bytes
    """Inserted, or written over what is there."""


def changed(data: bytes, change: Change) -> bytes:
    """Apply one edit."""
    kind, at, size, word = change
    at %= len(data) + 1
    size %= 40
    match kind % KINDS:
        case 0:
            return data[:at] + word + data[at:]
        case 1:
            return data[:at] + word + data[at + len(word) :]
        case 2:
            return data[:at] + data[at + size :]
        case 3:
            return data[:at] + data[at : at + size] * 2 + data[at + size :]
        case 4:
            return data[:at] + bytes((size,)) + data[at + 1 :]
        case 5 if at < len(data):
            return data[:at] + bytes((data[at] ^ 1 << size % 8,)) + data[at + 1 :]
        case 6:
            return _moved(data, at, size)
        case _:
            return data[:at]


def _moved(data: bytes, at: int, size: int) -> bytes:
    """A piece, rather a line, goes to the front or to the end."""
    end = data.find(b"\n", at) + 1 or at + size
    piece, rest = data[at:end], data[:at] + data[end:]
    return piece + rest if size % 2 else rest + piece


def mutated(data: bytes, changes: list[Change]) -> bytes:
    """Apply edits, within the size that generated inputs may have."""
    for change in changes:
        data = changed(data, change)
    return data[:MAX_SIZE]


def strategy(target: Target) -> st.SearchStrategy[bytes]:
    """Inputs for hypothesis."""
    words = st.binary(max_size=8) | st.sampled_from((*target.words, *target.seeds))
    numbers = st.integers(0, MAX_SIZE)
    changes = st.lists(
        st.builds(Change, st.integers(0, KINDS - 1), numbers, numbers, words), max_size=5
    )
    return st.builds(mutated, st.sampled_from(target.seeds), changes) | st.binary(max_size=200)


def random_change(target: Target, chance: Random) -> Change:
    """An edit for atheris, which chooses the data itself."""
    word = chance.choice((*target.words, *target.seeds, bytes((chance.randrange(256),))))
    return Change(
        chance.randrange(KINDS), chance.randrange(MAX_SIZE), chance.randrange(MAX_SIZE), word
    )
