"""Header blocks: read as the hpack library writes them, and as a plain reader reads them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hpack import Decoder, Encoder, HeaderTuple, NeverIndexedHeaderTuple
from hypothesis import given
from hypothesis import strategies as st

from lb.wire.http2.blocks import BlockReader, HeadCaches
from lb.wire.http2.fields import FieldCache, encode_field
from lb.wire.http2.frames import Http2Error, StreamError
from lb.wire.http2.heads import RequestHead
from tests.reference import http2_fields as plain

LIMIT = 2**15
CACHE = FieldCache()
"""Shared by all examples: what one leaves behind must not matter to the next."""
NAME = st.text("abcdefghijklmnopqrstuvwxyz-0123456789", min_size=1, max_size=150).map(
    lambda text: b"x-" + text.encode()
)
VALUE = st.binary(max_size=200).map(
    lambda value: value.translate(None, b"\0\r\n").strip(b" \t")
) | st.sampled_from([b"", b"application/grpc", b"x" * 127, b"x" * 128, b"x" * 700])
REGULAR = st.tuples(NAME, VALUE) | st.sampled_from(
    [
        (b"content-type", b"application/grpc"),
        (b"accept-encoding", b"gzip, deflate"),
        (b"accept-encoding", b"other"),
        (b"user-agent", b"grpc-python/1.60"),
        (b"grpc-timeout", b"10S"),
    ]
)
HEADERS = st.lists(st.tuples(REGULAR, st.sampled_from(["indexed", "plain", "never"])), max_size=6)
PSEUDO = [
    HeaderTuple(b":method", b"POST"),
    HeaderTuple(b":scheme", b"http"),
    HeaderTuple(b":path", b"/a.B/C"),
    HeaderTuple(b"te", b"trailers"),
]
Fields = list[tuple[tuple[bytes, bytes], str]]


def encode(encoder: Encoder, headers: Fields, huffman: bool) -> bytes:
    """One block, with and without indexing as each field says."""
    block: bytes = encoder.encode(PSEUDO, huffman=huffman)
    for (name, value), how in headers:
        if how == "plain":
            block += encode_field(name, value)
        else:
            kind = NeverIndexedHeaderTuple if how == "never" else HeaderTuple
            block += encoder.encode([kind(name, value)], huffman=huffman)
    return block


def expected(block: bytes, headers: Fields, decoder: Decoder) -> list[tuple[bytes, bytes, bool]]:
    """What went in; the wire says which fields are secret, since a table may hold them already."""
    fields = decoder.decode(block, raw=True)
    assert [tuple(each) for each in fields] == [*map(tuple, PSEUDO), *(pair for pair, _ in headers)]
    return [(*each, isinstance(each, NeverIndexedHeaderTuple)) for each in fields]


def told(head: RequestHead) -> list[tuple[bytes, bytes, bool]]:
    """What the next reader makes of the block that goes on."""
    return [field[:3] for field in plain.split(head.block)]


def facts(read: Callable[[bytes], object], block: bytes) -> dict[str, object]:
    """What reading a block gives, except the block that goes on; or the peer's error."""
    try:
        head = read(block)
    except (Http2Error, StreamError) as error:
        return {"error": type(error), "code": error.code, "detail": error.detail}
    said = head.facts if isinstance(head, RequestHead) else head
    names = set(getattr(said, "__slots__", ())) - {"block"}
    known = {name: getattr(said, name) for name in names}
    # Who reads noted fields asks by name.
    return known | {"noted": sorted(head.noted)} if isinstance(head, RequestHead) else known


@given(st.lists(st.tuples(HEADERS, st.booleans(), st.integers(0, 4096) | st.none()), max_size=5))
def test_blocks_with_a_dynamic_table_become_the_same_fields(
    blocks: list[tuple[Fields, bool, int | None]],
) -> None:
    reader = BlockReader(HeadCaches(), LIMIT)
    encoder, decoder = Encoder(), Decoder()
    for headers, huffman, table_size in blocks:
        if table_size is not None:
            encoder.header_table_size = table_size
        block = encode(encoder, headers, huffman)
        head = reader.request(block)
        fields = expected(block, headers, decoder)
        assert told(head) == fields
        assert head.facts.cacheable is not any(secret for _, _, secret in fields)


