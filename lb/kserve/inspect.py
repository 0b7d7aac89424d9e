"""What a ModelInferRequest says that decides where it goes: read from the wire in one pass, without
decoding the request.

Sources: Triton `src/grpc/infer_handler.cc` (the reserved parameters `sequence_id`,
`sequence_start`, `sequence_end` and `priority`), its shared-memory extension, and a real Triton
where those leave questions. Rows are the first number in the shape of the first input: with
batching that is the batch dimension (Triton's model configuration, `max_batch_size`). The priority
is the request parameter of that name (extension "schedule policy"): 1 is the highest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lb.domain.sequence import SequenceStep
from lb.kserve.regions import KEY, TENSOR_PARAMETERS
from lb.kserve.sequence import SEQUENCE_PARAMETERS, Value, step_of
from lb.kserve.work import MAX_PRIORITY, UNSAID, believed
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

MAX_FIELDS: Final = 1024
"""Fields of a message that are looked at, those of its parameters included: half a millisecond.
Clients write parameters before tensors, so they are among the first."""
MAX_TENSOR_FIELDS: Final = 4096
"""Fields that are looked at where regions are looked for, those of tensors included: enough for 200
tensors in regions, which nearly always are on one backend."""
REQUEST_ID_BYTES: Final = 256
"""Longest id of a request that is remembered; ten thousands of messages may wait for answers."""
_MAX_ENTRY_FIELDS: Final = 16
"""Within one parameter; it has two, and its value has one."""
_NAME_FIELDS: Final = 16
"""Fields of a message of which nothing but names is of interest; they are its first three."""
_QUICK_BYTES: Final = 512
"""Bytes of a message that `inspect_quickly` reads before the first input."""

# Fields of ModelInferRequest, all of which have a length.
_MODEL: Final = 1
_VERSION: Final = 2
_ID: Final = 3
_PARAMETERS: Final = 4
_INPUTS: Final = 5
_LAST_TENSOR_FIELD: Final = 7
# Those of an input and an output, of an entry of a map of parameters, and of InferParameter.
_SHAPE: Final = 3
_KEY: Final = 1
_VALUE: Final = 2
_BOOL: Final = 1
_INT64: Final = 2
_STRING: Final = 3
_UINT64: Final = 5
_KIND_OF_CHOICE: Final = {
    _BOOL: VARINT,
    _INT64: VARINT,
    _STRING: BYTES,
    4: FIXED64,
    _UINT64: VARINT,
}
_NUMBERS: Final = frozenset({_INT64, _UINT64})
_PRIORITY: Final = b"priority"
_NAMES: Final = {name.encode(): name for name in (*SEQUENCE_PARAMETERS, _PRIORITY.decode())}
_LONGEST_NAME: Final = max(map(len, _NAMES))

# The same as tags, for `inspect_quickly`.
_VERSION_TAG: Final = _VERSION << 3 | BYTES
_ID_TAG: Final = _ID << 3 | BYTES
_PARAMETERS_TAG: Final = _PARAMETERS << 3 | BYTES
_INPUTS_TAG: Final = _INPUTS << 3 | BYTES
_KEY_TAG: Final = _KEY << 3 | BYTES
_VALUE_TAG: Final = _VALUE << 3 | BYTES
_BEFORE_SHAPE: Final = frozenset({1 << 3 | BYTES, 2 << 3 | BYTES})
"""An input's name and its type."""
_SHAPE_TAG: Final = _SHAPE << 3 | BYTES
_NUMBER_TAGS: Final = frozenset({_INT64 << 3 | VARINT, _UINT64 << 3 | VARINT})

Message = bytes | memoryview


class Findings:
    """What an inspection of an inference, of either protocol, found."""

    __slots__ = (
        "is_complete", "model", "priority", "regions", "request_id", "rows", "step", "version",
    )  # fmt: skip

    def __init__(self, version: bytes = b"") -> None:
        self.model = b""
        self.version = version
        self.step: SequenceStep | None = None
        """The step of a sequence that it is, if any."""
        self.request_id = b""
        """Empty where it has none, or one of unusual length."""
        self.rows = 1
        """Batch dimension; 1 where nothing is said of it."""
        self.priority = UNSAID
        self.regions: tuple[bytes, ...] = ()
        """All regions of shared memory that are named."""
        self.is_complete = True
        """False: more of the message is needed to tell the model, the version and the step."""


