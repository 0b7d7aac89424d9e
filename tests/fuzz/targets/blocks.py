"""Header blocks: both decoders, the heads that come of them, and what goes on, against hpack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError

from lb.wire.http2.blocks import BlockReader, HeadCaches
from lb.wire.http2.frames import Http2Error, StreamError
from lb.wire.http2.heads import HeadFacts, RequestHead, ResponseHead
from tests.fuzz.target import Target
from tests.reference import http2_fields as plain
from tests.wire import frames as f

_LIMIT = 4096
_CACHES = HeadCaches()
"""Shared by all inputs: what one leaves behind must not matter to the next."""
_Fields = list[tuple[bytes, bytes]]


def _facts(read: Callable[[bytes], Any], block: bytes) -> Any:
    """What a reader says of a block; an error is one of the peer's."""
    try:
        head = read(block)
    except (Http2Error, StreamError) as error:
        assert len(error.detail) < 200 + len(block)
        return type(error), error.code
    if isinstance(head, RequestHead):
        # The owner of the head's cache decides the rest.
        names = set(HeadFacts.__slots__) - {"route", "is_plain"}
        facts = {name: getattr(head.facts, name) for name in names}
        return facts | {"block": head.block, "noted": head.noted}
    if isinstance(head, ResponseHead):
        return {name: getattr(head, name) for name in ResponseHead.__slots__}
    return head


def _check(data: bytes) -> None:
    fresh = HeadCaches()
    for name in ("request", "response", "trailers", "skip"):
        cached, alone, before = (BlockReader(c, _LIMIT) for c in (_CACHES, fresh, fresh))
        cached.acknowledged()
        alone.acknowledged()
        facts = _facts(getattr(alone, name), data)
        assert _facts(getattr(cached, name), data) == facts
        assert _facts(getattr(cached, name), data) == facts
        _compare_decoders(facts, _facts(getattr(before, name), data))
        # Longer ones are refused by whoever asked for the head.
        if isinstance(facts, dict) and facts["size"] <= _LIMIT:
            if facts.get("fault"):
                assert not facts["block"], "nothing of a malformed head goes on"
            else:
                _check_onward(data, facts)
    _check_table(data)


def _compare_decoders(stateless: Any, stateful: Any) -> None:
    """What both accept they read alike; only the one with a table knows references to it."""
    if isinstance(stateless, dict) and isinstance(stateful, dict):
        mine, other = dict(stateless), dict(stateful)
        assert _fields_of(mine.pop("block")) == _fields_of(other.pop("block"))
        for head in (mine, other):
            head.pop("frame", None)  # tells the length of its block
        assert mine == other


def _fields_of(block: bytes) -> _Fields:
    """A self-contained block."""
    return [(field.name, field.value) for field in plain.split(block)]


def _check_onward(data: bytes, facts: dict[str, Any]) -> None:
    """What goes on is what came, for somebody else's decoder too."""
    block = facts["block"]
    assert len(block) <= len(data) + 20
    onward = _by_hpack([block])
    assert onward is not None
    came = _by_hpack([data])
    if came is not None:
        # White space around values is no part of them (RFC 9110 5.5), and may be left out.
        said, passed = ([(n, v.strip(b" \t")) for n, v in each[0]] for each in (came, onward))
        assert passed in (said, [*said, (b"te", b"trailers")])
    for _, value in onward[0]:
        assert not {0, 10, 13} & set(value)


def _by_hpack(blocks: list[bytes]) -> list[_Fields] | None:
    """Header lists of blocks that one connection sends."""
    decoder = Decoder(max_header_list_size=2 * _LIMIT)
    try:
        return [
            [(bytes(pair[0]), bytes(pair[1])) for pair in decoder.decode(block, raw=True)]
            for block in blocks
        ]
    except HPACKError:
        return None


def _check_table(data: bytes) -> None:
    """With a dynamic table: three blocks of one connection, whatever is in them."""
    third = len(data) // 3
    blocks = [data[:third], data[third : 2 * third], data[2 * third :]]
    reader = BlockReader(HeadCaches(), _LIMIT)
    wanted = _by_hpack(blocks)
    heads = [_facts(reader.request, block) for block in blocks]
    if wanted is None:
        assert any(isinstance(head, tuple) for head in heads)
        return
    for head, fields in zip(heads, wanted, strict=True):
        if isinstance(head, dict):
            onward = _fields_of(head["block"])
            assert onward in (fields, [*fields, (b"te", b"trailers")])


def _encoded(fields: _Fields, *, huffman: bool) -> bytes:
    encoder = Encoder()
    encoder.header_table_size = 0
    block: bytes = encoder.encode(fields, huffman=huffman)
    return block


_REQUEST = f.request_fields(
    (b"content-type", b"application/grpc"), (b"grpc-timeout", b"1S"), (b"x-request-id", b"7")
)
_LISTS = (
    _REQUEST,
    [(b":method", b"GET"), (b":path", b"/"), (b":scheme", b"https"), (b":authority", b"a:1")],
    [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"content-length", b"12")],
    [(b"grpc-status", b"0"), (b"grpc-message", b"all %20 well"), (b"x-bin", b"AAEC")],
    [(b":status", b"503")],
)
_TABLE = Encoder()
_SEEDS = (
    *(_encoded(fields, huffman=huffman) for fields in _LISTS for huffman in (True, False)),
    *(f.literals(fields) for fields in _LISTS),
    b"".join(_TABLE.encode(_REQUEST, huffman=False) for _ in range(3)),
    b"\x20" + f.literals(_LISTS[4]),
)
_WORDS = (
    b"\x82", b"\x83", b"\x84", b"\x86", b"\x88", b"\xbd", b"\xbe", b"\xff\x00", b"\x80", b"\x20",
    b"\x3f\xe1\x1f", b"\x00\x01a\x01b", b"\x10\x01a\x01b", b"\x40\x01a\x01b",
    b"\x40\x81\x1f\x82\x1c\x64", b"\x04\x01/", b"\x0f\x2f\x00", b"\x7f\x00",
    b"\x00\x02te\x08trailers", b"\x00\x01A\x00", b"\x00\x0aconnection\x00", b"\x00\x04host\x01a",
    b"\x00\x0econtent-length\x015", b"\x00\x05:path\x02/x", b"\x00\x01x\x03a\r\n",
    b"\x00\x02:x\x00", b"\x7f\x80\x80\x80\x80\x01", b"\xff\xff\xff\xff\xff\x0f", )  # fmt: skip

TARGETS = (Target("http2_blocks", _check, _SEEDS, _WORDS),)
