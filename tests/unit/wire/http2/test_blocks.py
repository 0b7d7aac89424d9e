"""Header blocks of one connection, before and after the peer gave up its dynamic table."""

from __future__ import annotations

import pytest
from hpack import Encoder
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from lb.wire.http2.blocks import BlockReader, HeadCaches
from lb.wire.http2.fields import encode_field
from lb.wire.http2.frames import ErrorCode, Http2Error, Malformed, StreamError

LIMIT = 2000
REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), ("te", "trailers")]
PLAIN = b"".join(encode_field(name.encode(), value.encode()) for name, value in REQUEST)
RESPONSE = encode_field(b":status", b"200")


def make_reader(*, stateless: bool) -> BlockReader:
    reader = BlockReader(HeadCaches(), LIMIT)
    if stateless:
        reader.acknowledged()
    return reader


def test_dynamic_table_is_followed_until_the_acknowledgement() -> None:
    reader = make_reader(stateless=False)
    encoder = Encoder()
    first = encoder.encode([*REQUEST, ("x-new", "value")])
    second = encoder.encode([*REQUEST, ("x-new", "value")])
    assert len(second) < len(first)
    blocks = {reader.request(first).block, reader.request(second).block}
    assert blocks == {PLAIN + encode_field(b"x-new", b"value")}


def test_skipped_blocks_keep_the_table_in_step() -> None:
    reader = make_reader(stateless=False)
    encoder = Encoder()
    reader.skip(encoder.encode([("x-new", "value")]))
    head = reader.request(encoder.encode([*REQUEST, ("x-new", "value")]))
    assert head.block == PLAIN + encode_field(b"x-new", b"value")


def test_without_a_table_nothing_needs_to_be_skipped() -> None:
    reader = make_reader(stateless=True)
    reader.skip(b"\xff\xff")
    assert reader.request(PLAIN).facts.path == b"/a"


def test_equal_blocks_are_one_head_once_the_table_is_gone() -> None:
    caches = HeadCaches()
    first, second = BlockReader(caches, LIMIT), BlockReader(caches, LIMIT)
    assert first.request(PLAIN) is not first.request(PLAIN)
    for reader in (first, second):
        assert not reader.is_stateless
        reader.acknowledged()
        assert reader.is_stateless
    head = first.request(PLAIN)
    assert second.known_request(PLAIN) is head
    assert second.request(PLAIN) is head
    answer = first.response(RESPONSE)
    assert second.known_response(RESPONSE) is answer
    assert second.response(RESPONSE) is answer


def test_no_block_is_known_while_a_table_is_in_use() -> None:
    caches = HeadCaches()
    stateless, other = BlockReader(caches, LIMIT), BlockReader(caches, LIMIT)
    stateless.acknowledged()
    stateless.request(PLAIN)
    stateless.response(RESPONSE)
    assert other.known_request(PLAIN) is None
    assert other.known_response(RESPONSE) is None


@pytest.mark.parametrize("stateless", [False, True])
def test_size_updates_are_not_sent_on(stateless: bool) -> None:
    reader = make_reader(stateless=stateless)
    assert reader.request(b"\x20" + PLAIN).block == PLAIN
    assert reader.response(b"\x20" + RESPONSE).block == RESPONSE
    assert reader.trailers(b"\x20" + encode_field(b"a", b"b")) == encode_field(b"a", b"b")


def test_secrets_are_decoded_and_not_kept() -> None:
    caches = HeadCaches()
    reader = BlockReader(caches, LIMIT)
    reader.acknowledged()
    block = PLAIN + encode_field(b"authorization", b"secret", never_indexed=True)
    assert reader.request(block).block == block
    assert len(caches.requests) == 0
    reader.response(RESPONSE + encode_field(b"set-cookie", b"secret", never_indexed=True))
    assert len(caches.responses) == 0


@pytest.mark.parametrize("stateless", [False, True])
def test_a_malformed_head_is_the_streams_error(stateless: bool) -> None:
    """The block can be decoded, so the connection lives."""
    reader = make_reader(stateless=stateless)
    for read in (reader.request, reader.response, reader.trailers):
        with pytest.raises(Malformed):
            read(encode_field(b"Upper", b"case"))


@pytest.mark.parametrize("stateless", [False, True])
def test_a_malformed_head_of_grpc_is_one_that_says_what_is_wrong(stateless: bool) -> None:
    reader = make_reader(stateless=stateless)
    head = reader.request(
        PLAIN + encode_field(b"content-type", b"application/grpc") + encode_field(b"Upper", b"case")
    )
    assert head.facts.fault == "the name or the value of the field 'Upper' is invalid"


