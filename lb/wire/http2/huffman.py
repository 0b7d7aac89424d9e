"""Strings of header fields, decoded from their Huffman coding (RFC 7541 5.2) a byte at a time.

A row of the table says, for the bits that are left over and each next byte, which bits are left
over then and which characters became complete. Rows are made when they are first needed: text
needs about thirty of the 256, which all together take 6 MiB.
"""

from __future__ import annotations

from typing import Final

from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

_END_OF_STRING: Final = 256
_Node = list["_Node | int | None"]
"""Of the tree of codes: what a 0 and a 1 lead to, a symbol at last."""


class HuffmanError(ValueError):
    """The bytes are no Huffman coding: a code that does not exist, or wrong padding."""


class _Row(list["tuple[_Row, bytes] | None"]):
    """What each next byte comes to; None where that has not been asked yet."""

    def __init__(self, node: _Node, *, may_end: bool) -> None:
        super().__init__([None] * 256)
        self.node = node
        """Where in the tree the bits that are left over lead."""
        self.may_end = may_end
        """They may be padding: fewer than eight bits, all of them ones."""


def _tree() -> _Node:
    root: _Node = [None, None]
    for symbol, (code, length) in enumerate(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True)):
        node = root
        for bit in range(length - 1, 0, -1):
            side = code >> bit & 1
            below = node[side]
            if not isinstance(below, list):
                below = node[side] = [None, None]
            node = below
        node[code & 1] = symbol
    return root


def _rows() -> dict[int, _Row]:
    """The row of the empty remainder and those of paddings, by the identity of their nodes."""
    node = _tree()
    rows = {}
    for _ in range(8):
        rows[id(node)] = _Row(node, may_end=True)
        below = node[1]
        if not isinstance(below, list):
            raise TypeError("the code of eight ones is not the beginning of longer ones")
        node = below
    return rows


_ROWS: Final = _rows()
_START: Final = next(iter(_ROWS.values()))


def decode(data: bytes) -> bytes:
    """The string that `data` stands for.

    Raises:
        HuffmanError: it stands for none.
    """
    # HOT PATH (benchmarks/bench_http2_headers.py). Once per value that was not seen before; a
    # quarter of what the bit-wise reference takes.
    row = _START
    out: list[bytes] = []
    add = out.append
    for byte in data:
        step = row[byte]
        if step is None:
            step = _extend(row, byte)
        row, text = step
        add(text)
    if not row.may_end:
        raise HuffmanError("wrong padding")
    return b"".join(out)


def _extend(row: _Row, byte: int) -> tuple[_Row, bytes]:
    """Find out what `byte` comes to, and remember it."""
    node = row.node
    text = bytearray()
    for bit in range(7, -1, -1):
        below = node[byte >> bit & 1]
        if isinstance(below, list):
            node = below
        elif below is None or below == _END_OF_STRING:
            raise HuffmanError("no such code")
        else:
            text.append(below)
            node = _START.node
    found = _ROWS.get(id(node))
    if found is None:
        found = _ROWS[id(node)] = _Row(node, may_end=False)
    step = row[byte] = (found, bytes(text))
    return step
