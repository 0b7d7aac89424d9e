"""Batches of HTTP: the body of an inference is cut by rows, bodies of answers are joined.

Source: Triton's "binary tensor data" and "shared memory" extensions. JSON data is nested or flat,
both of which Triton takes. Numbers keep the digits that they were written with.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from typing import Any, Final, NamedTuple

from lb.kserve.merge.steps import Steps
from lb.kserve.split.elements import Elements, cut_elements
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
from lb.wire.rope import Held, Payload, Rope, rope_of

ALL_JSON: Final = -1
"""In place of the size of the JSON: there is nothing behind it."""
_BINARY: Final = "binary_data_size"
_BYTES_PER_UNIT: Final = 4
"""Bytes of JSON, all but elements, that are written for a part in a microsecond."""
_MAX_SKELETON: Final = 16 * 1024
"""Bytes of the JSON of a request without elements: two hundred inputs. They are parsed at once, and
written again for each part."""
_MAX_ANSWER: Final = 16 * 2**20
"""Bytes of JSON of one answer."""
_PARSED_AT_ONCE: Final = 16 * 1024
"""Bytes of JSON of an answer that are parsed in one step: one to four milliseconds. Of longer ones
the elements are cut out before."""
_MAX_DEPTH: Final = 100
"""Lists and objects within each other. Bodies of inferences have some ten; what is nested deeper
than the interpreter's stack can be read, but not be written again."""
_PLACE: Final = "\0"
"""Around the place of a list of elements in JSON that is written anew, where it is no character of
anything else."""


class Body(NamedTuple):
    """A body, and how much of it is JSON."""

    json_size: int
    """Bytes, or `ALL_JSON`."""
    pieces: list[Held]

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return sum(map(len, self.pieces))


class _Written(str):
    """JSON as it was written."""

    __slots__ = ()


class _Digits(_Written):
    """A number as it was written."""

    __slots__ = ()


class BodyCut:
    """The body of an inference that is cut by rows."""

    __slots__ = ("_binary", "_content", "_inputs", "rows", "text")

    def __init__(
        self, content: dict[str, Any], text: bytes, rows: int, binary: dict[int, Rows]
    ) -> None:
        """
        Args:
            content: the JSON, with `Elements` in the place of data.
            text: the same as text, with a number in the place of data.
            rows: those of all inputs.
            binary: binary data of inputs, by their place.
        """
        self._content = content
        self._inputs = content["inputs"]
        self._binary = binary
        self.text = text
        """The JSON but the elements of inputs."""
        self.rows = rows
        """Those of all inputs."""

    @property
    def part_units(self) -> int:
        """Microseconds at most to make a part."""
        return len(self.text) // _BYTES_PER_UNIT

    def part(self, first: int, count: int) -> Body:
        """The body that asks for `count` rows from row `first` on. Data stay where
        they lie in the whole body."""
        inputs = []
        elements: list[memoryview] = []
        pieces: list[Held] = []
        for place, each in enumerate(self._inputs):
            shape = _numbers(each["shape"])
            changed = dict(each)
            changed["shape"] = [count, *shape[1:]]
            if place in self._binary:
                binary = self._binary[place].pieces(first, count)
                pieces += binary
                changed["parameters"] = {**each["parameters"], _BINARY: sum(map(len, binary))}
            elif "data" in each:
                data: Elements = each["data"]
                step = len(data.ends) // self.rows
                changed["data"] = _written_at(len(elements))
                elements.append(data.items(first * step, count * step))
            else:
                row = stride(each["datatype"], shape)
                changed["parameters"] = {
                    **each["parameters"],
                    OFFSET: int(each["parameters"].get(OFFSET, 0)) + first * row,
                    BYTE_SIZE: count * row,
                }
            inputs.append(changed)
        head: list[Held] = []
        for at, text in enumerate(_split_at_places({**self._content, "inputs": inputs})):
            head.append(elements[int(text)] if at % 2 else text)
        return Body(sum(map(len, head)) if self._binary else ALL_JSON, [*head, *pieces])


