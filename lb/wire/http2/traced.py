"""Heads of requests whose blocks differ only in their `traceparent`.

A client that is traced sends another `traceparent` each time. Everything else in its block is
often known, so the block is looked up without that value. Only blocks without a dynamic table may
be looked up: what they mean depends on nothing but their bytes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from lb.wire.cache import HeadCache
from lb.wire.http2 import huffman
from lb.wire.http2.fields import Field, passed_on, read_integer
from lb.wire.http2.heads import HeadFacts, RequestHead
from lb.wire.http2.huffman import HuffmanError
from lb.wire.trace_context import TRACEPARENT, TRACESTATE, parse_traceparent

_CODED: Final = 0x80
_LENGTH: Final = 0x7F
_VALUE_BYTES: Final = 55
"""Of a `traceparent` in version 00."""


class _Untraced(NamedTuple):
    """What blocks say beside their `traceparent`."""

    name: bytes
    """How it is written."""
    facts: HeadFacts
    before: bytes
    """What goes on before the `traceparent`; all of it if that is private."""
    after: bytes
    """What goes on behind it."""
    noted: tuple[tuple[bytes, bytes], ...]
    state: bytes
    """Value of the `tracestate`, if such fields are noted."""


def name_of(field: Field) -> bytes:
    """The bytes that stand for the name of a `traceparent` in a block."""
    length, at = read_integer(field.raw, 1, _LENGTH)
    return field.raw[: at + length]


class TracedHeads:
    """Heads by their blocks without the value of the `traceparent`, for all connections.

    The key of a block is all of it but the value and its length, so it has the name of the field.
    Where that stands first is where the value was. Blocks are read from their beginning. So if the
    field began there in the block that was learnt, it begins there in each block with the same key
    whose client writes the same name.
    """

    __slots__ = ("_heads", "_is_noted", "_is_private", "_private", "missed")

    def __init__(self, private: frozenset[bytes], noted: frozenset[bytes]) -> None:
        """The names are those of `HeadCaches`. A `traceparent` that is private is the head's
        `context`."""
        self._private = private
        self._is_private = TRACEPARENT in private
        self._is_noted = TRACEPARENT in noted
        self._heads: HeadCache[_Untraced] = HeadCache()
        self.missed = b""
        """The key of the last block, if it was not found; empty if it has none."""

    def __len__(self) -> int:
        return len(self._heads)

    def find(self, name: bytes, block: bytes) -> RequestHead | None:
        """The head of a block; None where the reference has to tell.

        Args:
            name: by which the client writes a `traceparent`, from `name_of`.
            block: a whole one.
        """
        # HOT PATH (benchmarks/bench_http2_headers.py). No field but the one is looked at.
        self.missed = b""
        start = block.find(name)
        at = start + len(name)
        if start < 0 or at >= len(block):
            return None
        length = block[at]
        end = at + 1 + (length & _LENGTH)
        key = block[:at] + block[end:]
        known = self._heads.get(key)
        if known is None:
            self.missed = key
            return None
        name_then, facts, before, after, noted, state = known
        value = block[at + 1 : end]
        if length & _CODED:
            try:
                value = huffman.decode(value)
            except HuffmanError:
                return None
        # What else the value has to be matters only to who reads it.
        if (
            name_then != name
            or end > len(block)
            or len(value) != _VALUE_BYTES
            or not value.replace(b"-", b"").isalnum()
        ):
            return None
        if self._is_noted:
            noted += ((TRACEPARENT, value),)
        if self._is_private:
            return RequestHead(facts, before, noted, parse_traceparent(value, state))
        return RequestHead(facts, before + block[start:end] + after, noted)

    def learn(self, key: bytes, head: RequestHead, fields: list[Field]) -> None:
        """Keep what a block says beside its `traceparent`.

        Args:
            key: that `find` missed.
            head: of the block. Its facts become those of all heads that are found by the key.
            fields: of the block, in order.
        """
        places = [place for place, field in enumerate(fields) if field.name == TRACEPARENT]
        if not head.facts.cacheable or head.facts.fault or len(places) != 1:
            return
        place = places[0]
        field = fields[place]
        name = name_of(field)
        raws = [each.raw for each in fields]
        others = b"".join([*raws[:place], name, *raws[place + 1 :]])
        if key != others or len(field.value) != _VALUE_BYTES or field.sent is not field.raw:
            return
        sent = head.block
        at = end = len(sent)
        if not self._is_private:
            at = len(passed_on(fields[:place], self._private))
            end = at + len(field.raw)
        noted = tuple(each for each in head.noted if each[0] != TRACEPARENT)
        state = b",".join([value for each, value in noted if each == TRACESTATE])
        self._heads.put(key, _Untraced(name, head.facts, sent[:at], sent[end:], noted, state))
