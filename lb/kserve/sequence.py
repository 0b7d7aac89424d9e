"""What a request says of its sequence: read from the wire, without decoding the request.

Sources: Triton `src/grpc/infer_handler.cc` and `src/http_server.cc` (the reserved parameters
`sequence_id`, `sequence_start` and `sequence_end`), and a real Triton where those leave questions:
an id of 0 or "" is none, of several `parameters` in JSON the first count, a text ends at a NUL,
and an id of more than 128 bytes is an error. Whatever Triton answers with an error has no step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from lb.domain.sequence import SequenceKey, SequenceStep
from lb.kserve.json_parameters import ParametersScan
from lb.wire.protobuf import (
    BYTES,
    FIXED64,
    VARINT,
    Field,
    FieldBudget,
    ProtobufError,
    TooManyFields,
    fields,
    varint,
)

SEQUENCE_ID_BYTES: Final = 128
"""Longest id that Triton takes (`STRING_CORRELATION_ID_MAX_LENGTH_BYTES`)."""
_MODEL_NAME_BYTES: Final = 1024
"""Longer names no server has models of; sequences, and with them the names, are remembered."""
MAX_FIELDS: Final = 1024
"""Fields of a message that are looked at, those of its parameters included: half a millisecond.
Clients write parameters before tensors, so they are among the first."""
_MAX_ENTRY_FIELDS: Final = 16
"""Within one parameter; it has two, and its value has one."""
_U64: Final = 2**64

# Fields of ModelInferRequest, of an entry of its parameters, and of InferParameter.
_MODEL: Final = 1
_VERSION: Final = 2
_PARAMETERS: Final = 4
_FIRST_TENSOR_FIELD: Final = 5
_LAST_TENSOR_FIELD: Final = 7
_ENTRY_KEY: Final = 1
_ENTRY_VALUE: Final = 2
_BOOL: Final = 1
_INT64: Final = 2
_STRING: Final = 3
_KIND_OF_CHOICE: Final = {_BOOL: VARINT, _INT64: VARINT, _STRING: BYTES, 4: FIXED64, 5: VARINT}
_NAMES: Final = {name.encode(): name for name in ("sequence_id", "sequence_start", "sequence_end")}
_LONGEST_NAME: Final = max(map(len, _NAMES))

Message = bytes | memoryview
Value = bool | int | str | None
"""Of a parameter; None stands for what no sequence has."""


class Incomplete(Exception):
    """More of the message is needed to tell."""


class Asked(NamedTuple):
    """What of a ModelInferRequest decides where it goes."""

    model: bytes
    version: bytes
    step: SequenceStep | None


_NOTHING_ASKED: Final = Asked(b"", b"", None)


def grpc_asked(
    message: Message, size: int | None = None, budget: FieldBudget | None = None
) -> Asked:
    """What a ModelInferRequest asks for, and of which sequence it is a step.

    Of a message that no server can parse, or that nobody writes, nothing is said. That includes one
    in which no tensor is among the first fields. In a message with very many tensors, parameters
    far behind the first tensor are not seen. What asks for a
    model's metadata, configuration or readiness has its name and version in the same fields.

    Args:
        message: without its prefix, not compressed; its first part does, too.
        size: bytes of the whole message where only a part is there. Then the first tensor decides
            that there are no parameters to come: all writers put them before.
        budget: for the fields; None is one of `MAX_FIELDS`.

    Raises:
        Incomplete: the part is too short.
    """
    whole = len(message)
    if size is None or size <= whole:
        size = whole
    names = [b"", b"", b""]
    said: dict[str, Value] = {}
    try:
        if not _read_fields(message, size, names, said, budget or FieldBudget(MAX_FIELDS)):
            return _NOTHING_ASKED
    except ProtobufError:
        return _NOTHING_ASKED
    except IndexError as error:
        raise Incomplete from error
    model = names[_MODEL]
    return Asked(model, names[_VERSION], _step(model, said) if said else None)


def _read_fields(
    message: Message,
    size: int,
    names: list[bytes],
    said: dict[str, Value],
    budget: FieldBudget,
) -> bool:
    """Note the names and parameters that a message of `size` bytes begins with. False when there
    are so many fields that nobody writes them."""
    whole = len(message)
    has_tensors = False
    try:
        for number, kind, start, end in fields(message, 0, size, budget):
            if _FIRST_TENSOR_FIELD <= number <= _LAST_TENSOR_FIELD:
                has_tensors = True
                if size > whole:
                    break
            if end > whole:
                raise Incomplete
            if kind == BYTES:
                if number <= _VERSION:
                    names[number] = bytes(message[start:end])
                elif number == _PARAMETERS:
                    _read_entry(message, start, end, said, budget)
    except TooManyFields:
        return has_tensors
    return True


def _read_entry(
    message: Message, start: int, end: int, said: dict[str, Value], budget: FieldBudget
) -> None:
    """Note one parameter, if it is one of ours. Of several with a name the last counts."""
    key = b""
    values: list[tuple[int, int]] = []
    for number, kind, begin, stop in _few_fields(message, start, end, budget):
        if kind != BYTES:
            continue
        if number == _ENTRY_KEY:
            key = bytes(message[begin : min(stop, begin + _LONGEST_NAME + 1)])
        elif number == _ENTRY_VALUE:
            values.append((begin, stop))
    name = _NAMES.get(key)
    if name is not None:
        said[name] = _choice(message, values, budget)


def _choice(message: Message, values: list[tuple[int, int]], budget: FieldBudget) -> Value:
    """The value of an InferParameter, where it is of a type that a sequence's parameter may have.

    Written in several parts these count as one message; in a `oneof` the last counts.
    """
    value: Value = None
    for start, end in values:
        for number, kind, begin, stop in _few_fields(message, start, end, budget):
            if _KIND_OF_CHOICE.get(number) != kind:
                continue
            if number == _BOOL:
                value = varint(message, begin, stop)[0] != 0
            elif number == _INT64:
                value = varint(message, begin, stop)[0]
            elif number == _STRING:
                value = _text(message, begin, stop)
            else:
                value = None
    return value


def _few_fields(message: Message, start: int, end: int, budget: FieldBudget) -> Iterator[Field]:
    for count, field in enumerate(fields(message, start, end, budget)):
        if count == _MAX_ENTRY_FIELDS:
            raise ProtobufError("no writer makes such a parameter")
        yield field


def _text(message: Message, start: int, end: int) -> str | None:
    try:
        return bytes(message[start:end]).decode()
    except UnicodeDecodeError as error:
        raise ProtobufError("text is not UTF-8") from error


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
    for name in _NAMES.values():
        if name in parameters:
            value = parameters[name]
            said[name] = value if isinstance(value, bool | int | str) else None
    return _step(model, said) if said else None


def _step(model: bytes, said: Mapping[str, Value]) -> SequenceStep | None:
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
