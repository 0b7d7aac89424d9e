"""How much work an inference is, and how urgent: read from the wire, without decoding the request.

Rows are the first number in the shape of the first input: with batching that is the batch
dimension (Triton's model configuration, `max_batch_size`). The priority is the request parameter
of that name (Triton's extension "schedule policy"): 1 is the highest, 0 leaves it to the model.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from lb.kserve.json_parameters import ParametersScan
from lb.wire.protobuf import BYTES, VARINT, FieldBudget, ProtobufError, fields, varint

UNSAID: Final = 0
"""The priority of a request that leaves it to the model."""
_MAX_ROWS: Final = 1 << 20
"""More are not believed."""
_MAX_FIELDS: Final = 1024
"""Fields of a message that are looked at: parameters, and those of the first input."""
_QUICK_BYTES: Final = 512
"""Of a message that `quick_look` reads before the first input."""
_PRIORITY: Final = b"priority"
_MAX_PRIORITY: Final = 1 << 32

# Fields of ModelInferRequest, of an entry of its parameters, of InferParameter and of an input.
_PARAMETERS: Final = 4
_INPUTS: Final = 5
_KEY: Final = 1
_VALUE: Final = 2
_NUMBERS: Final = frozenset({2, 5})
_SHAPE: Final = 3

# The same as tags, all of them of what has a length.
_VERSION_TAG: Final = 2 << 3 | BYTES
_ID_TAG: Final = 3 << 3 | BYTES
_PARAMETERS_TAG: Final = _PARAMETERS << 3 | BYTES
_INPUTS_TAG: Final = _INPUTS << 3 | BYTES
_KEY_TAG: Final = _KEY << 3 | BYTES
_VALUE_TAG: Final = _VALUE << 3 | BYTES
_BEFORE_SHAPE: Final = frozenset({1 << 3 | BYTES, 2 << 3 | BYTES})
"""An input's name and its type."""
_SHAPE_TAG: Final = _SHAPE << 3 | BYTES
_NUMBER_TAGS: Final = frozenset({number << 3 | VARINT for number in _NUMBERS})

_INPUTS_IN_JSON: Final = re.compile(rb'"inputs"\s*+:\s*+\[')
_SHAPE_IN_JSON: Final = re.compile(rb'"shape"\s*+:\s*+\[\s*+(\d{1,9})[\s,\]]')


class Work(NamedTuple):
    """What an inference says of itself."""

    rows: int = 1
    """1 where it says nothing."""
    priority: int = UNSAID


NOTHING_KNOWN: Final = Work()


def grpc_work(message: bytes | memoryview, budget: FieldBudget | None = None) -> Work:
    """What a ModelInferRequest says, or the first part of one.

    Args:
        message: without its prefix, not compressed.
        budget: for the fields; None is one of a thousand.
    """
    rows, priority = 1, UNSAID
    whole = len(message)
    budget = FieldBudget(_MAX_FIELDS) if budget is None else budget
    try:
        # The end of the last field may be missing, which is why the end is not that of the bytes.
        for number, kind, start, end in fields(message, 0, 1 << 62, budget):
            if kind == BYTES and number == _PARAMETERS and end <= whole:
                priority = _priority(message, start, end, priority, budget)
            elif kind == BYTES and number == _INPUTS:
                rows = _rows(message, start, end, budget)
                break
            if end >= whole:
                break
    except (IndexError, ProtobufError):
        pass
    return Work(rows, priority)


def quick_look(message: bytes, at: int) -> tuple[bytes, int, int, int] | None:
    """The version, the rows and the priority that a ModelInferRequest says, and where what it goes
    by ends: a message of the same length that begins with the same bytes says the same.

    Args:
        message: all of it, perhaps within something longer.
        at: where the field behind the model's name begins.

    Returns:
        None where `grpc_asked` and `grpc_work` have to tell.
    """
    # HOT PATH (benchmarks/bench_schedule.py). One pass over what usual writers write: fields in the
    # order of their numbers, short ones before the first input, and nothing behind its shape is
    # looked at. `grpc_asked` and `grpc_work` are the reference.
    version = b""
    priority = UNSAID
    try:
        tag = message[at]
        while tag != _INPUTS_TAG:
            size = message[at + 1]
            at += 2
            if size > 0x7F or at > _QUICK_BYTES:
                return None
            if tag == _VERSION_TAG:
                version = message[at : at + size]
            elif tag == _PARAMETERS_TAG:
                said = _quick_priority(message, at, at + size)
                if said < 0:
                    return None
                priority = said or priority
            elif tag != _ID_TAG:
                return None
            at += size
            tag = message[at]
        rows, end = _quick_rows(message, at + 1)
    except (IndexError, ProtobufError):
        return None
    return (version, rows, priority, end) if rows else None


