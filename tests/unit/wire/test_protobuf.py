"""The walk over undecoded messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.kserve import inference_pb2 as pb
from lb.wire.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    MAX_FIELDS,
    VARINT,
    FieldBudget,
    ProtobufError,
    TooManyFields,
    fields,
    varint,
)


def test_fields_are_given_in_their_order_with_what_they_span() -> None:
    message = b"\x08\x96\x01" + b"\x12\x02hi" + b"\x1d\1\2\3\4" + b"\x21" + b"12345678"

    found = list(fields(message))

    assert [(number, kind) for number, kind, _, _ in found] == [
        (1, VARINT),
        (2, BYTES),
        (3, FIXED32),
        (4, FIXED64),
    ]
    assert varint(message, found[0][2], found[0][3]) == (150, 3)
    assert message[found[1][2] : found[1][3]] == b"hi"
    assert message[found[2][2] : found[2][3]] == b"\1\2\3\4"
    assert message[found[3][2] : found[3][3]] == b"12345678"


def test_a_message_within_another_is_walked_in_place() -> None:
    outer = b"\x0a\x04\x12\x02hi\x10\x01"
    (_, _, start, end), _ = fields(outer)

    assert [outer[a:b] for _, _, a, b in fields(outer, start, end)] == [b"hi"]


def test_a_group_is_skipped_with_all_that_is_in_it() -> None:
    message = b"\x13" + b"\x0a\x01x" + b"\x1b\x08\x01\x1c" + b"\x14" + b"\x0a\x01y"

    assert [message[start:end] for _, _, start, end in fields(message)] == [b"y"]


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a\x05abc",  # longer than the message
        b"\x08",  # a number is missing
        b"\x08\xff",  # cut off
        b"\x08" + b"\xff" * 11,  # too long
        b"\x02\x00",  # field 0
        b"\x0e",  # wire type 6
        b"\x0f",  # wire type 7
        b"\x13",  # a group without its end
        b"\x14",  # an end without its group
        b"\x13\x1c",  # the end of another group
        b"\x0d\1\2",  # four bytes are missing
        b"\x09\1\2\3\4",  # eight
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01",  # number too large
        b"\x13" * 101,  # groups too deep
    ],
)
def test_what_no_parser_takes_is_an_error(message: bytes) -> None:
    with pytest.raises(ProtobufError):
        list(fields(message))


def test_numbers_have_64_bits() -> None:
    assert varint(b"\xff" * 9 + b"\x01", 0, 10) == (2**64 - 1, 10)


@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_else(message: bytes) -> None:
    try:
        spans = list(fields(message))
    except ProtobufError:
        return
    assert all(0 <= start <= end <= len(message) for _, _, start, end in spans)


@given(st.lists(st.binary(max_size=300), max_size=5), st.text(max_size=20), st.booleans())
def test_finds_what_protobuf_wrote(tensors: list[bytes], model: str, is_start: bool) -> None:
    request = pb.ModelInferRequest(model_name=model, raw_input_contents=tensors)
    request.parameters["sequence_start"].bool_param = is_start
    message = request.SerializeToString()

    found = [message[start:end] for number, _, start, end in fields(message) if number == 7]

    assert found == tensors


def test_groups_without_end_are_given_up() -> None:
    with pytest.raises(ProtobufError):
        list(fields(b"\x13" + b"\x08\x01" * 5000 + b"\x14"))


def test_a_budget_is_shared_by_all_walks_over_a_message() -> None:
    message = b"\x0a\x04\x12\x00\x12\x00" * 3
    budget = FieldBudget(7)

    def within() -> list[int]:
        walk = fields(message, 0, None, budget)
        return [len(list(fields(message, start, end, budget))) for _, _, start, end in walk]

    with pytest.raises(TooManyFields):
        within()
    assert budget.left == 0
    budget.left = 9
    assert within() == [2, 2, 2]


def test_no_walk_is_without_a_budget() -> None:
    assert len(list(fields(b"\x08\x01" * MAX_FIELDS))) == MAX_FIELDS
    with pytest.raises(TooManyFields):
        list(fields(b"\x08\x01" * (MAX_FIELDS + 1)))
    with pytest.raises(TooManyFields):
        list(fields(b"\x0b" + b"\x08\x01" * MAX_FIELDS + b"\x0c"))
