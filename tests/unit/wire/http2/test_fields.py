"""Fields of a self-contained block: where each ends, what it means, what is refused."""

from __future__ import annotations

import pytest
from hpack import Decoder, Encoder, HeaderTuple, NeverIndexedHeaderTuple

from lb.wire.http2 import fields as f
from lb.wire.http2.fields import Field, FieldCache, encode_field, field_of, skip_size_updates
from lb.wire.http2.frames import ErrorCode, Http2Error


def pairs(fields: list[Field]) -> list[tuple[bytes, bytes]]:
    return [(field.name, field.value) for field in fields]


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 20_000])
@pytest.mark.parametrize("never_indexed", [False, True])
def test_a_written_field_reads_as_itself(size: int, never_indexed: bool) -> None:
    raw = encode_field(b"n" * max(size, 1), b"v" * size, never_indexed=never_indexed)
    (theirs,) = Decoder(max_header_list_size=2**20).decode(raw, raw=True)
    assert tuple(theirs) == (b"n" * max(size, 1), b"v" * size)
    assert isinstance(theirs, NeverIndexedHeaderTuple) is never_indexed
    (ours,) = FieldCache().split(raw)
    assert (ours.name, ours.value, ours.raw) == (*theirs, raw)
    assert ours.never_indexed is never_indexed


@pytest.mark.parametrize("index", range(1, 62))
def test_static_fields_are_those_of_the_library(index: int) -> None:
    block = bytes((0x80 | index,))
    assert pairs(FieldCache().split(block)) == [
        tuple(each) for each in Decoder().decode(block, raw=True)
    ]


@pytest.mark.parametrize(
    "raw",
    [
        b"\x04\x02/x",
        b"\x14\x02/x",
        b"\x44\x02/x",
        b"\x0f\x01\x02gz",
        b"\x0f\x2e\x01b",
        b"\x7d\x01b",
        b"\x00\x01a\x82\x1c\x64",
    ],
)
def test_every_literal_representation_is_read(raw: bytes) -> None:
    """Indexed names with one byte and with more, with indexing, without, never; Huffman."""
    assert pairs(FieldCache().split(raw)) == [
        tuple(each) for each in Decoder().decode(raw, raw=True)
    ]


def test_fields_of_the_library_become_ours() -> None:
    field = field_of(NeverIndexedHeaderTuple(b"authorization", b"secret"))
    assert field.never_indexed
    assert "secret" not in repr(field)
    assert FieldCache().split(field.raw)[0].never_indexed
    assert "'b'" in repr(field_of(HeaderTuple(b"a", b"b")))


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        (b":path", b"/", f.PATH),
        (b":status", b"200", f.STATUS),
        (b":new", b"", f.UNKNOWN_PSEUDO),
        (b"connection", b"close", f.CONNECTION),
        (b"transfer-encoding", b"chunked", f.CONNECTION),
        (b"te", b"trailers", f.TE),
        (b"x-any", b"a b\tc", f.OTHER),
        (b"x-any", b"\xff\x80\x01", f.OTHER),
        (b"x-any", b"", f.OTHER),
        (b"", b"", f.MALFORMED),
        (b":", b"", f.MALFORMED),
        (b"X-Any", b"", f.MALFORMED),
        (b"a b", b"", f.MALFORMED),
        (b"a:b", b"", f.MALFORMED),
        (b"a\x7f", b"", f.MALFORMED),
        (b"\xc3\xa9", b"", f.MALFORMED),
        (b"a\n", b"", f.MALFORMED),
        (b"a", b"b\0", f.MALFORMED),
        (b"a", b"b\r\nc: d", f.MALFORMED),
        (b"a", b"b\n", f.MALFORMED),
        (b":path", b"/ ", f.MALFORMED),
        (b"a", b"b\0 ", f.MALFORMED),
        (b"a", b" b", f.OTHER),
        (b"te", b"trailers\t", f.TE),
    ],
)
def test_kind_of_a_field(name: bytes, value: bytes, kind: int) -> None:
    """RFC 9113 8.2.1: upper case, blanks, colons, control bytes; NUL, CR, LF."""
    assert Field(name, value, b"", never_indexed=False).kind == kind


