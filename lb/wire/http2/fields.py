"""Header fields as they stand in a block (RFC 7541 section 6), decoded one by one and cached.

We advertise a dynamic table of size 0. Once the peer has acknowledged that, every field
representation is self-contained: the same bytes always mean the same field. So a field is
decoded and validated once, and its raw bytes are what goes on to the other side. Until the
acknowledgement (`hpack.Decoder`, a table of 4,096 bytes) blocks are decoded the plain way.
"""

from __future__ import annotations

import re
from typing import Final

from hpack import HeaderTuple, NeverIndexedHeaderTuple
from hpack.table import HeaderTable

from lb.wire import field_names, hops
from lb.wire.http2 import huffman
from lb.wire.http2.frames import ErrorCode, Http2Error
from lb.wire.http2.huffman import HuffmanError
from lb.wire.target import ORIGIN_FORM, escaped

OTHER: Final = 0
METHOD: Final = 1
SCHEME: Final = 2
PATH: Final = 3
AUTHORITY: Final = 4
STATUS: Final = 5
UNKNOWN_PSEUDO: Final = 6
LAST_PSEUDO: Final = 6
CONNECTION: Final = 7
"""A field of HTTP/1.1 connections: makes a message malformed (RFC 9113 8.2.2)."""
MALFORMED: Final = 8
"""A name or value that RFC 9113 8.2.1 forbids."""
TE: Final = 9
CONTENT_TYPE: Final = 10
CONTENT_LENGTH: Final = 11
GRPC_TIMEOUT: Final = 12
GRPC_STATUS: Final = 13
REQUEST_ID: Final = 14
HOST: Final = 15
DROPPED: Final = 16
"""A request field that no backend sees, see `lb.wire.field_names`."""
GRPC_MESSAGE: Final = 17
HOPS: Final = 18
"""The hop marker, see `lb.wire.hops`."""
BINARY: Final = 19
"""Metadata whose value gRPC has in base64: its name says so."""
NOT_RUN: Final = 20
"""What another balancer says of a request, see `lb.wire.hops`."""

_KINDS: Final = {
    b":method": METHOD,
    b":scheme": SCHEME,
    b":path": PATH,
    b":authority": AUTHORITY,
    b":status": STATUS,
    b"connection": CONNECTION,
    b"proxy-connection": CONNECTION,
    b"keep-alive": CONNECTION,
    b"transfer-encoding": CONNECTION,
    b"upgrade": CONNECTION,
    b"te": TE,
    b"content-type": CONTENT_TYPE,
    b"content-length": CONTENT_LENGTH,
    b"grpc-timeout": GRPC_TIMEOUT,
    b"grpc-status": GRPC_STATUS,
    b"x-request-id": REQUEST_ID,
    b"host": HOST,
    b"grpc-message": GRPC_MESSAGE,
    hops.HOPS: HOPS,
    hops.NOT_RUN: NOT_RUN,
    **dict.fromkeys(field_names.DROPPED, DROPPED),
}
_PATH: Final = re.compile(ORIGIN_FORM)
_NAME: Final = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+")
is_value: Final = re.compile(rb"(?![ \t])[^\0\r\n]*(?<![ \t])").fullmatch
"""What RFC 9113 8.2.1 allows; None for anything else."""
_CACHE_ENTRIES: Final = 4096
_CACHED_FIELD_SIZE: Final = 512
ENTRY_OVERHEAD: Final = 32
"""RFC 7541 4.1: what a field counts for beside its bytes."""


class Field:
    """One header field and the bytes that represent it without a dynamic table."""

    __slots__ = ("kind", "name", "never_indexed", "raw", "sent", "size", "value")

    def __init__(self, name: bytes, value: bytes, raw: bytes, *, never_indexed: bool) -> None:
        self.name = name
        self.raw = raw
        """As it came."""
        self.sent = raw
        """What goes on: the same object, or another one if the value was edited."""
        self.never_indexed = never_indexed
        self.size = len(name) + len(value) + ENTRY_OVERHEAD
        is_bad = is_value(value) is None
        if is_bad and not name.startswith(b":"):
            # gRPC libraries let their users send white space around a value; RFC 9110 5.5 says
            # that it is not part of it.
            value = value.strip(b" \t")
            is_bad = is_value(value) is None
            self.sent = encode_field(name, value, never_indexed=never_indexed)
        self.value = value
        if is_bad or _NAME.fullmatch(name) is None:
            self.kind = MALFORMED
        else:
            kind = _KINDS.get(name, OTHER)
            if kind == OTHER:
                if name.startswith(b":"):
                    kind = UNKNOWN_PSEUDO
                elif name[-4:] == b"-bin":
                    kind = BINARY
            elif kind == PATH and not value.isascii() and _PATH.fullmatch(value) is not None:
                self.value = escaped(value)
                self.sent = encode_field(name, self.value, never_indexed=never_indexed)
            self.kind = kind

    def __repr__(self) -> str:
        return f"<Field {self.name!r}: {b'...' if self.never_indexed else self.value!r}>"


def _prefixed(value: int, bits: int, first: int) -> bytes:
    limit = (1 << bits) - 1
    if value < limit:
        return bytes((first | value,))
    out = bytearray((first | limit,))
    value -= limit
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_field(name: bytes, value: bytes, *, never_indexed: bool = False) -> bytes:
    """A literal without indexing, name and value as they are (RFC 7541 6.2.2, 6.2.3)."""
    first = b"\x10" if never_indexed else b"\0"
    return first + _prefixed(len(name), 7, 0) + name + _prefixed(len(value), 7, 0) + value