def cut_body(body: Payload | Rope, json_size: int) -> Steps[BodyCut]:
    """Read the body of an inference, not compressed, in steps.

    Args:
        body: all of it.
        json_size: how much of it is JSON; `ALL_JSON`: all.

    Raises:
        NotSplit: it cannot be cut.
    """
    if not json_size:
        raise NotSplit("a raw binary request has one row")
    head, tail = _halves(rope_of(body), json_size)
    if len(head) > MAX_PARSED:
        raise NotSplit("its JSON is too long")
    try:
        content, text = yield from _read_request(head.joined())
        _check(content)
        shapes = [_numbers(each["shape"]) for each in content["inputs"]]
        rows = common_rows(shapes)
        binary: dict[int, Rows] = {}
        at = 0
        for place, (each, shape) in enumerate(zip(content["inputs"], shapes, strict=True)):
            end = _check_input(each, shape, tail, at)
            if end is not None:
                data = tail.part(at, end)
                binary[place] = yield from find_rows(data, each["datatype"], shape)
                at = end
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise NotSplit("it is no inference") from error
    if at != len(tail):
        raise NotSplit("binary data is not as long as its parameters say")
    return BodyCut(content, text, rows, binary)


def _read_request(text: bytes) -> Steps[tuple[dict[str, Any], bytes]]:
    """The JSON of a request, with `Elements` in the place of the data of inputs, and as text.

    Raises:
        ValueError, LookupError, TypeError, AttributeError, NotSplit: it is none.
    """
    text.decode()  # elements are not decoded later
    skeleton = yield from cut_elements(text, by_item=True, most=_MAX_SKELETON)
    content = _parse(Rope([skeleton.text]))
    _put_elements(content["inputs"], skeleton.elements)
    return content, skeleton.text


def _check_input(each: dict[str, Any], shape: list[int], tail: Rope, at: int) -> int | None:
    """Check an input. Returns where its binary data ends, if it has any and it begins at `at`.

    Raises:
        NotSplit: data is missing, or not as long as it should be.
    """
    parameters = each.get("parameters", {})
    if "data" in each and (REGION in parameters or _BINARY in parameters):
        raise NotSplit("an input has data in two places")
    if REGION in parameters:
        expected = shape[0] * stride(each["datatype"], shape)
        check_region(int(parameters.get(OFFSET, 0)), int(parameters[BYTE_SIZE]), expected)
        return None
    if _BINARY in parameters:
        end = at + int(parameters[_BINARY])
        if not at <= end <= len(tail):
            raise NotSplit("binary data is cut off")
        return end
    _check_data(each["data"], shape)
    return None


def join_bodies(
    answers: Sequence[tuple[int, Payload | Rope]], rows: Sequence[int]
) -> Steps[tuple[Body, str]]:
    """Make one answer of those to the parts of a request, a step or more for each.

    Args:
        answers: how much of each is JSON, and the body, in the order of the rows.
        rows: of each part.

    Returns:
        The body, and the version of the model that answered.

    Raises:
        NotMerged: the outputs are not those of parts, or the parts are of several versions.
    """
    first: dict[str, Any] = {}
    outputs: list[_JoinedOutput] = []
    parameters: list[dict[str, Any]] = []
    version = ""
    for part, ((json_size, body), count) in enumerate(zip(answers, rows, strict=True)):
        content, binary = yield from _read_answer(json_size, body)
        if not part:
            first = content
            version = str(first.get("model_version", ""))
        elif str(content.get("model_version", "")) != version:
            raise VersionsDiffer((version, str(content.get("model_version", ""))))
        try:
            if not part:
                outputs = [_JoinedOutput(each) for each in first.get("outputs", [])]
            elif outputs and "outputs" not in content:
                raise KeyError("outputs")
            found = {each["name"]: each for each in content.get("outputs", [])}
            if len(found) != len(outputs) or len(content.get("outputs", [])) != len(outputs):
                raise NotMerged("parts have different outputs")
            for output in outputs:
                output.add(found, binary, count)
            parameters.append(_parameters(content))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotMerged("an answer is no inference response", is_of_model=False) from error
        yield
    contents = [output.content(sum(rows), place) for place, output in enumerate(outputs)]
    joined = {**first, "outputs": contents}
    if "parameters" in first:
        joined["parameters"] = _merged(parameters)
    head: list[Payload] = []
    for at, text in enumerate(_split_at_places(joined)):
        head += outputs[int(text)].elements if at % 2 else [text]
    pieces = [piece for output in outputs for piece in output.pieces]
    has_binary = any(output.is_binary for output in outputs)
    return Body(sum(map(len, head)) if has_binary else ALL_JSON, [*head, *pieces]), version


