"""Header blocks (RFC 7541): rows K of the corpus. No decoder may accept the broken ones, whether a
dynamic table is in use (rows ending in t: our table of 0 is not acknowledged yet) or not."""
# ruff: noqa: E501  # a row is a line where it can be

from __future__ import annotations

from dataclasses import replace

from hpack import Encoder

from tests.corpus.http2_row import (
    END,
    HEAD,
    ONE,
    TWO,
    GoAway,
    Row,
    Status,
    fields,
)
from tests.wire.frames import (
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    FieldPair,
    continuation,
    data,
    headers,
    literal,
    literals,
    named,
)

BROKEN_LOST = GoAway(COMPRESSION_ERROR)


def _broken(id_: str, about: str, tail: bytes, source: str, *, alone: bool = False) -> Row:
    """A good head and something broken behind it, or that `alone`."""
    return Row(id_, about, headers(1, tail if alone else HEAD + tail), BROKEN_LOST, source)


BROKEN = [
    _broken("K-1", "integer overflow", b"\xff" * 10, "RFC 7541 5.1", alone=True),
    _broken("K-1a", "an integer of 60,000 bytes", b"\xff" * 60_000, "RFC 7541 5.1", alone=True),
    _broken("K-1b", "an integer of many zeros", b"\xff" + 20 * b"\x80" + b"\0", "RFC 7541 5.1", alone=True),
    _broken("K-1c", "a string of 2^40 bytes", b"\0\x7f\x81\xff\xff\xff\xff\x1fx", "RFC 7541 5.1"),
    _broken("K-2", "index 0", b"\x80", "RFC 7541 6.1"),
    _broken("K-3", "an index outside the table", b"\xff\x20", "RFC 7541 2.3.3"),
    _broken("K-3a", "the first index behind the static table", b"\xbe", "RFC 7541 2.3.3"),
    _broken("K-3b", "a name outside the table", b"\x7f\x20\x01x", "RFC 7541 2.3.3"),
    _broken("K-3c", "a name outside the table, never indexed", b"\x1f\x31\x01x", "RFC 7541 2.3.3"),
    _broken("K-4", "a table size above what we allow", b"\x3f\xe1\xff\x03" + HEAD, "RFC 7541 6.3", alone=True),
    _broken("K-5", "a table size after fields", b"\x20", "RFC 7541 4.2"),
    _broken("K-5a", "a table size between fields", b"\x20\x83", "RFC 7541 4.2"),
    _broken("K-5b", "a table size of 1 after fields", b"\x21", "RFC 7541 4.2"),
    _broken("K-6", "Huffman padding of more than 7 bits", b"\x00\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x9f\xff", "RFC 7541 5.2"),
    _broken("K-6a", "Huffman padding of zeros", b"\x00\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x90", "RFC 7541 5.2"),
    _broken("K-6b", "Huffman EOS", b"\x00\x85\xf2\xb2\x4a\x84\xff\x87\x49\x51\xff\xff\xff\xfa\x7f", "RFC 7541 5.2"),
    _broken("K-6c", "Huffman EOS in a name", b"\x00\x84\xff\xff\xff\xff\x01a", "RFC 7541 5.2"),
    _broken("K-7", "a string past the block", b"\x00\x01x\x7f\x10abc", "RFC 7541 5.2"),
    _broken("K-7a", "a name past the block", b"\x00\x09x", "RFC 7541 5.2"),
    _broken("K-7b", "a field without its value", b"\x00\x01x", "RFC 7541 6.2"),
    _broken("K-7c", "an integer cut short", b"\x00\x7f", "RFC 7541 5.1"),
    _broken("K-7d", "a table size cut short", b"\x3f", "RFC 7541 6.3", alone=True),
    _broken("K-7e", "an indexed name cut short", b"\x7f", "RFC 7541 6.2.1"),
]  # fmt: skip

BOMB = headers(1, HEAD + literal(b"x-bomb", bytes(4000), 0x40) + b"\xbe" * 24_000)
BOMBS = [
    Row("K-8", "24,000 references to 4 kB, without a table", BOMB, BROKEN_LOST, "10.5.1"),
    Row("K-8t", "24,000 references to 4 kB", BOMB, GoAway(ENHANCE_YOUR_CALM), "10.5.1", acknowledges=False),
    Row("K-8a", "24,000 references to 4 kB, in parts", headers(1, HEAD + literal(b"x-bomb", bytes(4000), 0x40), done=False) + continuation(1, b"\xbe" * 12_000, done=False) + continuation(1, b"\xbe" * 12_000), GoAway(ENHANCE_YOUR_CALM), "10.5.1", acknowledges=False),
    Row("K-8b", "30,000 empty fields", headers(1, HEAD + b"\x90" * 30_000), Status(8, then=0), "10.5.1"),
    Row("K-8bt", "30,000 empty fields, with a table", headers(1, HEAD + b"\x90" * 30_000), GoAway(ENHANCE_YOUR_CALM), "10.5.1", acknowledges=False),
    Row("K-9", "what enters a table of 0 is not in it", headers(1, HEAD + literal(b"x-a", b"b", 0x40) + b"\xbe"), BROKEN_LOST, "RFC 7541 4.4"),
]  # fmt: skip


