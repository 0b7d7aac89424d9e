"""Heads of requests that begin like earlier ones: most of a block that never repeats does repeat.

Clients write what is alike in all their requests first, and behind it what differs: `grpc-timeout`,
`traceparent`. What the common fields say is worked out once, and of each block only the rest is
read. Blocks with anything unusual in their rest are left to `build_request`, the reference.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from lb.wire.grpc.timeout import parse_timeout
from lb.wire.http2 import fields as f
from lb.wire.http2.fields import (
    ENTRY_OVERHEAD,
    Field,
    decode_literal,
    is_value,
    passed_on,
    read_integer,
    read_string,
)
from lb.wire.http2.frames import Http2Error, StreamError
from lb.wire.http2.heads import (
    BAD_BINARY,
    BAD_TIMEOUT,
    TE_TRAILERS,
    HeadFacts,
    RequestHead,
    build_request,
    is_base64,
    is_grpc_type,
)

_ENTRIES: Final = 256
"""Beginnings that are remembered, and names of fields."""
_NAME_BYTES: Final = 64
"""Fields with longer names are left to the reference."""
_SEEN_ONCE: Final = 8192
"""Blocks that are remembered to have come once."""
_IN_REST: Final = frozenset({
    f.OTHER, f.GRPC_TIMEOUT, f.REQUEST_ID, f.CONTENT_TYPE, f.TE, f.HOPS, f.BINARY,
})  # fmt: skip
"""Kinds of fields that may stand behind a beginning."""


class _Name(NamedTuple):
    """What the bytes that stand for a name tell of the field."""

    kind: int
    size: int
    """Of the name, and of the overhead of the field."""
    never_indexed: bool
    noted: bytes
    """The name, if the owner of the cache wants to see such fields."""
    is_cut: bool
    """The field does not go on. It is noted."""


class Beginning:
    """What the fields say that a block begins with."""

    __slots__ = ("block", "facts", "has_te", "kept", "noted")

    def __init__(
        self,
        block: bytes,
        facts: HeadFacts,
        noted: tuple[tuple[bytes, bytes], ...],
        kept: bytes | None,
        has_te: bool,
    ) -> None:
        self.block = block
        self.facts = facts
        """As if there were no other fields."""
        self.noted = noted
        """The fields of it that the owner of the cache wants to see."""
        self.kept = kept
        """What of `block` goes on; None where it is all."""
        self.has_te = has_te


class Beginnings:
    """Those of all connections of a process."""

    __slots__ = ("_added", "_beginnings", "_cuts", "_names", "_noted", "_once", "_private")

    def __init__(
        self, private: frozenset[bytes], noted: frozenset[bytes], added: bytes = b""
    ) -> None:
        """The arguments are those of `HeadCaches`."""
        self._private = private
        self._added = added
        self._noted = noted
        self._beginnings: dict[bytes, Beginning] = {}
        self._names: dict[bytes, _Name | None] = {}
        """None where a field of that name needs a second look."""
        self._once: set[int] = set()
        self._cuts: list[tuple[int, int]] = []
        """Where the fields of the block at hand stand that do not go on; empty between blocks."""

    def __len__(self) -> int:
        return len(self._beginnings) + len(self._names) + len(self._once)

    def came_before(self, block: bytes) -> bool:
        """Whether a block was seen lately; notes that it is seen now.

        To keep every head would cost more than to build it, where none of them repeats.
        """
        once = self._once
        key = hash(block)
        if key in once:
            return True
        if len(once) >= _SEEN_ONCE:
            once.clear()
        once.add(key)
        return False

    def learn(self, fields: list[Field], block: bytes, before: bytes) -> Beginning | None:
        """The fields that two blocks of a connection begin with.

        Args:
            fields: of the later block, in order.
            block: that block.
            before: the earlier one.

        Returns:
            None where they are too few for a head.
        """
        stop = count = 0
        has_te = False
        for field in fields:
            if field.never_indexed or not before.startswith(field.raw, stop):
                break
            stop += len(field.raw)
            count += 1
            has_te = has_te or field.kind == f.TE
        start = block[:stop]
        found = self._beginnings.get(start)
        if found is not None:
            return found
        common = fields[:count]
        try:
            facts = build_request(common, start, self._private).facts
        except StreamError:
            return None
        noted = tuple((each.name, each.value) for each in common if each.name in self._noted)
        kept = passed_on(common, self._private)
        found = Beginning(start, facts, noted, None if kept == start else kept, has_te)
        if len(self._beginnings) >= _ENTRIES:
            self._beginnings.clear()
        self._beginnings[start] = found
        return found

    def complete(self, beginning: Beginning, block: bytes) -> RequestHead | None:
        """The head of a block that begins so; None where the reference has to tell."""
        # HOT PATH (benchmarks/bench_http2_headers.py). One pass over the rest, no object per
        # field: a fifth of what `FieldCache.split` and `build_request` take.
        head = RequestHead(HeadFacts(beginning.facts), block, beginning.noted)
        try:
            has_te = self._read_rest(head, block, len(beginning.block), has_te=beginning.has_te)
        except (IndexError, Http2Error):
            has_te = None
        if self._cuts:
            for start, stop in reversed(self._cuts):
                block = block[:start] + block[stop:]
            self._cuts.clear()
        if has_te is None:
            return None
        kept = beginning.kept
        if kept is not None:
            block = kept + block[len(beginning.block) :]
        head.block = block + (self._added if has_te else TE_TRAILERS + self._added)
        return head

    def _read_rest(  # the fence
        self, head: RequestHead, block: bytes, pos: int, *, has_te: bool
    ) -> bool | None:
        """Take the fields from `pos` on into a head. Returns whether there is a `te` now; None
        where the reference has to tell."""
        # HOT PATH (benchmarks/bench_http2_headers.py). See `complete`.
        end = len(block)
        names = self._names
        facts = head.facts
        size = facts.size
        count = facts.count
        while pos < end:
            start = pos
            first = block[pos]
            mask = 0x3F if first & 0x40 else 0x0F
            if first & 0x80 or first & 0x60 == 0x20:
                return None
            if not first & mask:
                length = block[pos + 1]
                pos += 2 + (length & 0x7F)
                if length & 0x7F == 0x7F:
                    return None
            elif first & mask == mask:
                _, pos = read_integer(block, pos, mask)
            else:
                pos += 1
            raw_name = block[start:pos]
            try:
                name = names[raw_name]
            except KeyError:
                name = self._learn_name(raw_name)
            if name is None:
                return None
            length = block[pos]
            if length < 0x7F:
                pos += 1
                value = block[pos : pos + length]
                pos += length
            else:
                value, pos = read_string(block, pos)
            kind, name_size, never_indexed, noted, is_cut = name
            if pos > end or is_value(value) is None:
                return None
            size += name_size + len(value)
            count += 1
            if never_indexed:
                facts.cacheable = False
            if noted:
                head.noted += ((noted, value),)
                if is_cut:
                    self._cuts.append((start, pos))
            if kind:
                if kind == f.TE:
                    if has_te:
                        return None
                    has_te = True
                if not _take(facts, kind, value):
                    return None
        facts.size = size
        facts.count = count
        return has_te

    def _learn_name(self, raw_name: bytes) -> _Name | None:
        """Find out what fields are whose names are written so."""
        if len(raw_name) > _NAME_BYTES:
            return None
        field = decode_literal(raw_name + b"\0")  # with an empty value
        found = None
        is_private = field.name.replace(b"_", b"-") in self._private
        noted = field.name if field.name in self._noted else b""
        if field.kind in _IN_REST and (noted or not is_private):
            size = len(field.name) + ENTRY_OVERHEAD
            found = _Name(field.kind, size, field.never_indexed, noted, is_private)
        if len(self._names) >= _ENTRIES:
            self._names.clear()
        self._names[raw_name] = found
        return found


def _take(facts: HeadFacts, kind: int, value: bytes) -> bool:
    """Take in a field of the kinds that mean something. False where the reference has to tell."""
    if kind == f.GRPC_TIMEOUT:
        facts.timeout_s = timeout_s = parse_timeout(value)
        if timeout_s is None:
            facts.unusable = BAD_TIMEOUT
    elif kind == f.REQUEST_ID:
        facts.request_id = value
    elif kind == f.CONTENT_TYPE:
        facts.is_grpc = is_grpc_type(value)
    elif kind == f.HOPS:
        facts.hops += value + b","
    elif kind == f.BINARY:
        if is_base64(value) is None:
            facts.unusable = BAD_BINARY
    else:
        return value == b"trailers"
    return True