class _JoinedOutput:
    """An output of all parts."""

    __slots__ = (
        "_model", "_name", "_parameters", "_shape", "_type", "elements", "is_binary", "pieces",
    )  # fmt: skip

    def __init__(self, model: dict[str, Any]) -> None:
        """
        Args:
            model: the output in the answer to the first part.
        """
        self._model = model
        self._name = model["name"]
        self._type = model["datatype"]
        self._shape = _numbers(model["shape"])
        self.is_binary = _BINARY in model.get("parameters", {})
        """Its elements stand behind the JSON."""
        self._parameters: list[dict[str, Any]] = []
        self.elements: list[Payload] = []
        """The elements in the JSON of all parts, with commas and without brackets."""
        self.pieces: list[Payload] = []
        """Binary data of each part."""

    def add(self, outputs: dict[str, dict[str, Any]], binary: dict[str, Rope], count: int) -> None:
        """Take the rows of the next part.

        Args:
            outputs: of that part, by name.
            binary: their binary data, by name.
            count: rows of it.
        """
        name = self._name
        output = outputs.get(name)
        if output is None:
            raise NotMerged("parts have different outputs")
        shape = _numbers(output["shape"])
        check_output(name, (self._type, self._shape), (output["datatype"], shape), count)
        if (name in binary) is not self.is_binary:
            raise NotMerged("parts have different outputs")
        if name in binary:
            check_size(name, output["datatype"], shape, len(binary[name]))
            self.pieces += binary[name].views(0, len(binary[name]))
        else:
            self._add_elements(output["data"], prod(shape))
        self._parameters.append(_parameters(output))

    def _add_elements(self, data: Any, size: int) -> None:
        """Take the elements of the next part, so many of them."""
        if isinstance(data, Elements):
            count, text = data.size, data.text
        else:
            count, text = _count(data), memoryview(_encoded(list(data))[1:-1])
        if count != size:
            raise NotMerged(f"output '{self._name}' is not as long as its shape says")
        if len(text):
            self.elements += [b",", text] if self.elements else [text]

    def content(self, rows: int, place: int) -> dict[str, Any]:
        """What the JSON of the joined answer says of it.

        Args:
            rows: of all parts.
            place: of the output, put in the place of its elements.
        """
        joined = {**self._model, "shape": [rows, *self._shape[1:]]}
        if "parameters" in self._model:
            joined["parameters"] = _merged(self._parameters)
        if self.is_binary:
            joined["parameters"][_BINARY] = sum(map(len, self.pieces))
        else:
            joined["data"] = _written_at(place)
        return joined


def _halves(body: Rope, json_size: int) -> tuple[Rope, Rope]:
    """The JSON of a body, and what stands behind it."""
    at = len(body) if json_size < 0 else json_size
    return body.part(0, at), body.part(at, len(body))


def _read_answer(
    json_size: int, body: Payload | Rope
) -> Steps[tuple[dict[str, Any], dict[str, Rope]]]:
    """The JSON of an answer, and binary data by the name of its output. In the place of the data of
    an output may be `Elements`."""
    head, tail = _halves(rope_of(body), json_size)
    if len(head) > _MAX_ANSWER:
        raise NotMerged("an answer is too long to be parsed", is_of_model=False)
    try:
        content = yield from _read_content(head)
        binary: dict[str, Rope] = {}
        at = 0
        for output in content.get("outputs", []):
            parameters = output.get("parameters", {})
            if _BINARY in parameters:
                end = at + int(parameters[_BINARY])
                if not at <= end <= len(tail):
                    raise NotMerged("binary data of an answer is cut off", is_of_model=False)
                binary[output["name"]] = tail.part(at, end)
                at = end
    except (NotSplit, LookupError, TypeError, ValueError, AttributeError) as error:
        raise NotMerged("an answer is no inference response", is_of_model=False) from error
    if at != len(tail):
        raise NotMerged("binary data of an answer is longer than it says", is_of_model=False)
    return content, binary


def _read_content(head: Rope) -> Steps[dict[str, Any]]:
    """The JSON of an answer; see `_read_answer`.

    Raises:
        ValueError, LookupError, TypeError, AttributeError, NotSplit: it is no answer.
    """
    if len(head) <= _PARSED_AT_ONCE:
        return _parse(head)
    skeleton = yield from cut_elements(head.joined())
    content = _parse(Rope([skeleton.text]))
    _put_elements(content.get("outputs", []), skeleton.elements)
    return content