def inspect(
    message: Message,
    size: int | None = None,
    budget: FieldBudget | None = None,
    *,
    with_rows: bool = False,
    with_regions: bool = False,
    only_names: bool = False,
) -> Findings:
    """What a ModelInferRequest says, or the first part of one.

    Of a message that no server can parse, or that nobody writes, model, version and step are not
    said; the rest is what stands before the place that shows it. Nobody writes a message with no
    tensor among its first fields. In a message with very many tensors, parameters far behind the
    first tensor are not seen. What asks for a model's metadata, configuration or readiness has its
    name and version in the same fields.

    Args:
        message: without its prefix, not compressed; its first part does, too.
        size: bytes of the whole message where only a part is there. Then the first field that is
            none of the names and parameters decides that there are none to come: all writers put
            them before. Whatever is no ModelInferRequest is given up there, too.
        budget: for the fields; None is one of `MAX_FIELDS`, or `MAX_TENSOR_FIELDS` for regions.
        with_rows: find the rows.
        with_regions: find the regions, in the order in which they are named.
        only_names: neither parameters nor what stands behind the first tensor is of interest.
    """
    if only_names and not with_rows:
        budget = FieldBudget(_NAME_FIELDS)
    elif budget is None:
        budget = FieldBudget(MAX_TENSOR_FIELDS if with_regions else MAX_FIELDS)
    walk = _Walk(message, budget, with_rows=with_rows, with_regions=with_regions)
    whole = len(message)
    return walk.run(whole if size is None else max(size, whole), only_names=only_names)


