"""Walk over the fields of a protobuf message that stays undecoded.

Source: "Encoding" of the Protocol Buffers documentation. Only tags and lengths are read, and
payload is skipped by its length, so a walk costs as much as the message has fields. How many it may
have is limited, since compressed a thousand take a few bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lb.wire.rope import Rope

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
"""Strings, bytes, messages and packed numbers."""
_GROUP: Final = 3
_GROUP_END: Final = 4
FIXED32: Final = 5
_FIXED: Final = {FIXED64: 8, FIXED32: 4}

_VARINT_BYTES: Final = 10
_GROUP_DEPTH: Final = 100
"""As deep as protobuf's own parsers go."""
MAX_FIELDS: Final = 4096
"""Fields of one walk, unless its caller says otherwise: 1 to 2 ms."""
_U64: Final = 2**64 - 1

Field = tuple[int, int, int, int]
"""Number, wire type, and where its value starts and ends: a varint is to be read by `varint`."""


class ProtobufError(ValueError):
    """The bytes are no message: no server can parse it either."""


class TooManyFields(ProtobufError):
    """The message has more fields than are looked at, so nobody knows what the others say."""


class FieldBudget:
    """How many fields may be walked over: of a message, and of the messages within it."""

    __slots__ = ("left",)

    def __init__(self, left: int = MAX_FIELDS) -> None:
        self.left = left


def fields(
    message: bytes | memoryview | Rope,
    start: int = 0,
    end: int | None = None,
    budget: FieldBudget | None = None,
) -> Iterator[Field]:
    """The fields of a message in the order in which they stand.

    Groups, which proto3 does not have, are skipped with all that is in them.

    Args:
        message: what it lies in.
        start: where it begins.
        end: where it ends; None is the end of the bytes.
        budget: shared by several walks; None is one of `MAX_FIELDS` for this walk.

    Raises:
        ProtobufError: it is malformed from here on. What was given before is right.
        TooManyFields: the budget is used up.
    """
    if end is None:
        end = len(message)
    if budget is None:
        budget = FieldBudget()
    at = start
    groups: list[int] = []
    while at < end:
        if budget.left <= 0:
            raise TooManyFields("too many fields")
        budget.left -= 1
        tag = message[at]
        at += 1
        if tag & 0x80:
            tag, at = varint(message, at - 1, end)
        number, kind = tag >> 3, tag & 7
        begin = at
        if kind == BYTES:
            size, begin = varint(message, at, end)
            at = begin + size
        elif kind == VARINT:
            _, at = varint(message, at, end)
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:
            _follow_group(groups, kind, number)
            continue
        if not number or number >> 29 or at > end:
            raise ProtobufError("impossible tag or length")
        if not groups:
            yield number, kind, begin, at
    if groups:
        raise ProtobufError("a group does not end")


def _follow_group(groups: list[int], kind: int, number: int) -> None:
    if kind == _GROUP and number and len(groups) < _GROUP_DEPTH:
        groups.append(number)
    elif kind == _GROUP_END and groups and groups[-1] == number:
        groups.pop()
    else:
        raise ProtobufError("unknown wire type")


def varint(message: bytes | memoryview | Rope, at: int, end: int) -> tuple[int, int]:
    """An unsigned number of up to 64 bits, and where it ends.

    Raises:
        ProtobufError: it is cut off, or too long.
    """
    value = shift = 0
    for place in range(at, min(end, at + _VARINT_BYTES)):
        byte = message[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _U64, place + 1
        shift += 7
    raise ProtobufError("a number is cut off or too long")


def write_varint(number: int) -> bytes:
    """Encode a number that is not negative: what `varint` reads."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def write_bytes(number: int, value: bytes) -> bytes:
    """A field with a string, bytes or a message; its number is 15 at most."""
    return bytes((number << 3 | BYTES,)) + write_varint(len(value)) + value
