"""A plain reader of self-contained header blocks: RFC 7541 section 6 as it stands."""

from __future__ import annotations

from typing import NamedTuple

from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

STATIC = [(bytes(name), bytes(value)) for name, value in HeaderTable.STATIC_TABLE]


class BadBlock(Exception):
    """The block cannot be decoded."""


class PlainField(NamedTuple):
    """One field."""

    name: bytes
    value: bytes
    never_indexed: bool
    raw: bytes


class _Reader:
    """Takes bytes off the front of a block."""

    def __init__(self, block: bytes) -> None:
        self.block = block
        self.pos = 0

    def byte(self) -> int:
        if self.pos >= len(self.block):
            raise BadBlock
        self.pos += 1
        return self.block[self.pos - 1]

    def integer(self, first: int, bits: int) -> int:
        """5.1; more than four continuation bytes are refused."""
        limit = (1 << bits) - 1
        value = first & limit
        if value < limit:
            return value
        for place in range(4):
            byte = self.byte()
            value += (byte & 127) << 7 * place
            if byte < 128:
                return value
        raise BadBlock

    def string(self) -> bytes:
        """5.2."""
        first = self.byte()
        length = self.integer(first, 7)
        text = self.block[self.pos : self.pos + length]
        if len(text) < length:
            raise BadBlock
        self.pos += length
        if first < 128:
            return text
        try:
            return bytes(decode_huffman(text))
        except Exception as error:  # the library raises several
            raise BadBlock from error


def split(block: bytes) -> list[PlainField]:
    """The fields of a block that refers to no dynamic table and updates no table size.

    Raises:
        BadBlock: it cannot be decoded.
    """
    reader = _Reader(block)
    fields = []
    while reader.pos < len(block):
        start = reader.pos
        first = reader.byte()
        if first >= 0x80:
            index = reader.integer(first, 7)
            if not 1 <= index <= len(STATIC):
                raise BadBlock
            name, value = STATIC[index - 1]
        elif 0x20 <= first < 0x40:
            raise BadBlock
        else:
            index = reader.integer(first, 6 if first >= 0x40 else 4)
            if index > len(STATIC):
                raise BadBlock
            name = STATIC[index - 1][0] if index else reader.string()
            value = reader.string()
        never_indexed = 0x10 <= first < 0x20
        fields.append(PlainField(name, value, never_indexed, block[start : reader.pos]))
    return fields
