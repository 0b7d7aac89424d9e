"""Batches of gRPC: a ModelInferRequest is cut by rows, ModelInferResponses are joined.

Source: `grpc_service.proto` of triton-inference-server/common, and how Triton reads it
(`src/grpc/infer_handler.cc`): raw contents stand in the order of the inputs that have neither typed
contents nor shared memory, and are not mixed with typed ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError

from lb.kserve import inference_pb2 as pb
from lb.kserve.datatypes import BYTES, TYPED_CONTENTS
from lb.kserve.merge.steps import STEP_BYTES, Steps
from lb.kserve.split.tensors import (
    BYTE_SIZE,
    MAX_PARSED,
    OFFSET,
    REGION,
    SEQUENCE,
    NotMerged,
    NotSplit,
    Rows,
    VersionsDiffer,
    check_output,
    check_region,
    check_size,
    common_rows,
    find_rows,
    stride,
)
from lb.wire.grpc.message import message_prefix
from lb.wire.protobuf import BYTES as DELIMITED
from lb.wire.protobuf import MAX_FIELDS, FieldBudget, ProtobufError, fields, write_varint
from lb.wire.rope import Held, Payload, Rope, rope_of

PieceT = TypeVar("PieceT", memoryview, Held)

_RAW_INPUTS: Final = 7
_RAW_OUTPUTS: Final = 6
_MAX_INPUTS: Final = 256
"""Inputs of a request. Each part has all of them."""
_MAX_FIELDS: Final = 1024
"""Fields of a request: inputs, as many raw contents, outputs and parameters. A walk over them takes
two milliseconds."""
_MAX_TYPED: Final = 2**17
"""Elements of typed contents that are cut: each becomes an object of Python."""
_MAX_SKELETON: Final = 32 * 1024
"""Bytes of a request beside contents: its other fields are parsed at once, and copied for each
part. Parameters take a tenth of a microsecond per byte."""
_INPUT, _CONTENTS = 5, 5
"""Fields of a request, and of an input."""
_ELEMENTS_PER_UNIT: Final = 16
_BYTES_PER_UNIT: Final = 64
_ELEMENT_BYTES: Final = 16
_STRING_BYTES: Final = 40
"""Memory that an element takes at most once it is parsed, beside the characters of a string,
measured. On the wire it may be a single byte."""
_INPUT_UNITS: Final = 8
"""What a part costs for what is in the message, in microseconds, measured."""
_NUMBERS: Final = frozenset({"int64_param", "uint64_param", "double_param"})


class MessageCut:
    """A ModelInferRequest that can be cut by rows."""

    __slots__ = ("_head", "_raw", "_typed", "memory", "part_units", "rows")

    def __init__(self, request: Any, rows: int, raw: list[Rows], elements: int) -> None:
        """
        Args:
            request: the message without raw contents.
            rows: those of all inputs.
            raw: those of the raw contents, in their order.
            elements: in typed contents.
        """
        self.rows = rows
        """Those of all inputs."""
        self._raw = raw
        # Nothing is copied from message to message: an arena keeps what its message dropped.
        self._typed = [_typed_contents(each) for each in request.inputs]
        """The typed contents of each input, if it has any."""
        self.memory = sum(map(_memory_of, request.inputs))
        """Bytes that it takes beside the raw contents, for itself and for all parts."""
        for each in request.inputs:
            each.ClearField("contents")
        self._head = pb.ModelInferRequest.FromString(request.SerializeToString())
        """All of it but contents."""
        self.part_units = (
            elements // _ELEMENTS_PER_UNIT
            + self._head.ByteSize() // _BYTES_PER_UNIT
            + len(self._typed) * _INPUT_UNITS
        )
        """Microseconds at most to make a part."""

    def pin(self, version: bytes) -> None:
        """Have all parts from now on ask for a version of the model."""
        self._head.model_version = version.decode()

    def part(self, first: int, count: int) -> list[Held]:
        """The message, with its prefix, that asks for `count` rows from row `first` on. Raw
        contents stay where they lie in the whole message."""
        part = pb.ModelInferRequest()
        part.CopyFrom(self._head)
        for each, typed in zip(part.inputs, self._typed, strict=True):
            if REGION in each.parameters:
                row = stride(each.datatype, each.shape)
                each.parameters[OFFSET].int64_param += first * row
                each.parameters[BYTE_SIZE].int64_param = count * row
            elif typed is not None:
                name = TYPED_CONTENTS[each.datatype]
                contents = getattr(typed, name)
                row = len(contents) // self.rows
                getattr(each.contents, name).extend(contents[first * row : (first + count) * row])
            each.shape[0] = count
        data = [rows.pieces(first, count) for rows in self._raw]
        return _message(part.SerializeToString(), _RAW_INPUTS, data)


def _typed_contents(each: Any) -> Any:
    """The typed contents of an input as a message of their own; None where it has none."""
    if not each.HasField("contents"):
        return None
    return pb.InferTensorContents.FromString(each.contents.SerializeToString())


def _memory_of(each: Any) -> int:
    """Bytes that the typed contents of an input take: once parsed, and once more in the parts."""
    if not each.HasField("contents"):
        return 0
    elements = len(getattr(each.contents, TYPED_CONTENTS[each.datatype]))
    size: int = each.contents.ByteSize()
    return elements * (_STRING_BYTES if each.datatype == BYTES else _ELEMENT_BYTES) + 2 * size


def cut_message(message: Payload | Rope) -> Steps[MessageCut]:
    """Read a message, without its prefix and not compressed, in steps.

    Raises:
        NotSplit: it cannot be cut.
    """
    try:
        head, contents = _without_raw(rope_of(message), _RAW_INPUTS, _MAX_FIELDS)
        _check_skeleton(head)
        is_long = len(head) > STEP_BYTES
        if is_long:
            yield
        request = pb.ModelInferRequest.FromString(head)
        if is_long:
            yield
    except (DecodeError, ProtobufError, IndexError) as error:
        raise NotSplit("it is no inference") from error
    if len(request.inputs) > _MAX_INPUTS:
        raise NotSplit("it has very many inputs")
    _check_parameters(request)
    rows = common_rows([each.shape for each in request.inputs])
    raw: list[Rows] = []
    elements = 0
    given = iter(contents)
    for each in request.inputs:
        if REGION in each.parameters:
            _check_region(each, rows)
        elif not contents:
            elements += _check_typed(each)
        elif each.HasField("contents"):
            raise NotSplit("raw and typed contents are mixed")
        else:
            data = next(given, None)
            if data is None:
                raise NotSplit("raw contents are missing")
            raw.append((yield from find_rows(data, each.datatype, each.shape)))
    if next(given, None) is not None:
        raise NotSplit("there are more raw contents than inputs")
    if elements > _MAX_TYPED:
        raise NotSplit("typed contents have very many elements")
    if is_long:
        yield
    return MessageCut(request, rows, raw, elements)


def join_messages(
    answers: Sequence[Payload | Rope], rows: Sequence[int]
) -> Steps[tuple[list[Payload], str]]:
    """Make one answer of those to the parts of a request, in steps.

    Args:
        answers: messages without prefix, not compressed, in the order of the rows.
        rows: of each part.

    Returns:
        The message with its prefix, in pieces, and the version of the model that answered.

    Raises:
        NotMerged: the outputs are not those of parts, or the parts are of several versions.
    """
    read = []
    for answer in answers:
        read.append(_read_answer(answer))
        yield
    first, first_raw = read[0]
    versions = {response.model_version for response, _ in read}
    if len(versions) > 1:
        raise VersionsDiffer(versions)
    joined = pb.ModelInferResponse()
    joined.CopyFrom(first)
    _merge_parameters(joined.parameters, [response.parameters for response, _ in read])
    raw: list[list[memoryview]] = [[] for _ in first_raw]
    names = [output.name for output in first.outputs]
    if len(set(names)) != len(names):
        raise NotMerged("an output stands twice in an answer")
    parameters: list[list[Any]] = [[] for _ in names]
    for part, ((response, pieces), count) in enumerate(zip(read, rows, strict=True)):
        yield
        outputs = {output.name: (at, output) for at, output in enumerate(response.outputs)}
        if outputs.keys() != set(names) or len(pieces) != len(first_raw):
            raise NotMerged("parts have different outputs")
        for place, output in enumerate(joined.outputs):
            at, other = outputs[output.name]
            model = first.outputs[place]
            check_output(
                output.name, (model.datatype, model.shape), (other.datatype, other.shape), count
            )
            if pieces:
                check_size(output.name, other.datatype, other.shape, len(pieces[at]))
                raw[place] += pieces[at].views(0, len(pieces[at]))
            elif part:
                output.contents.MergeFrom(other.contents)
            if part:
                output.shape[0] += count
            parameters[place].append(other.parameters)
    for output, found in zip(joined.outputs, parameters, strict=True):
        _merge_parameters(output.parameters, found)
    return _message(joined.SerializeToString(), _RAW_OUTPUTS, raw), first.model_version


def first_rows(message: Payload, size: int) -> int | None:
    """The rows of the first input of a message, of which the first bytes have come.

    Args:
        message: without its prefix, not compressed.
        size: bytes of the whole message.

    Returns:
        None when more of it is needed to tell; 1 where nothing is said of it.
    """
    try:
        for number, kind, begin, end in fields(message, 0, size):
            if number == 5 and kind == DELIMITED:
                return _first_dimension(message, begin, end)
            if number > 5 or end > len(message):
                return 1 if number > 5 else None
    except ProtobufError:
        return 1
    except IndexError:
        return None
    return 1


def _first_dimension(message: Payload, begin: int, end: int) -> int:
    """The first number in the shape of an input.

    Raises:
        ProtobufError: it is malformed.
        IndexError: it is cut off.
    """
    for number, kind, first, last in fields(message, begin, end):
        if number != 3:
            continue
        at, value, shift = first, 0, 0
        if kind == DELIMITED and first == last:
            return 1
        while True:
            byte = message[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80 or shift > 63:
                return value
            at, shift = at + 1, shift + 7
    return 1


def _check_skeleton(head: bytes) -> None:
    """Check that a request is not too long beside its contents.

    Raises:
        NotSplit: it is.
        ProtobufError: it is malformed.
        IndexError: it is cut off.
    """
    if len(head) <= _MAX_SKELETON:
        return
    size = len(head)
    budget = FieldBudget()
    for number, kind, begin, end in fields(head):
        if number == _INPUT and kind == DELIMITED:
            for within, _, first, last in fields(head, begin, end, budget):
                if within == _CONTENTS:
                    size -= last - first
    if size > _MAX_SKELETON:
        raise NotSplit("it is long beside its contents")


def _without_raw(message: Rope, raw_field: int, most: int) -> tuple[bytes, list[Rope]]:
    """A message without its raw contents, and these.

    Args:
        message: without its prefix.
        raw_field: the number of the field that has them.
        most: fields at most.

    Raises:
        NotSplit: the rest is too long to be parsed.
        ProtobufError: it is malformed.
        IndexError: it is cut off.
    """
    head = bytearray()
    raw: list[Rope] = []
    done = 0
    for number, kind, begin, end in fields(message, budget=FieldBudget(most)):
        if number == raw_field:
            if kind != DELIMITED:
                raise ProtobufError("raw contents of another type")
            raw.append(message.part(begin, end))
        else:
            if len(head) + end - done > MAX_PARSED:
                raise NotSplit("typed contents are too long")
            head += message.read(done, end)
        done = end
    return bytes(head), raw


def _message(head: bytes, raw_field: int, raw: Sequence[Sequence[PieceT]]) -> list[bytes | PieceT]:
    """A message with its prefix: the head, and raw contents behind it, each in pieces."""
    pieces: list[bytes | PieceT] = [head]
    for contents in raw:
        size = sum(map(len, contents))
        pieces.append(bytes((raw_field << 3 | DELIMITED,)) + write_varint(size))
        pieces += contents
    pieces[0] = message_prefix(sum(map(len, pieces))) + head
    return pieces


def _check_parameters(request: Any) -> None:
    """Refuse steps of sequences, and outputs into shared memory.

    Raises:
        NotSplit: it is one, or asks for that.
    """
    for name in SEQUENCE & set(request.parameters):
        parameter = request.parameters[name]
        choice = parameter.WhichOneof("parameter_choice")
        if choice is not None and getattr(parameter, choice):
            raise NotSplit("it is a step of a sequence")
    if any(REGION in output.parameters for output in request.outputs):
        raise NotSplit("outputs go to shared memory")


def _check_region(each: Any, rows: int) -> None:
    """Check that an input in shared memory is as long as its shape says, and nowhere else.

    Raises:
        NotSplit: it is not, or its rows have no fixed size.
    """
    if each.HasField("contents"):
        raise NotSplit("an input has data in two places")
    for name in {OFFSET, BYTE_SIZE} & set(each.parameters):
        if not each.parameters[name].HasField("int64_param"):
            raise NotSplit("an input in shared memory has no place there")
    offset, size = (each.parameters[name].int64_param for name in (OFFSET, BYTE_SIZE))
    check_region(offset, size, rows * stride(each.datatype, each.shape))


def _check_typed(each: Any) -> int:
    """Check that typed contents are what data type and shape say. Returns their elements.

    Raises:
        NotSplit: they are not.
    """
    name = TYPED_CONTENTS.get(each.datatype)
    if name is None or not each.HasField("contents"):
        raise NotSplit("an input has no contents")
    elements = 1
    for dimension in each.shape:
        elements *= dimension
    filled = {field.name for field, _ in each.contents.ListFields()}
    if len(getattr(each.contents, name)) != elements or filled - {name}:
        raise NotSplit("an input is not as long as its shape says")
    return elements


def _read_answer(answer: Payload | Rope) -> tuple[Any, list[Rope]]:
    try:
        head, raw = _without_raw(rope_of(answer), _RAW_OUTPUTS, MAX_FIELDS)
        response = pb.ModelInferResponse.FromString(head)
    except NotSplit as error:
        raise NotMerged("an answer is too long to be parsed", is_of_model=False) from error
    except (DecodeError, ProtobufError, IndexError) as error:
        raise NotMerged("an answer is no inference response", is_of_model=False) from error
    if raw and len(raw) != len(response.outputs):
        raise NotMerged("an answer has raw contents for some outputs only")
    return response, raw


def _merge_parameters(into: Any, all_parts: Sequence[Any]) -> None:
    """Keep parameters that are equal in all parts, and of others those of the first part, unless
    they are numbers: these may count rows or bytes."""
    for key in list(into):
        choice = into[key].WhichOneof("parameter_choice")
        if choice in _NUMBERS and not all(
            key in parameters and parameters[key] == into[key] for parameters in all_parts
        ):
            del into[key]
