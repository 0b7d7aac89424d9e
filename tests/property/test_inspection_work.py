"""What it costs to look into requests grows with their size, whatever is in them.

Counted are instructions of the interpreter, and bytes that methods of `bytes` go over.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lb.kserve.inspect import MAX_FIELDS, MAX_TENSOR_FIELDS, inspect
from lb.kserve.json_parameters import MAX_TOKENS, ParametersScan
from lb.kserve.regions import GrpcRegionWatch, http_regions
from lb.kserve.work import json_work
from lb.wire.grpc.message import frame_message
from tests.fakes.work import counted, instructions

UNITS = [
    b'"parameters",', b'"parameters":', b'"parameters" ', b'"parameters":1,', b'{"parameters":{',
    b'"inputs":[', b'"shape":[', b'"shared_memory_region":"', b'\\u0073', b"{", b"}", b"[", b"]",
    b'"', b'\\"', b"\\", b'""', b'"a":{},', b'"a":[[1]],', b",", b":", b" ", b"1.5,", b"\x01",
]  # fmt: skip
SIZE = 12_000
_PASSES = 40
"""Times that each byte is gone over."""
_PER_KEY = 40
"""Instructions for each thing that is looked at, the smallest of which has two bytes."""
_PER_PIECE = 600
"""Instructions for each piece of a body."""


def bodies(units: list[tuple[bytes, int]]) -> bytes:
    return b"".join(unit * count for unit, count in units)[:SIZE]


BODIES = st.lists(st.tuples(st.sampled_from(UNITS), st.integers(1, 800)), max_size=8).map(bodies)
HEADS = st.sampled_from([b'{"priority":1,', b'{"parameters":{"priority":1,', b"{", b'{"x":[', b""])


def gone_over(pieces: list[bytes]) -> int:
    """Bytes that the search for parameters goes over."""
    scan = ParametersScan()
    seen = 0
    for piece in pieces:
        data = counted(piece)
        over = scan.feed(data)
        seen += type(data).gone_over
        if over:
            break
    return seen


@settings(max_examples=60)
@given(HEADS, BODIES, st.lists(st.integers(0, SIZE), max_size=10))
def test_the_search_for_parameters_goes_over_each_byte_a_few_times(
    head: bytes, body: bytes, cuts: list[int]
) -> None:
    text = head + body
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    assert gone_over(pieces) <= _PASSES * (len(text) + 100 * len(pieces))
    scan = ParametersScan()
    cost = instructions(lambda: [scan.feed(piece) for piece in pieces])
    assert cost <= _PER_KEY * (len(text) // 2 + MAX_TOKENS) + _PER_PIECE * len(pieces)


@pytest.mark.parametrize("unit", UNITS)
def test_twice_the_body_costs_at_most_twice_as_much(unit: bytes) -> None:
    # Far from all limits, which would hide what grows with the square.
    small, large = (b'{"priority":1,' + unit * (size // len(unit)) for size in (2000, 8000))
    assert gone_over([large]) <= 5 * gone_over([small]) + 1000
    for read in (json_work, http_regions):
        costs = [instructions(partial(read, text)) for text in (small, large)]
        assert costs[1] <= 5 * costs[0] + 1000


FIELDS = [
    b"\x40\x01", b"\x1a\x00", b"\x22\x00", b"\x2a\x00", b"\x32\x00", b"\x3a\x00", b"\x43\x44",
    b"\x22\x04\x0a\x00\x12\x00", b"\x2a\x06\x22\x04\x0a\x00\x12\x00", b"\x45\0\0\0\0",
    b"\x22\x13\x0a\x0bsequence_id\x12\x04\x10\x01\x10\x02",
]  # fmt: skip
MESSAGES = st.lists(st.tuples(st.sampled_from(FIELDS), st.integers(1, 6000)), max_size=4).map(
    lambda units: b"".join(unit * count for unit, count in units)
)
_NAME_FIELDS = 16
"""Of a message of which only names are of interest."""
_PER_FIELD = 250
"""Instructions for a field, of which each level of nesting has its own."""


@settings(max_examples=20, deadline=None)
@given(MESSAGES)
def test_no_message_has_more_fields_looked_at_than_its_budget(message: bytes) -> None:
    for tag in (b"", b"\x22", b"\x2a"):  # as it is, as a parameter, and as a tensor
        size = len(message)
        length = bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14))
        whole = tag + length + message if tag else message
        assert instructions(partial(inspect, whole)) <= _PER_FIELD * MAX_FIELDS
        only_names = partial(inspect, whole, only_names=True)
        assert instructions(only_names) <= _PER_FIELD * _NAME_FIELDS
        with_rows = partial(inspect, whole, with_rows=True)
        assert instructions(with_rows) <= _PER_FIELD * MAX_FIELDS
        with_all = partial(inspect, whole, with_rows=True, with_regions=True)
        assert instructions(with_all) <= _PER_FIELD * MAX_TENSOR_FIELDS


@settings(max_examples=20, deadline=None)
@given(MESSAGES)
def test_no_step_of_an_inspection_takes_long(message: bytes) -> None:
    inspection = GrpcRegionWatch().inspect(frame_message(message))
    is_over = False

    def step() -> None:
        nonlocal is_over
        is_over = next(inspection, "over") is not None

    while not is_over:
        assert instructions(step) <= _PER_FIELD * 300
