"""What a request says of its sequence: read from the wire, without decoding the request.

Sources: Triton `src/grpc/infer_handler.cc` and `src/http_server.cc` (the reserved parameters
`sequence_id`, `sequence_start` and `sequence_end`), and a real Triton where those leave questions:
an id of 0 or "" is none, of several `parameters` in JSON the first count, a text ends at a NUL,
and an id of more than 128 bytes is an error. Whatever Triton answers with an error has no step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lb.domain.sequence import SequenceKey, SequenceStep
from lb.kserve.json_parameters import ParametersScan

SEQUENCE_ID_BYTES: Final = 128
"""Longest id that Triton takes (`STRING_CORRELATION_ID_MAX_LENGTH_BYTES`)."""
_MODEL_NAME_BYTES: Final = 1024
"""Longer names no server has models of; sequences, and with them the names, are remembered."""
_U64: Final = 2**64

SEQUENCE_PARAMETERS: Final = ("sequence_id", "sequence_start", "sequence_end")

Value = bool | int | str | None
"""Of a parameter; None stands for what no sequence has."""


def http_step(head: bytes, model: bytes) -> SequenceStep | None:
    """What the JSON of an inference says of its sequence; None when it is none of a sequence.

    Args:
        head: the JSON part, complete.
        model: its name.
    """
    if b"sequence_id" not in head and b"\\u" not in head:
        return None
    scan = ParametersScan()
    scan.feed(head)
    return json_step(scan.parameters, model)


def json_step(parameters: Mapping[str, object], model: bytes) -> SequenceStep | None:
    """The step that the parameters of an inference in JSON make."""
    said: dict[str, Value] = {}
    for name in SEQUENCE_PARAMETERS:
        if name in parameters:
            value = parameters[name]
            said[name] = value if isinstance(value, bool | int | str) else None
    return step_of(model, said) if said else None


def step_of(model: bytes, said: Mapping[str, Value]) -> SequenceStep | None:
    """The step that parameters make, by their names."""
    is_start = said.get("sequence_start", False)
    is_end = said.get("sequence_end", False)
    if not isinstance(is_start, bool) or not isinstance(is_end, bool):
        return None
    sequence_id = _known_id(said.get("sequence_id"))
    if not sequence_id or len(model) > _MODEL_NAME_BYTES:
        return None
    return SequenceStep(SequenceKey(model, sequence_id), is_start, is_end)


def _known_id(value: Value) -> int | str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if 0 < value < _U64 else None
    text = value.partition("\0")[0]
    try:
        size = len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return None
    return text if size <= SEQUENCE_ID_BYTES else None
