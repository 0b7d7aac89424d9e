"""How much work an inference in JSON is, and how urgent: read without decoding the request.

Rows are the first number in the shape of the first input: with batching that is the batch
dimension (Triton's model configuration, `max_batch_size`). The priority is the request parameter
of that name (Triton's extension "schedule policy"): 1 is the highest, 0 leaves it to the model.
`lb.kserve.inspect` finds the same in messages of gRPC.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from lb.kserve.json_parameters import ParametersScan

UNSAID: Final = 0
"""The priority of a request that leaves it to the model."""
_MAX_ROWS: Final = 1 << 20
"""More are not believed."""
MAX_PRIORITY: Final = 1 << 32

_INPUTS_IN_JSON: Final = re.compile(rb'"inputs"\s*+:\s*+\[')
_SHAPE_IN_JSON: Final = re.compile(rb'"shape"\s*+:\s*+\[\s*+(\d{1,9})[\s,\]]')


class Work(NamedTuple):
    """What an inference says of itself."""

    rows: int = 1
    """1 where it says nothing."""
    priority: int = UNSAID


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
    return (1, 0) if shape is None else (believed(int(shape[1])), shape.end())


def json_priority(head: bytes) -> int:
    """The priority, which stands among the parameters of the request."""
    scan = ParametersScan()
    scan.feed(head)
    said = scan.parameters.get("priority")
    if isinstance(said, int) and not isinstance(said, bool) and 0 <= said <= MAX_PRIORITY:
        return said
    return UNSAID


def believed(rows: int) -> int:
    """So many rows, or 1 where nobody has as many."""
    return rows if 0 < rows <= _MAX_ROWS else 1