@pytest.mark.parametrize("never", [False, True])
def test_white_space_around_a_value_is_not_part_of_it(never: bool) -> None:
    raw = encode_field(b"a", b"\t b c ", never_indexed=never)
    (field,) = FieldCache().split(raw)
    assert (field.value, field.raw) == (b"b c", raw)
    assert field.sent == encode_field(b"a", b"b c", never_indexed=never)


def test_size_is_counted_as_in_a_table() -> None:
    assert Field(b"abc", b"de", b"", never_indexed=False).size == 37


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",
        b"\xbe",
        b"\xff\x00",
        b"\x7f\x00\x01a",
        b"\x0f\x2f\x01a",
        b"\x00",
        b"\x00\x01",
        b"\x00\x01a",
        b"\x00\x01a\x02b",
        b"\x00\x05ab",
        b"\x04",
        b"\x00\x7f",
        b"\x00\x7f\xff\xff\xff\xff\x01",
        b"\x0f\xff\xff\xff\xff\xff\x01",
        b"\x00\x01a\x81\x00",
        b"\x00\x01a\x85\xff\xff\xff\xff\xff",
        b"\x82\x20",
        b"\x00\x01a\x01b\x3f\x01",
    ],
)
def test_a_broken_block_is_a_compression_error(block: bytes) -> None:
    """Index 0, dynamic indices, cut fields, endless integers, bad Huffman, a late size update."""
    with pytest.raises(Http2Error) as caught:
        FieldCache().split(block)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


@pytest.mark.parametrize(
    ("block", "start"), [(b"", 0), (b"\x82", 0), (b"\x20\x82", 1), (b"\x20\x20\x20", 3)]
)
def test_updates_to_size_0_are_skipped(block: bytes, start: int) -> None:
    assert skip_size_updates(block) == start


@pytest.mark.parametrize("block", [b"\x21", b"\x20\x3f\xe1\x1f", b"\x3f", b"\x20\x3f\x80"])
def test_an_update_above_our_limit_is_refused(block: bytes) -> None:
    """Sizes 1 and 4096, although we advertised 0; an update that its block cuts off."""
    with pytest.raises(Http2Error) as caught:
        skip_size_updates(block)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


def test_a_repeated_field_is_the_same_object() -> None:
    cache = FieldCache()
    raw = encode_field(b"a", b"b")
    first, second = cache.split(raw + raw)
    assert first is second
    assert cache.split(raw) == [first]


def test_secrets_and_long_fields_are_not_kept() -> None:
    cache = FieldCache()
    cache.split(encode_field(b"a", b"b", never_indexed=True) + encode_field(b"a", bytes(600)))
    assert len(cache) == 0


def test_cache_is_bounded_and_keeps_what_is_used() -> None:
    cache = FieldCache()
    usual = encode_field(b"usual", b"")
    (first,) = cache.split(usual)
    for number in range(20_000):
        block = encode_field(b"traceparent", b"%d" % number)
        if number % 1000 == 0:
            block += usual
        assert cache.split(block)[0].value == b"%d" % number
    assert len(cache) <= 2 * 4096
    assert cache.split(usual) == [first]


def test_one_block_may_overflow_the_cache() -> None:
    cache = FieldCache()
    numbers = [b"%d" % number for number in range(5000)]
    fields = cache.split(b"".join(encode_field(b"a", number) for number in numbers))
    assert [field.value for field in fields] == numbers


def test_huffman_of_the_library_is_read() -> None:
    encoder = Encoder()
    encoder.header_table_size = 0
    headers = [(b":path", b"/a/b"), (b"x-custom", b"value with $igns"), (b"empty", b"")]
    block = encoder.encode(headers, huffman=True)
    assert pairs(FieldCache().split(block[skip_size_updates(block) :])) == headers