def _put_elements(tensors: list[dict[str, Any]], elements: list[Elements]) -> None:
    """Put elements where they were cut out.

    Raises:
        ValueError, LookupError, TypeError: others were cut out, or not all.
    """
    found = [each for each in tensors if "data" in each]
    if len(found) != len(elements):
        raise ValueError("there is data that belongs to no tensor")
    for tensor in found:
        tensor["data"] = elements[int(tensor["data"])]


def _parameters(described: dict[str, Any]) -> dict[str, Any]:
    """The parameters of an answer, or of an output.

    Raises:
        ValueError: they are no object.
    """
    parameters = described.get("parameters", {})
    if not isinstance(parameters, dict):
        raise ValueError("parameters are no object")
    return parameters


def _merged(all_parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Parameters that are equal in all parts, and of others those of the first part, unless they
    are numbers: these may count rows or bytes."""
    first = all_parts[0]
    return {
        key: value
        for key, value in first.items()
        if key == _BINARY
        or not isinstance(value, _Digits)
        or all(parameters.get(key) == value for parameters in all_parts)
    }


# Requests


def _check(content: dict[str, Any]) -> None:
    """Refuse steps of sequences, and outputs into shared memory.

    Raises:
        NotSplit: it is one, or asks for that.
    """
    parameters = content.get("parameters", {})
    for name in SEQUENCE & parameters.keys():
        if parameters[name] not in (False, "", "0"):
            raise NotSplit("it is a step of a sequence")
    if any(REGION in output.get("parameters", {}) for output in content.get("outputs", [])):
        raise NotSplit("outputs go to shared memory")


def _numbers(values: list[Any]) -> list[int]:
    return [int(value) for value in values]


def _check_data(data: Any, shape: list[int]) -> None:
    """Check that JSON data is flat, or has a list for each row, and is as long as its shape says.

    Raises:
        NotSplit: it is not.
    """
    each = prod(shape[1:])
    if not isinstance(data, Elements) or data.size != shape[0] * each:
        raise NotSplit("an input is not as long as its shape says")
    is_flat = data.each == 1 and len(data.ends) == data.size
    is_by_row = data.each == each and len(data.ends) == shape[0]
    if data.size and not (is_flat or is_by_row):
        raise NotSplit("the lists of an input are not its rows")


def _count(data: Any) -> int:
    """Elements of nested lists."""
    if not isinstance(data, list):
        return 1
    if not any(isinstance(each, list) for each in data):
        return len(data)
    return sum(map(_count, data))


# JSON


def _written_at(place: int) -> _Written:
    """A list whose elements are put in later; see `_split_at_places`."""
    return _Written(f"[{_PLACE}{place}{_PLACE}]")


def _split_at_places(content: dict[str, Any]) -> list[bytes]:
    """The JSON in pieces, of which every second one is the place of a list of elements."""
    return _encoded(content).split(_PLACE.encode())


def _parse(text: Rope) -> dict[str, Any]:
    """Parse an object, whose numbers stay as they were written.

    Raises:
        ValueError: it is none.
        NotSplit: a name stands twice in an object, of which readers take one or the other.
    """
    data = text.joined()
    try:
        content = _DECODER.decode(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("not an object")
    if data.count(b"[") + data.count(b"{") > _MAX_DEPTH:
        _check_depth(content)
    return content


def _check_depth(content: dict[str, Any]) -> None:
    """
    Raises:
        ValueError: it is nested too deeply.
    """
    level: list[Any] = [content]
    for _ in range(_MAX_DEPTH):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [each for values in inner for each in values if isinstance(each, (dict, list))]
        if not level:
            return
    raise ValueError("nested too deeply")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotSplit("a name stands twice in its JSON")
    return found


_DECODER: Final = json.JSONDecoder(
    parse_int=_Digits, parse_float=_Digits, object_pairs_hook=_unique
)
_dump: Final = json.JSONEncoder(ensure_ascii=False).encode


def _encoded(content: dict[str, Any] | list[Any]) -> bytes:
    # What is no Unicode goes back into the escape that it came from.
    return _text(content).encode("utf-8", "backslashreplace")


def _text(value: Any) -> str:
    """JSON without spaces, as Triton writes it."""
    if isinstance(value, _Written):
        return value
    if isinstance(value, dict):
        members = [f"{_dump(k)}:{_text(v)}" for k, v in value.items()]
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        is_plain = not value or set(map(type, value)) == {_Digits}
        return "[" + ",".join(value if is_plain else map(_text, value)) + "]"
    return _dump(value)