class _Walk:
    """One pass over a message."""

    __slots__ = (
        "_budget", "_found", "_has_inputs", "_has_tensors", "_is_known", "_message", "_names",
        "_regions", "_said", "_with_regions", "_with_rows",
    )  # fmt: skip

    def __init__(
        self, message: Message, budget: FieldBudget, *, with_rows: bool, with_regions: bool
    ) -> None:
        self._message = message
        self._budget = budget
        self._with_rows = with_rows
        self._with_regions = with_regions
        self._found = Findings()
        self._names = [b"", b"", b"", b""]
        """By the number of their field."""
        self._said: dict[str, Value] = {}
        """Parameters of sequences."""
        self._regions: dict[bytes, None] = {}
        self._has_inputs = False
        self._has_tensors = False
        self._is_known = False
        """What the message asks for: what follows says nothing of that."""

    def run(self, size: int, *, only_names: bool) -> Findings:
        """What the message says, of which there may be `size` bytes."""
        found = self._found
        is_good = False
        try:
            self._read(size, only_names=only_names)
            is_good = True
        except TooManyFields:
            is_good = self._has_tensors
        except ProtobufError:
            pass
        except IndexError:
            found.is_complete = self._is_known
        names = self._names
        if len(names[_ID]) <= REQUEST_ID_BYTES:
            found.request_id = names[_ID]
        found.regions = tuple(self._regions)
        if is_good or self._is_known:
            found.model, found.version = names[_MODEL], names[_VERSION]
            found.step = step_of(found.model, self._said) if self._said else None
        return found

    def _read(self, size: int, *, only_names: bool) -> None:
        """Read field after field, as long as there is something to find.

        Raises:
            ProtobufError: it is malformed, or has too many fields.
            IndexError: it is cut off.
        """
        whole = len(self._message)
        for number, kind, start, end in fields(self._message, 0, size, self._budget):
            if kind == BYTES and number <= _PARAMETERS:
                if self._is_known or (only_names and number == _PARAMETERS):
                    continue
                if end > whole:
                    raise IndexError("cut off")
                if number == _PARAMETERS:
                    self._read_parameter(start, end)
                else:
                    self._names[number] = bytes(self._message[start:end])
                continue
            if _INPUTS <= number <= _LAST_TENSOR_FIELD:
                self._has_tensors = True
                if kind == BYTES:
                    self._read_tensor(number, start, end)
            if only_names or size > whole:
                self._is_known = True
                if end > whole or not self._with_regions:
                    break

    def _read_parameter(self, start: int, end: int) -> None:
        """Note one parameter, if it is one of ours. Of several with a name the last counts."""
        key = b""
        values: list[tuple[int, int]] = []
        for number, kind, begin, stop in self._few_fields(start, end):
            if kind != BYTES:
                continue
            if number == _KEY:
                key = bytes(self._message[begin : min(stop, begin + _LONGEST_NAME + 1)])
            elif number == _VALUE:
                values.append((begin, stop))
        name = _NAMES.get(key)
        if name is None:
            return
        choice, value = self._choice(values)
        if key != _PRIORITY:
            self._said[name] = None if choice == _UINT64 else value
        elif (
            choice in _NUMBERS
            and isinstance(value, int)
            and value <= MAX_PRIORITY
            and not self._has_inputs  # where no writer puts it, nor `inspect_quickly` looks
        ):
            self._found.priority = value

    def _choice(self, values: list[tuple[int, int]]) -> tuple[int, Value]:
        """The field and the value of an InferParameter.

        Written in several parts these count as one message; in a `oneof` the last counts.
        """
        choice = 0
        value: Value = None
        for start, end in values:
            for number, kind, begin, stop in self._few_fields(start, end):
                if _KIND_OF_CHOICE.get(number) != kind:
                    continue
                choice, value = number, None
                if number == _BOOL:
                    value = varint(self._message, begin, stop)[0] != 0
                elif number == _STRING:
                    value = self._text(begin, stop)
                elif kind == VARINT:
                    value = varint(self._message, begin, stop)[0]
        return choice, value

    def _few_fields(self, start: int, end: int) -> Iterator[Field]:
        for count, field in enumerate(fields(self._message, start, end, self._budget)):
            if count == _MAX_ENTRY_FIELDS:
                raise ProtobufError("no writer makes such a parameter")
            yield field

    def _text(self, start: int, end: int) -> str:
        try:
            return bytes(self._message[start:end]).decode()
        except UnicodeDecodeError as error:
            raise ProtobufError("text is not UTF-8") from error

    def _read_tensor(self, number: int, start: int, end: int) -> None:
        """Note the rows of the first input, and the regions of all tensors. One that is broken
        breaks neither the names nor the parameters, but nothing more is looked for in tensors."""
        try:
            if number == _INPUTS and not self._has_inputs:
                self._has_inputs = True
                if self._with_rows:
                    self._found.rows = self._rows(start, end)
            parameters = TENSOR_PARAMETERS.get(number)
            if self._with_regions and parameters is not None and end <= len(self._message):
                for field, kind, first, last in fields(self._message, start, end, self._budget):
                    if field == parameters and kind == BYTES:
                        name = self._region(first, last)
                        if name:
                            self._regions[name] = None
        except (IndexError, ProtobufError):
            self._with_regions = False

    def _rows(self, start: int, end: int) -> int:
        """The first dimension of an input."""
        for number, _, first, last in fields(self._message, start, end, self._budget):
            if number == _SHAPE:
                # Packed, as proto3 writes it, or one by one.
                return believed(varint(self._message, first, last)[0]) if first < last else 1
            if number > _SHAPE:
                break
        return 1

    def _region(self, start: int, end: int) -> bytes:
        """The string in one parameter of a tensor, if it is a region; the last one counts."""
        message, budget = self._message, self._budget
        key = name = b""
        for number, kind, first, last in fields(message, start, end, budget):
            if number == _KEY and kind == BYTES:
                key = bytes(message[first:last])
            elif number == _VALUE and kind == BYTES:
                for value, kind_within, begin, stop in fields(message, first, last, budget):
                    if value == _STRING and kind_within == BYTES:
                        name = bytes(message[begin:stop])
        return name if key == KEY else b""


def inspect_quickly(message: bytes, at: int) -> tuple[bytes, int, int, int] | None:
    """The version, the rows and the priority that a ModelInferRequest says, and where what it goes
    by ends: a message of the same length that begins with the same bytes says the same.

    Args:
        message: all of it, perhaps within something longer.
        at: where the field behind the model's name begins.

    Returns:
        None where `inspect` has to tell.
    """
    # HOT PATH (benchmarks/bench_schedule.py). One pass over what usual writers write: fields in the
    # order of their numbers, short ones before the first input, and nothing behind its shape is
    # looked at. `inspect` is the reference.
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
    # HOT PATH (benchmarks/bench_schedule.py). The reference is `_Walk._rows`.
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