@given(st.lists(st.tuples(HEADERS, st.booleans()), max_size=5))
def test_blocks_without_one_become_the_same_fields(blocks: list[tuple[Fields, bool]]) -> None:
    caches = HeadCaches()
    reader = BlockReader(caches, LIMIT)
    reader.acknowledged()
    encoder, decoder = Encoder(), Decoder()
    encoder.header_table_size = 0
    for headers, huffman in blocks:
        block = encode(encoder, headers, huffman)
        fields = expected(block, headers, decoder)
        for _ in range(2):
            head = reader.request(block)
            assert told(head) == fields
        assert (reader.request(block) is head) is head.facts.cacheable


@given(HEADERS, st.booleans())
def test_both_readers_digest_a_block_alike(headers: Fields, huffman: bool) -> None:
    before, after = BlockReader(HeadCaches(), LIMIT), BlockReader(HeadCaches(), LIMIT)
    after.acknowledged()
    encoder = Encoder()
    encoder.header_table_size = 0
    block = encode(encoder, headers, huffman)
    for read in ("request", "trailers", "response"):
        assert facts(getattr(before, read), block) == facts(getattr(after, read), block)


BITS = st.binary(max_size=60) | st.lists(
    st.sampled_from(
        [b"\x82", b"\x84", b"\xbd", b"\xbe", b"\x80", b"\x20", b"\x3f", b"\x00", b"\x10", b"\x40",
         b"\x0f", b"\x1f", b"\x7f", b"\xff", b"\x01", b"\x81", b"\x7f\x00", b"\xff\x00",
         b"\x00\x01a\x01b", b"\x10\x01a\x00", b"\x40\x01a\x82\x1c\x64", b"\x04\x01/", b"a"]
    ),
    max_size=12,
).map(b"".join)  # fmt: skip


@given(BITS, st.booleans())
def test_no_bytes_raise_anything_but_the_errors_of_the_peer(block: bytes, stateless: bool) -> None:
    reader = BlockReader(HeadCaches(), LIMIT)
    if stateless:
        reader.acknowledged()
    for read in (reader.request, reader.response, reader.trailers, reader.skip):
        assert facts(read, block) is not None


@given(BITS)
def test_splitting_agrees_with_its_reference(block: bytes) -> None:
    try:
        wanted = plain.split(block)
    except plain.BadBlock:
        with pytest.raises(Http2Error):
            CACHE.split(block)
        return
    fields = [(f.name, f.value, f.never_indexed, f.raw) for f in CACHE.split(block)]
    assert fields == [tuple(field) for field in wanted]


START = b"".join(encode_field(*pair) for pair in PSEUDO)
FIELDS = st.sampled_from(
    [
        encode_field(b"te", b"trailers"),
        encode_field(b"te", b"gzip"),
        encode_field(b"content-type", b"application/grpc"),
        encode_field(b"content-type", b"text/plain"),
        encode_field(b"content-length", b"7"),
        encode_field(b"grpc-timeout", b"5S"),
        encode_field(b"grpc-timeout", b"20000000u"),
        encode_field(b"grpc-timeout", b"soon"),
        encode_field(b"x-request-id", b"1"),
        encode_field(b"x_request_id", b"2"),
        encode_field(b"x-who", b"me"),
        encode_field(b"x_who", b"me too"),
        encode_field(b"x-seen", b"1"),
        encode_field(b"x-seen", b"2", never_indexed=True),
        encode_field(b"connection", b"close"),
        encode_field(b":path", b"/again"),
        encode_field(b":unknown", b"/"),
        encode_field(b"host", b"elsewhere"),
        encode_field(b"Upper", b"case"),
        encode_field(b"bad-value", b" x"),
        encode_field(b"x-long", b"y" * 300),
        encode_field(b"x" * 200, b"y"),
        Encoder().encode([(b"traceparent", b"00-0af7651916cd43dd-01")], huffman=True),
        Encoder().encode([(b"user-agent", b"a/1")], huffman=True),
        b"\x90", b"\x20", b"\xff", b"\x00", b"\x00\x05ab", b"\x00\x01a\x81\x00", b"\x0f\x2b\x01a",
        b"\x40\x01b\x01c", b"\x04\x01/",
    ]
) | st.binary(max_size=8).map(lambda value: encode_field(b"traceparent", value))  # fmt: skip