def field_of(header: HeaderTuple) -> Field:
    """A field from what `hpack.Decoder.decode(raw=True)` gives."""
    name, value = bytes(header[0]), bytes(header[1])
    never = isinstance(header, NeverIndexedHeaderTuple)
    return Field(name, value, encode_field(name, value, never_indexed=never), never_indexed=never)


def passed_on(fields: list[Field], private: frozenset[bytes]) -> bytes:
    """What of a request's block goes on to a backend.

    Args:
        fields: of the block, in order.
        private: names that are dropped, in lower case and with hyphens, which here also stand
            for underscores.
    """
    return b"".join([
        field.sent
        for field in fields
        if field.kind != DROPPED and field.name.replace(b"_", b"-") not in private
    ])  # fmt: skip


def _broken(detail: str) -> Http2Error:
    return Http2Error(ErrorCode.COMPRESSION_ERROR, detail)


_STATIC: Final = tuple((bytes(name), bytes(value)) for name, value in HeaderTable.STATIC_TABLE)
STATIC_FIELDS: Final = (
    None,
    *(
        Field(name, value, bytes((0x80 | index,)), never_indexed=False)
        for index, (name, value) in enumerate(_STATIC, 1)
    ),
)


def read_integer(block: bytes, pos: int, mask: int) -> tuple[int, int]:
    """Value and the position after it (RFC 7541 5.1); at most four continuation bytes.

    Raises:
        Http2Error: more of them.
        IndexError: the block ends before it does.
    """
    value = block[pos] & mask
    pos += 1
    if value < mask:
        return value, pos
    shift = 0
    while True:
        byte = block[pos]
        pos += 1
        value += (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, pos
        shift += 7
        if shift > 21:
            raise _broken("integer too large")


def read_string(block: bytes, pos: int) -> tuple[bytes, int]:
    """A string, decoded, and the position after it (RFC 7541 5.2). Raises as `read_integer`."""
    is_coded = block[pos] & 0x80
    length, pos = read_integer(block, pos, 0x7F)
    end = pos + length
    if end > len(block):
        raise _broken("string runs past its block")
    text = block[pos:end]
    return (_inflate(text) if is_coded else text), end


def _inflate(text: bytes) -> bytes:
    try:
        return huffman.decode(text)
    except HuffmanError as error:
        raise _broken("bad Huffman coding") from error


def decode_literal(raw: bytes) -> Field:
    """A field from its literal representation (RFC 7541 6.2). Raises as `read_integer`."""
    first = raw[0]
    index, pos = read_integer(raw, 0, 0x3F if first & 0x40 else 0x0F)
    if index:
        if index > len(_STATIC):
            raise _broken("reference to the dynamic table, whose size is 0")
        name = _STATIC[index - 1][0]
    else:
        name, pos = read_string(raw, pos)
    value, _ = read_string(raw, pos)
    return Field(name, value, raw, never_indexed=first & 0xF0 == 0x10)


def skip_size_updates(block: bytes) -> int:
    """Where the fields begin: after the table size updates that a block may start with.

    Raises:
        Http2Error: an update above the size of 0 that we advertised (RFC 7541 6.3), or cut off.
    """
    pos = 0
    while pos < len(block) and block[pos] & 0xE0 == 0x20:
        try:
            size, pos = read_integer(block, pos, 0x1F)
        except IndexError:
            raise _broken("block ends inside a table size update") from None
        if size:
            raise _broken("table size update above our limit")
    return pos


class FieldCache:
    """Fields by their representation, for all connections. Two generations bound it."""

    __slots__ = ("_new", "_old")

    def __init__(self) -> None:
        self._new: dict[bytes, Field] = {}
        self._old: dict[bytes, Field] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def split(self, block: bytes) -> list[Field]:  # the fence
        """The fields of a self-contained block without leading size updates.

        Raises:
            Http2Error: COMPRESSION_ERROR.
        """
        # HOT PATH (benchmarks/bench_http2_headers.py). Finds where each field ends without
        # decoding it, and looks its bytes up: about half a microsecond a field where the hpack
        # library takes ten. One-byte lengths are read in line.
        fields: list[Field] = []
        append = fields.append
        get = self._new.get
        pos = 0
        end = len(block)
        try:
            while pos < end:
                first = block[pos]
                if first & 0x80:
                    if not 0x80 < first <= 0xBD:
                        raise _broken("indexed field outside the static table")
                    append(STATIC_FIELDS[first & 0x7F])  # type: ignore[arg-type]  # 0 is excluded
                    pos += 1
                    continue
                start = pos
                if first & 0x60 == 0x20:
                    raise _broken("table size update after a field")
                mask = 0x3F if first & 0x40 else 0x0F
                if first & mask == mask:
                    _, pos = read_integer(block, pos, mask)
                elif first & mask:
                    pos += 1
                else:
                    length = block[pos + 1] & 0x7F
                    if length == 0x7F:
                        length, pos = read_integer(block, pos + 1, 0x7F)
                        pos += length
                    else:
                        pos += 2 + length
                length = block[pos] & 0x7F
                if length == 0x7F:
                    length, pos = read_integer(block, pos, 0x7F)
                    pos += length
                else:
                    pos += 1 + length
                raw = block[start:pos]
                append(get(raw) or self._miss(raw))
        except IndexError:
            raise _broken("block ends inside a field") from None
        if pos != end:
            raise _broken("string runs past its block")
        return fields

    def _miss(self, raw: bytes) -> Field:
        field = self._old.get(raw)
        if field is None:
            field = decode_literal(raw)
            if field.never_indexed or len(raw) > _CACHED_FIELD_SIZE:
                return field
        if len(self._new) >= _CACHE_ENTRIES:
            # `split` holds a bound `get` of the dictionary in use, so clear the older one and
            # swap contents rather than objects.
            self._old = dict(self._new)
            self._new.clear()
        self._new[raw] = field
        return field