def _huffman(first: int) -> bytes:
    """One field with a Huffman name and value."""
    return bytes((first,)) + b"\x85\xf2\xb2\x4a\x84\xff\x84\x9c\x48\xac\xa4"


def _in_turn(*heads: list[FieldPair]) -> list[bytes]:
    """Blocks of one connection: later ones refer to what earlier ones put into the table."""
    encoder = Encoder()
    return [encoder.encode(head, huffman=False) for head in heads]


_KEPT = fields((b"x-kept", b"in the table"))
_FIRST, _SECOND = _in_turn(_KEPT, _KEPT)
_REFUSED, _AFTER = _in_turn(_KEPT[1:], _KEPT)
LEGAL = [
    Row("K-10", "indexed fields", headers(1, b"\x83\x86" + literals(fields()[2:])) + END, Status(), "RFC 7541 6.1", ONE),
    Row("K-11", "every kind of literal", headers(1, literals(fields()[:4]) + literal(b"content-type", b"application/grpc", 0x40) + literal(b"te", b"trailers", 0x10) + literals(fields()[-1:])) + END, Status(), "RFC 7541 6.2", ONE),
    *(
        Row(f"K-12{letter}", f"{kind}: {name}", headers(1, HEAD + first) + END, Status(), "RFC 7541 6.2", ONE)
        for letter, kind, name, first in (
            ("a", "with indexing", "indexed name", b"\x7a\x06h2spec"),
            ("b", "with indexing", "indexed name, Huffman", b"\x7a\x84\x9c\x48\xac\xa4"),
            ("c", "with indexing", "new name", literal(b"x-test", b"h2spec", 0x40)),
            ("d", "with indexing", "new name, Huffman", _huffman(0x40)),
            ("e", "without indexing", "indexed name", b"\x0f\x2b\x06h2spec"),
            ("f", "without indexing", "indexed name, Huffman", b"\x0f\x2b\x84\x9c\x48\xac\xa4"),
            ("g", "without indexing", "new name", literal(b"x-test", b"h2spec")),
            ("h", "without indexing", "new name, Huffman", _huffman(0)),
            ("i", "never indexed", "indexed name", b"\x1f\x2b\x06h2spec"),
            ("j", "never indexed", "indexed name, Huffman", b"\x1f\x2b\x84\x9c\x48\xac\xa4"),
            ("k", "never indexed", "new name", literal(b"x-test", b"h2spec", 0x10)),
            ("l", "never indexed", "new name, Huffman", _huffman(0x10)),
        )
    ),
    Row("K-13", "a table size of 0 in front", headers(1, b"\x20" + HEAD) + END, Status(), "RFC 7541 6.3", ONE),
    Row("K-13a", "two table sizes of 0 in front", headers(1, b"\x20\x20" + HEAD) + END, Status(), "RFC 7541 6.3", ONE),
    Row("K-13b", "a table size of 128, which we no longer allow", headers(1, b"\x3f\x61" + HEAD), BROKEN_LOST, "RFC 7541 6.3"),
    Row("K-13c", "a table size of 128, before we were heard", headers(1, b"\x3f\x61" + HEAD) + END, Status(), "RFC 7541 6.3", ONE, acknowledges=False),
    Row("K-13d", "table sizes of 128 and 4,096, before we were heard", headers(1, b"\x3f\x61\x3f\xe1\x1f" + HEAD) + END, Status(), "RFC 7541 6.3", ONE, acknowledges=False),
    Row("K-13e", "a table size of 4,097, before we were heard", headers(1, b"\x3f\xe2\x1f" + HEAD), BROKEN_LOST, "RFC 7541 6.3", acknowledges=False),
    Row("K-14", "references to the table, before we were heard", headers(1, _FIRST) + END + headers(3, _SECOND) + data(3, named(), end=True), Status(stream=3), "RFC 7541 2.3.2", TWO, acknowledges=False),
    Row("K-15", "a block of a refused request keeps the table in step", headers(1, _REFUSED) + headers(3, _AFTER) + data(3, named(), end=True), Status(stream=3), "RFC 7541 2.2", ONE, acknowledges=False),
]  # fmt: skip

ROWS = [
    *BROKEN,
    *(
        replace(row, id=row.id + "t", about=row.about + ", with a table", acknowledges=False)
        for row in BROKEN
    ),
    *BOMBS,
    *LEGAL,
]