@given(st.lists(st.lists(FIELDS, max_size=5).map(b"".join), min_size=2, max_size=8))
def test_heads_that_begin_like_earlier_ones_are_what_they_are_alone(rests: list[bytes]) -> None:
    names = frozenset({b"x-who"}), frozenset({b"x-who", b"x-seen"})
    reader = BlockReader(HeadCaches(*names), LIMIT)
    reader.acknowledged()
    for block in [START + rest for rest in rests]:
        alone = BlockReader(HeadCaches(*names), LIMIT)
        alone.acknowledged()
        for _ in range(3):
            assert everything(reader.request, block) == everything(alone.request, block)


PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TABLELESS = Encoder()
TABLELESS.header_table_size = 0
TABLELESS.encode([])  # the size update
CONTEXTS = st.sampled_from(
    [
        encode_field(b"traceparent", PARENT),
        encode_field(b"traceparent", PARENT.replace(b"0af7", b"1234")),
        encode_field(b"traceparent", PARENT.replace(b"00-", b"ff-")),
        encode_field(b"traceparent", PARENT + b"-"),
        encode_field(b"traceparent", PARENT[:-1] + b"\r"),
        encode_field(b"traceparent", PARENT, never_indexed=True),
        TABLELESS.encode([(b"traceparent", PARENT)], huffman=True),
        TABLELESS.encode([(b"traceparent", PARENT.replace(b"0af7", b"1234"))], huffman=True),
        TABLELESS.encode([(b"traceparent", PARENT)], huffman=False),
        TABLELESS.encode([(b"traceparent", PARENT)], huffman=False)[:-1],
        encode_field(b"x-odd", b"@\x0btraceparent7" + PARENT),
        encode_field(b"x-odd", b"@\x0btraceparent"),
        b"@\x0btraceparent7", PARENT, b"\0\x0btraceparent",
        encode_field(b"tracestate", b"a=b"),
        encode_field(b"x-request-id", b"1"),
        encode_field(b"x-who", b"me"),
        b"\x86",
    ]
)  # fmt: skip
TRACING = frozenset({b"traceparent", b"tracestate"})


@pytest.mark.parametrize("private", [frozenset(), TRACING], ids=["passed on", "private"])
@pytest.mark.parametrize("noted", [frozenset(), TRACING], ids=["not noted", "noted"])
@given(st.lists(st.lists(CONTEXTS, max_size=5).map(b"".join), min_size=2, max_size=12))
def test_heads_that_differ_in_their_traceparent_are_what_they_are_alone(
    private: frozenset[bytes], noted: frozenset[bytes], rests: list[bytes]
) -> None:
    reader = BlockReader(HeadCaches(private, noted), LIMIT)
    reader.acknowledged()
    for block in [START + rest for rest in rests]:
        alone = BlockReader(HeadCaches(private, noted), LIMIT)
        alone.acknowledged()

        def read(block: bytes) -> RequestHead:
            return reader.known_request(block) or reader.request(block)

        for _ in range(3):
            assert everything(read, block) == everything(alone.request, block)


def everything(read: Callable[[bytes], object], block: bytes) -> dict[str, object]:
    """As `facts`, with the block that goes on."""
    known = facts(read, block)
    return known if "error" in known else known | {"block": read(block).block}  # type: ignore[attr-defined]  # a head
