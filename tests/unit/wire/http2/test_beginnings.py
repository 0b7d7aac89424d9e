"""Heads of blocks that begin like earlier ones."""

from __future__ import annotations

import pytest

from lb.wire.http2.beginnings import Beginning, Beginnings
from lb.wire.http2.fields import FieldCache, encode_field
from tests.wire.frames import request_fields

NOTHING: frozenset[bytes] = frozenset()
START = b"".join(encode_field(*pair) for pair in request_fields())
WITHOUT_TE = b"".join(encode_field(*pair) for pair in request_fields()[:-1])


def trace(number: int) -> bytes:
    return encode_field(b"traceparent", b"00-%032x" % number)


def learned(
    start: bytes = START,
    *,
    private: frozenset[bytes] = NOTHING,
    noted: frozenset[bytes] = NOTHING,
) -> tuple[Beginnings, Beginning]:
    beginnings = Beginnings(private, noted)
    later = start + trace(2)
    found = beginnings.learn(FieldCache().split(later), later, start + trace(1))
    assert found is not None
    return beginnings, found


def test_what_two_blocks_have_in_common_is_learned_in_whole_fields() -> None:
    beginnings, found = learned()
    assert found.block == START
    assert found.facts.path == dict(request_fields())[b":path"]
    block = START + trace(3)
    assert beginnings.learn(FieldCache().split(block), block, START + trace(4)) is found


def test_too_little_in_common_is_not_learned() -> None:
    block = START + trace(1)
    other = START.replace(b"/inference", b"/different")
    assert Beginnings(NOTHING, NOTHING).learn(FieldCache().split(block), block, other) is None


def test_secrets_are_no_beginning() -> None:
    secret = encode_field(b"authorization", b"x", never_indexed=True)
    _, found = learned(START + secret)
    assert found.block == START


def test_the_rest_of_a_block_completes_the_head() -> None:
    beginnings, found = learned()
    rest = encode_field(b"grpc-timeout", b"5S") + trace(3) + encode_field(b"x-request-id", b"me")
    head = beginnings.complete(found, START + rest)
    assert head is not None
    assert (head.facts.timeout_s, head.facts.request_id, head.block) == (5, b"me", START + rest)
    assert head.facts.count == found.facts.count + 3
    again = beginnings.complete(found, START)
    assert again is not None
    assert again.facts.timeout_s is None


def test_a_missing_te_is_added_once() -> None:
    te = encode_field(b"te", b"trailers")
    beginnings, found = learned(WITHOUT_TE)
    for rest in (trace(3), te + trace(3)):
        head = beginnings.complete(found, WITHOUT_TE + rest)
        assert head is not None
        assert head.block.count(te) == 1


def test_fields_that_are_ours_to_send_are_dropped_from_the_beginning() -> None:
    mine = encode_field(b"x-who", b"me")
    beginnings, found = learned(START + mine, private=frozenset({b"x-who"}))
    head = beginnings.complete(found, START + mine + trace(3))
    assert head is not None
    assert head.block == START + trace(3)
    assert beginnings.complete(found, START + mine + mine) is None


def test_fields_that_the_owner_wants_to_see_are_noted_wherever_they_stand() -> None:
    first, second = encode_field(b"x-who", b"1"), encode_field(b"x-who", b"2")
    beginnings, found = learned(START + first, noted=frozenset({b"x-who"}))
    head = beginnings.complete(found, START + first + trace(3) + second)
    assert head is not None
    assert head.noted == ((b"x-who", b"1"), (b"x-who", b"2"))


@pytest.mark.parametrize(
    "rest",
    [
        encode_field(b"te", b"trailers"),
        encode_field(b"content-length", b"3"),
        encode_field(b"connection", b"close"),
        encode_field(b"Upper", b"case"),
        encode_field(b"x", b" y"),
        encode_field(b"x" * 80, b"y"),
        encode_field(b"x" * 200, b"y"),
        b"\x90",
        b"\x20",
        b"\x00\x03ab",
        b"\x00\x01a\x05b",
        b"\x00\x01a\x81\x00",
        b"\x7f\xff\xff\xff\xff\xff\x01a",
    ],
)
def test_anything_unusual_is_left_to_the_reference(rest: bytes) -> None:
    beginnings, found = learned()
    for _ in range(2):
        assert beginnings.complete(found, START + rest) is None


def test_a_block_is_worth_keeping_from_the_second_time() -> None:
    beginnings = Beginnings(NOTHING, NOTHING)
    assert [beginnings.came_before(block) for block in (b"a", b"b", b"a", b"a")] == [
        False, False, True, True,
    ]  # fmt: skip


def test_what_is_remembered_is_bounded() -> None:
    beginnings, found = learned()
    cache = FieldCache()
    for number in range(10_000):
        beginnings.came_before(b"%d" % number)
        if number < 1000:
            rest = encode_field(b"x-%d" % number, b"y")
            assert beginnings.complete(found, START + rest) is not None
            block = START + rest
            beginnings.learn(cache.split(block), block, block)
    assert len(beginnings) <= 8192 + 2 * 256


@pytest.mark.parametrize("value", [b"YWI", b"not!base64"])
def test_binary_metadata_behind_a_beginning_is_checked(value: bytes) -> None:
    beginnings, found = learned()
    rest = encode_field(b"grpc-trace-bin", value) + encode_field(b"grpc-timeout", b"5S")
    head = beginnings.complete(found, START + rest)
    assert head is not None
    assert bool(head.facts.unusable) == (value != b"YWI")
