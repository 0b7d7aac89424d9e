"""Sequences: requests of a stateful model that belong together (Triton's `sequence_batching`)."""

from __future__ import annotations

from typing import NamedTuple


class SequenceKey(NamedTuple):
    """What tells sequences apart. Triton counts the integer 77 and the string "77" as two."""

    model: bytes
    id: int | str


class SequenceStep(NamedTuple):
    """What one request says of its sequence."""

    key: SequenceKey
    is_start: bool = False
    is_end: bool = False
