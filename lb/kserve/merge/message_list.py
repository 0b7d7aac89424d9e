"""Reads and writes, in steps, a protobuf message that is mostly one repeated field of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message

from lb.kserve.merge.steps import LongText, Pace, Steps
from lb.wire.protobuf import BYTES, FieldBudget, fields, write_varint

_MAX_FIELDS: Final = 2**18
"""Fields of one answer: ten thousand models with some versions each are below a tenth of it."""
_FIELD_WORK: Final = 32
"""What a field costs to be found, in bytes that a step may read."""


@dataclass(frozen=True, slots=True)
class MessageList:
    """An answer, and where its entries lie."""

    body: bytes
    spans: list[tuple[int, int]]
    """Where each entry begins and ends."""
    others: bytes
    """All other fields, as they came."""


def read_list(body: bytes, number: int, max_entry: int) -> Steps[MessageList]:
    """Find the entries of an answer.

    Args:
        body: the message.
        number: of the repeated field.
        max_entry: bytes that one entry may have.

    Raises:
        ValueError: it is malformed, or has too many fields, or too long ones.
    """
    spans: list[tuple[int, int]] = []
    others = []
    at = 0
    pace = Pace()
    for name, kind, begin, end in fields(body, budget=FieldBudget(_MAX_FIELDS)):
        if end - begin > max_entry:
            raise ValueError("the answer is too long to be merged")
        if name == number and kind == BYTES:
            spans.append((begin, end))
        else:
            others.append(body[at:end])
        at = end
        if pace.count(_FIELD_WORK):
            yield
    return MessageList(body, spans, b"".join(others))


class ListWriter:
    """Writes such a message."""

    def __init__(self, number: int) -> None:
        self._tag = bytes(((number << 3) | BYTES,))
        self._text = LongText()
        self._pace = Pace()

    def add(self, entry: Message) -> bool:
        """Write an entry. True when the step should end."""
        encoded = entry.SerializeToString(deterministic=True)
        self._text.add(self._tag, write_varint(len(encoded)), encoded)
        return self._pace.count(len(encoded) + _FIELD_WORK)

    def finish(self, others: bytes) -> bytes:
        """The message, with its other fields."""
        return self._text.finish(b"", others)