def _quick_rows(message: bytes, at: int) -> tuple[int, int]:
    """The first dimension of an input whose length stands at `at`, and where it ends; 0: look
    closely."""
    # HOT PATH (benchmarks/bench_schedule.py). See `quick_look`; `_rows` is the reference.
    size = message[at]
    at += 1
    if size > 0x7F:
        size, at = varint(message, at - 1, len(message))
    end = at + size
    tag = message[at]
    while tag in _BEFORE_SHAPE:
        size = message[at + 1]
        if size > 0x7F:
            return 0, at
        at += 2 + size
        tag = message[at]
    size = message[at + 1]
    rows = message[at + 2]
    if tag != _SHAPE_TAG or not size or at + 2 + size > end:
        return 0, at
    if rows < 0x80:
        return rows, at + 3
    more = message[at + 3]
    return (rows & 0x7F | more << 7 if more < 0x80 and size > 1 else 0), at + 4


def _quick_priority(message: bytes, at: int, end: int) -> int:
    """What a parameter says of the priority, 0 where it is another one; -1: look closely."""
    size = message[at + 1]
    value = at + size + 2
    if message[at] != _KEY_TAG or size > 0x7F or value + 2 > end:
        return -1
    if message[value] != _VALUE_TAG or value + message[value + 1] + 2 != end:
        return -1
    if message[at + 2 : value] != _PRIORITY:
        return 0
    if value + 4 != end or message[value + 2] not in _NUMBER_TAGS:
        return -1
    said = message[value + 3]
    return said if 0 < said < 0x80 else -1


def _priority(
    message: bytes | memoryview, start: int, end: int, before: int, budget: FieldBudget
) -> int:
    """What one parameter says, if it is the priority."""
    key, value = b"", None
    for number, kind, first, last in fields(message, start, end, budget):
        if kind != BYTES:
            continue
        if number == _KEY:
            key = bytes(message[first : min(last, first + len(_PRIORITY) + 1)])
        elif number == _VALUE:
            for choice, kind_within, at, stop in fields(message, first, last, budget):
                if choice in _NUMBERS and kind_within == VARINT:
                    value = varint(message, at, stop)[0]
    if key != _PRIORITY or value is None or value > _MAX_PRIORITY:
        return before
    return value


def _rows(message: bytes | memoryview, start: int, end: int, budget: FieldBudget) -> int:
    """The first dimension of an input."""
    for number, _, first, last in fields(message, start, end, budget):
        if number == _SHAPE:
            # Packed, as proto3 writes it, or one by one.
            return _believed(varint(message, first, last)[0]) if first < last else 1
        if number > _SHAPE:
            break
    return 1


def json_work(head: bytes) -> Work:
    """What the JSON of an inference says, or the first part of it."""
    return Work(json_rows(head)[0], json_priority(head) if b'"priority"' in head else UNSAID)


def json_rows(head: bytes) -> tuple[int, int]:
    """The first dimension of the first input that has one, and where it ends; 1 and 0 where there
    is none."""
    inputs = _INPUTS_IN_JSON.search(head)
    if inputs is None:
        return 1, 0
    shape = _SHAPE_IN_JSON.search(head, inputs.end())
    return (1, 0) if shape is None else (_believed(int(shape[1])), shape.end())


def json_priority(head: bytes) -> int:
    """The priority, which stands among the parameters of the request."""
    scan = ParametersScan()
    scan.feed(head)
    said = scan.parameters.get("priority")
    if isinstance(said, int) and not isinstance(said, bool) and 0 <= said <= _MAX_PRIORITY:
        return said
    return UNSAID


def _believed(rows: int) -> int:
    return rows if 0 < rows <= _MAX_ROWS else 1
