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


_Row = list["tuple[_Row, bytes] | None"]
"""What each next byte comes to; None where that has not been asked yet."""


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


class _Table:
    """All rows that were needed so far."""

    __slots__ = ("_nodes", "_rows", "paddings", "start")

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        """Where in the tree the bits that are left over lead, by the identity of the row."""
        self._rows: dict[int, _Row] = {}
        """Rows by the identity of that node."""
        paddings = []
        node = _tree()
        self.start = self.row(node)
        for _ in range(8):
            paddings.append(id(self.row(node)))
            below = node[1]
            if not isinstance(below, list):
                raise TypeError("the code of eight ones is not the beginning of longer ones")
            node = below
        self.paddings = frozenset(paddings)
        """Identities of the rows whose bits may be padding: fewer than eight, all of them ones."""

    def row(self, node: _Node) -> _Row:
        """The row of the bits that lead to a node."""
        row = self._rows.get(id(node))
        if row is None:
            row = self._rows[id(node)] = [None] * 256
            self._nodes[id(row)] = node
        return row

    def node(self, row: _Row) -> _Node:
        """Where in the tree the bits of a row lead."""
        return self._nodes[id(row)]


_TABLE: Final = _Table()
_START: Final = _TABLE.start
_PADDINGS: Final = _TABLE.paddings


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
    if id(row) not in _PADDINGS:
        raise HuffmanError("wrong padding")
    return b"".join(out)


def _extend(row: _Row, byte: int) -> tuple[_Row, bytes]:
    """Find out what `byte` comes to, and remember it."""
    node = _TABLE.node(row)
    text = bytearray()
    for bit in range(7, -1, -1):
        below = node[byte >> bit & 1]
        if isinstance(below, list):
            node = below
        elif below is None or below == _END_OF_STRING:
            raise HuffmanError("no such code")
        else:
            text.append(below)
            node = _TABLE.node(_START)
    step = row[byte] = (_TABLE.row(node), bytes(text))
    return step
