"""How much work an inference is, and how urgent: read from the wire, without decoding the request.

Rows are the first number in the shape of the first input: with batching that is the batch
dimension (Triton's model configuration, `max_batch_size`). The priority is the request parameter
of that name (Triton's extension "schedule policy"): 1 is the highest, 0 leaves it to the model.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from lb.kserve.json_parameters import ParametersScan
from lb.wire.protobuf import BYTES, VARINT, ProtobufError, fields, varint

UNSAID: Final = 0
"""The priority of a request that leaves it to the model."""
_MAX_ROWS: Final = 1 << 20
"""More are not believed."""
_MAX_FIELDS: Final = 256
"""Fields of a message that are looked at: parameters, and those of the first input."""
_PRIORITY: Final = b"priority"
_MAX_PRIORITY: Final = 1 << 32

# Fields of ModelInferRequest, of an entry of its parameters, of InferParameter and of an input.
_PARAMETERS: Final = 4
_INPUTS: Final = 5
_KEY: Final = 1
_VALUE: Final = 2
_NUMBERS: Final = frozenset({2, 5})
_SHAPE: Final = 3

_INPUTS_IN_JSON: Final = re.compile(rb'"inputs"\s*:\s*\[')
_SHAPE_IN_JSON: Final = re.compile(rb'"shape"\s*:\s*\[\s*(\d{1,9})[\s,\]]')


class Work(NamedTuple):
    """What an inference says of itself."""

    rows: int = 1
    """1 where it says nothing."""
    priority: int = UNSAID


NOTHING_KNOWN: Final = Work()


def grpc_work(message: bytes | memoryview) -> Work:
    """What a ModelInferRequest says, or the first part of one.

    Args:
        message: without its prefix, not compressed.
    """
    rows, priority = 1, UNSAID
    whole = len(message)
    try:
        left = _MAX_FIELDS
        # The end of the last field may be missing, which is why the end is not that of the bytes.
        for number, kind, start, end in fields(message, 0, 1 << 62):
            left -= 1
            if kind == BYTES and number == _PARAMETERS and end <= whole:
                priority = _priority(message, start, end, priority)
            elif kind == BYTES and number == _INPUTS:
                rows = _rows(message, start, end)
                break
            if end >= whole or not left:
                break
    except (IndexError, ProtobufError):
        pass
    return Work(rows, priority)


def _priority(message: bytes | memoryview, start: int, end: int, before: int) -> int:
    """What one parameter says, if it is the priority."""
    key, value = b"", None
    for number, kind, first, last in fields(message, start, end):
        if kind != BYTES:
            continue
        if number == _KEY:
            key = bytes(message[first : min(last, first + len(_PRIORITY) + 1)])
        elif number == _VALUE:
            for choice, kind_within, at, stop in fields(message, first, last):
                if choice in _NUMBERS and kind_within == VARINT:
                    value = varint(message, at, stop)[0]
    if key != _PRIORITY or value is None or value > _MAX_PRIORITY:
        return before
    return value


def _rows(message: bytes | memoryview, start: int, end: int) -> int:
    """The first dimension of an input."""
    for number, _, first, last in fields(message, start, end):
        if number == _SHAPE:
            # Packed, as proto3 writes it, or one by one.
            return _believed(varint(message, first, last)[0]) if first < last else 1
        if number > _SHAPE:
            break
    return 1


def json_work(head: bytes) -> Work:
    """What the JSON of an inference says, or the first part of it."""
    rows = 1
    inputs = _INPUTS_IN_JSON.search(head)
    if inputs is not None:
        shape = _SHAPE_IN_JSON.search(head, inputs.end())
        if shape is not None:
            rows = _believed(int(shape[1]))
    priority = UNSAID
    if b'"priority"' in head:
        scan = ParametersScan()
        scan.feed(head)
        said = scan.parameters.get("priority")
        if isinstance(said, int) and not isinstance(said, bool) and 0 <= said <= _MAX_PRIORITY:
            priority = said
    return Work(rows, priority)


def _believed(rows: int) -> int:
    return rows if 0 < rows <= _MAX_ROWS else 1