@pytest.mark.parametrize("stateless", [False, True])
def test_white_space_around_values_never_shifts_what_later_blocks_say(stateless: bool) -> None:
    """Beginnings are compared and cut by the bytes that came, not by those that go on."""
    reader = make_reader(stateless=stateless)
    spaced, plain = encode_field(b"x-a", b" v"), encode_field(b"x-a", b"v")
    for value in (b"1", b"2", b"3"):
        more = encode_field(b"x-b", value)
        for first in (plain, spaced, spaced, plain):
            assert reader.request(PLAIN + first + more).block == PLAIN + plain + more
            assert reader.trailers(first + more) == plain + more


@pytest.mark.parametrize("stateless", [False, True])
@pytest.mark.parametrize("block", [b"\x80", b"\xbe", b"\x00\x05ab", b"\x00\x01a\x81\x00"])
def test_a_block_that_cannot_be_decoded_ends_the_connection(block: bytes, stateless: bool) -> None:
    """Index 0, an empty table's entry, a cut field, bad Huffman coding."""
    for name in ("request", "response", "trailers"):
        reader = make_reader(stateless=stateless)
        with pytest.raises(Http2Error) as caught:
            getattr(reader, name)(block)
        assert caught.value.code is ErrorCode.COMPRESSION_ERROR


def test_a_table_above_the_default_is_refused() -> None:
    """A size update to 8,192 where 4,096 is the most that a peer may use."""
    with pytest.raises(Http2Error) as caught:
        make_reader(stateless=False).request(b"\x3f\xe1\x3f" + PLAIN)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


def test_a_small_block_cannot_unpack_without_bounds() -> None:
    """An entry of 3,000 bytes, referred to a hundred times."""
    entry = b"\x40\x01a\x7f" + b"\xb9\x16" + bytes(b"x" * 3000)
    with pytest.raises(Http2Error) as caught:
        make_reader(stateless=False).request(entry + b"\xbe" * 100)
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("stateless", [False, True])
def test_large_trailers_are_the_streams_error(stateless: bool) -> None:
    reader = make_reader(stateless=stateless)
    with pytest.raises(StreamError) as caught:
        reader.trailers(encode_field(b"a", b"x" * LIMIT))
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("stateless", [True, False])
def test_private_fields_are_not_sent_on(stateless: bool) -> None:
    reader = BlockReader(HeadCaches(frozenset({b"x-who"})), LIMIT)
    if stateless:
        reader.acknowledged()
    kept = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/a/B"),
        (b"te", b"trailers"),
        (b"x-whom", b"you"),
    ]
    private = [(b"x-who", b"me"), (b"x_who", b"me")]
    block = b"".join(encode_field(*field) for field in (*kept, *private))
    expected = b"".join(encode_field(*field) for field in kept)
    for _ in range(2):
        assert reader.request(block).block == expected
    trailers = b"".join(encode_field(*field) for field in (*private, kept[-1]))
    assert reader.trailers(trailers) == encode_field(*kept[-1])


@pytest.mark.parametrize("stateless", [True, False])
@pytest.mark.parametrize("private", [frozenset(), frozenset({b"x-who"})])
def test_redirect_and_disguised_fields_are_not_sent_on(
    stateless: bool, private: frozenset[bytes]
) -> None:
    reader = BlockReader(HeadCaches(private), LIMIT)
    if stateless:
        reader.acknowledged()
    odd = [
        (b"x-vertex-ai-triton-redirect", b"v2/logging"),
        (b"content_length", b"9"),
        (b"x_forwarded-for", b"6.6.6.6"),
    ]
    kept = encode_field(b"triton_grpc_error", b"true")
    block = PLAIN + b"".join(encode_field(*field) for field in odd) + kept
    for _ in range(2):
        head = reader.request(block)
        assert head.block == PLAIN + kept
        assert head.facts.count == len(REQUEST) + 4
    assert reader.trailers(encode_field(*odd[0]) + kept) == kept


@pytest.mark.parametrize("stateless", [True, False])
def test_messages_of_errors_are_shown_as_they_may_be(stateless: bool) -> None:
    reader = BlockReader(HeadCaches(hide=lambda text: text.replace(b"secret", b"***")), LIMIT)
    if stateless:
        reader.acknowledged()
    status = encode_field(b"grpc-status", b"13")
    for text, shown in ((b"a secret", b"a ***"), (b"a wish", b"a wish")):
        block = status + encode_field(b"grpc-message", text) + encode_field(b"x", b"secret")
        head = reader.response(block)
        assert head.block == block.replace(
            encode_field(b"grpc-message", text), encode_field(b"grpc-message", shown)
        )
        assert head.grpc_status == 13


