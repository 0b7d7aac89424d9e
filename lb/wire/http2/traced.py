"""Heads of requests whose blocks differ only in their `traceparent`.

A client that is traced sends another `traceparent` each time. Everything else in its block is
often known, so the block is looked up without that value. Only blocks without a dynamic table may
be looked up: what they mean depends on nothing but their bytes.
"""

from __future__ import annotations

from typing import Final

from lb.wire.cache import HeadCache
from lb.wire.http2 import huffman
from lb.wire.http2.fields import Field, passed_on, read_integer
from lb.wire.http2.heads import RequestHead
from lb.wire.http2.huffman import HuffmanError
from lb.wire.trace_context import TRACEPARENT, TRACESTATE, parse_traceparent

_CODED: Final = 0x80
_LENGTH: Final = 0x7F
_VALUE_BYTES: Final = 55
"""Of a `traceparent` in version 00."""


class Untraced:
    """What blocks say beside their `traceparent`."""

    __slots__ = (
        "_after", "_before", "_facts", "_is_noted", "_is_private", "_noted", "_rest", "_start",
        "_state",
    )  # fmt: skip

    def __init__(
        self,
        fields: list[Field],
        place: int,
        head: RequestHead,
        private: frozenset[bytes],
        *,
        is_noted: bool,
    ) -> None:
        """
        Args:
            fields: of one such block, in order.
            place: of the `traceparent` among them.
            head: of that block. Its facts become those of all heads.
            private: as in `HeadCaches`.
            is_noted: whether heads keep their `traceparent`.
        """
        raws = [field.raw for field in fields]
        name = name_of(fields[place])
        self._start = b"".join([*raws[:place], name])
        self._rest = b"".join(raws[place + 1 :])
        self._facts = head.facts
        self._is_private = TRACEPARENT in private
        self._is_noted = is_noted
        self._noted = tuple(each for each in head.noted if each[0] != TRACEPARENT)
        self._state = b",".join([value for each, value in self._noted if each == TRACESTATE])
        sent = head.block
        at = len(passed_on(fields[:place], private))
        self._before = sent if self._is_private else sent[: at + len(name)]
        """What goes on before the value of the `traceparent`; all of it if that is private."""
        self._after = sent[at + len(raws[place]) :]

    @property
    def key(self) -> bytes:
        """See `TracedHeads`."""
        return self._start + self._rest

    def head_of(self, block: bytes) -> RequestHead | None:
        """The head of a block that says the same; None for any other."""
        # HOT PATH (benchmarks/bench_http2_headers.py). No field but the one is looked at. Blocks
        # are read from their beginning, so the field is there if all before its value is known.
        start, rest = self._start, self._rest
        at = len(start)
        end = len(block) - len(rest)
        if at >= end or not block.startswith(start) or not block.endswith(rest):
            return None
        length = block[at]
        value = block[at + 1 : end]
        if length & _LENGTH != len(value):
            return None
        if length & _CODED:
            try:
                value = huffman.decode(value)
            except HuffmanError:
                return None
        if len(value) != _VALUE_BYTES:
            return None
        noted = self._noted
        if self._is_noted:
            noted += ((TRACEPARENT, value),)
        if self._is_private:
            context = parse_traceparent(value, self._state)
            if context is None:
                return None
            return RequestHead(self._facts, self._before, noted, context)
        # What else the value has to be matters only to who reads it.
        if not value.replace(b"-", b"").isalnum():
            return None
        return RequestHead(self._facts, self._before + block[at:end] + self._after, noted)


def name_of(field: Field) -> bytes:
    """The bytes that stand for the name of a `traceparent` in a block."""
    length, at = read_integer(field.raw, 1, _LENGTH)
    return field.raw[: at + length]


class TracedHeads:
    """What blocks say without the value of their `traceparent`, for all connections.

    The key of a block is all of it but the value and its length.
    """

    __slots__ = ("_found", "_is_noted", "_private", "missed")

    def __init__(self, private: frozenset[bytes], noted: frozenset[bytes]) -> None:
        """The names are those of `HeadCaches`. A `traceparent` that is private is the head's
        `context`."""
        self._private = private
        self._is_noted = TRACEPARENT in noted
        self._found: HeadCache[Untraced] = HeadCache()
        self.missed = b""
        """The key of the last block, if it was not found; empty if it has none."""

    def __len__(self) -> int:
        return len(self._found)

    def find(self, name: bytes, block: bytes) -> Untraced | None:
        """What a block seems to say beside its `traceparent`: `head_of` tells whether it does.

        Args:
            name: by which the client writes a `traceparent`, from `name_of`.
            block: a whole one.
        """
        # HOT PATH (benchmarks/bench_http2_headers.py). Clients write the field behind those that
        # gRPC sends itself, so it is looked for from the end.
        self.missed = b""
        start = block.rfind(name)
        at = start + len(name)
        if start < 0 or at >= len(block):
            return None
        key = block[:at] + block[at + 1 + (block[at] & _LENGTH) :]
        found = self._found.get(key)
        if found is None:
            self.missed = key
        return found

    def learn(self, key: bytes, head: RequestHead, fields: list[Field]) -> None:
        """Keep what a block says beside its `traceparent`.

        Args:
            key: that `find` missed.
            head: of the block, see `Untraced`.
            fields: of the block, in order.
        """
        places = [place for place, field in enumerate(fields) if field.name == TRACEPARENT]
        if not head.facts.cacheable or head.facts.fault or len(places) != 1:
            return
        field = fields[places[0]]
        if len(field.value) != _VALUE_BYTES or field.sent is not field.raw:
            return
        found = Untraced(fields, places[0], head, self._private, is_noted=self._is_noted)
        if found.key == key:
            self._found.put(key, found)