@pytest.mark.parametrize("stateless", [True, False])
def test_noted_fields_are_kept_whether_they_are_sent_on_or_not(stateless: bool) -> None:
    names = frozenset({b"x-who", b"x-seen"})
    reader = BlockReader(HeadCaches(frozenset({b"x-who"}), names), LIMIT)
    if stateless:
        reader.acknowledged()
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/B"), (b"x", b"y")]
    noted = ((b"x-who", b"me"), (b"x-seen", b"1"), (b"x-who", b"too"))
    block = b"".join(encode_field(*field) for field in (*fields, *noted))
    for _ in range(2):
        assert reader.request(block).noted == noted
    assert b"x-seen" in reader.request(block).block
    assert b"x-who" not in reader.request(block).block


@pytest.mark.parametrize("stateless", [True, False])
def test_hop_markers_are_read_wherever_they_stand(stateless: bool) -> None:
    reader = BlockReader(HeadCaches(), LIMIT)
    if stateless:
        reader.acknowledged()
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/B")]
    start = b"".join(encode_field(*field) for field in fields)
    for number in range(4):  # of the later ones only what is new is read
        marker = encode_field(b"cdn-loop", b"a") + encode_field(b"x", b"%d" % number)
        head = reader.request(start + marker + encode_field(b"cdn-loop", b"b"))
        assert head.facts.hops == b"a,b,"


def traced(number: int, *, behind: bytes = b"") -> bytes:
    return PLAIN + encode_field(b"traceparent", b"00-%032x-%016x-01" % (number, number)) + behind


def test_blocks_that_differ_in_their_traceparent_fill_no_cache() -> None:
    """As grpcio writes them: metadata without indexing, behind all that gRPC sends itself."""
    caches = HeadCaches()
    reader = BlockReader(caches, LIMIT)
    reader.acknowledged()
    state = encode_field(b"tracestate", b"a=b")
    for number in range(1, 3000):
        block = traced(number, behind=state)
        head = reader.known_request(block) or reader.request(block)
        assert head.block == traced(number, behind=state)
    assert len(caches.traced) == 1
    assert len(caches.requests) <= 3  # those that it was learnt from
    other = BlockReader(caches, LIMIT)
    other.acknowledged()
    other.request(traced(5000))  # how this client writes the name is not known before
    known = other.known_request(traced(5001, behind=state))
    assert known is not None
    assert known.block == traced(5001, behind=state)


def told(reader: BlockReader, block: bytes) -> tuple[object, ...]:
    """What a block says, or which error it is."""
    try:
        head = reader.known_request(block) or reader.request(block)
    except (Http2Error, Malformed) as error:
        return type(error), str(error)
    return head.block, sorted(head.noted), head.facts.path, head.facts.fault


NORMAL = b"00-%032x-%016x-01" % (7, 7)
CODED = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(NORMAL)
ODD_VALUES = {
    "as usual": bytes((len(NORMAL),)) + NORMAL,
    "huffman": bytes((0x80 | len(CODED),)) + CODED,
    "broken huffman": bytes((0x80 | 4,)) + b"\xff" * 4,
    "empty": b"\0",
    "short": b"\x05" + NORMAL[:5],
    "spaces": bytes((len(NORMAL),)) + NORMAL.replace(b"-", b" "),
    "control characters": bytes((len(NORMAL),)) + NORMAL.replace(b"-", b"\1"),
    "of zeros": bytes((len(NORMAL),)) + NORMAL.replace(b"7", b"0"),
    "cut off": bytes((len(NORMAL),)) + NORMAL[:-1],
    "no length": b"",
}


@pytest.mark.parametrize("behind", [b"", encode_field(b"tracestate", b"a=b")])
@pytest.mark.parametrize("private", [frozenset[bytes](), frozenset({b"traceparent"})])
@pytest.mark.parametrize("value", ODD_VALUES.values(), ids=ODD_VALUES)
def test_an_odd_traceparent_says_the_same_to_who_knows_all_else(
    value: bytes, private: frozenset[bytes], behind: bytes
) -> None:
    """Known or not, a block is read alike."""
    noted = frozenset({b"traceparent", b"tracestate"})
    readers = [BlockReader(HeadCaches(private, noted), LIMIT) for _ in range(2)]
    for reader in readers:
        reader.acknowledged()
    knowing, fresh = readers
    for number in range(1, 9):
        block = traced(number, behind=behind)
        assert (knowing.known_request(block) or knowing.request(block)).noted
    usual = encode_field(b"traceparent", NORMAL)
    odd = PLAIN + usual[: -1 - len(NORMAL)] + value + behind
    assert told(knowing, odd) == told(fresh, odd)


def test_a_client_whose_other_fields_differ_as_well_fills_no_cache() -> None:
    caches = HeadCaches()
    reader = BlockReader(caches, LIMIT)
    reader.acknowledged()
    for number in range(1, 3000):
        block = traced(number, behind=encode_field(b"x-request-id", b"%d" % number))
        head = reader.known_request(block) or reader.request(block)
        assert head.facts.request_id == b"%d" % number
    assert len(caches.traced) == 0
    assert len(caches.requests) <= 2
