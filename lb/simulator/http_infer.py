"""Bodies of `/infer`: JSON, or JSON followed by binary tensors (KServe v2, binary tensor data)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from lb.kserve.datatypes import BYTES, FORMATS
from lb.simulator.errors import ErrorKind, TritonError, invalid
from lb.simulator.http_json import Json, dumps
from lb.simulator.models import VERSION, InferRequest, Model, Parameter
from lb.simulator.tensors import (
    Tensor,
    Value,
    element_count,
    element_size,
    is_datatype,
    pack,
)


@dataclass(frozen=True, slots=True)
class HttpInfer:
    """One request and the form its answer shall have."""

    request: InferRequest
    binary: bool
    """Outputs are binary unless `forms` says otherwise."""
    forms: Mapping[str, bool]
    """Whether an output is binary, for those that the request names with a form."""

    def is_binary(self, output: str) -> bool:
        """Whether that output is sent in the binary form."""
        return self.forms.get(output, self.binary)


def parse(model: Model, version: str, body: bytes, json_size: int | None) -> HttpInfer:
    """Read the body of an infer request.

    Args:
        json_size: length of the JSON part, at most that of the body; None when all of the body
            is JSON, 0 when none is.

    Raises:
        TritonError: the body is not such a request.
    """
    if json_size == 0 or not body:
        return _raw(model, version, body)
    head = load_object(body if json_size is None else body[:json_size])
    binary = _Binary(model, b"" if json_size is None else body[json_size:])
    inputs = {tensor.name: tensor for tensor in map(binary.read, _objects_of(head, "inputs"))}
    binary.check_all_read()
    outputs = _objects_of(head, "outputs") if "outputs" in head else []
    parameters = _parameters(head)
    request = InferRequest(
        model=model.name,
        version=version,
        id=_string_of(head, "id") if "id" in head else "",
        inputs=inputs,
        outputs=tuple(_string_of(output, "name") for output in outputs),
        parameters=parameters,
    )
    forms = {
        output["name"]: _boolean(_object_of(output, "parameters"), "binary_data")
        for output in outputs
        if "binary_data" in _object_of(output, "parameters")
    }
    return HttpInfer(request, _boolean(parameters, "binary_data_output"), forms)


def render(infer: HttpInfer, tensors: Iterable[Tensor]) -> tuple[bytes, int | None]:
    """Return the body of the answer, and the length of its JSON part when binary data follows."""
    head: dict[str, Json] = {"id": infer.request.id} if infer.request.id else {}
    outputs: list[Json] = []
    tail: list[bytes] = []
    for tensor in tensors:
        output: dict[str, Json] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
        }
        if infer.is_binary(tensor.name):
            output["parameters"] = {"binary_data_size": len(tensor.data)}
            tail.append(tensor.data)
        else:
            output["data"] = json_values(tensor)
        outputs.append(output)
    head |= {"model_name": infer.request.model, "model_version": VERSION, "outputs": outputs}
    text = dumps(head)
    return text + b"".join(tail), len(text) if tail else None


def load_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`.

    Raises:
        TritonError: it is no JSON. Something else than an object reads as an empty one.
    """
    try:
        value = json.loads(data.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise _unparsable(f"failed to parse the request JSON buffer: {error}") from None
    return value if isinstance(value, dict) else {}


def json_values(tensor: Tensor) -> list[Json]:
    """Return the elements as JSON has them."""
    return [
        value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
        for value in tensor.values
    ]


def pack_json(datatype: str, data: object) -> bytes:
    """Return the binary form of JSON elements, nested or flat.

    Raises:
        TritonError: an element is not of the datatype.
    """
    try:
        return pack(datatype, [_element(datatype, item) for item in _flat(data)])
    except (struct.error, OverflowError) as error:
        raise _unparsable(f"Unable to parse 'data': {error}") from None


class _Binary:
    """The binary tensors after the JSON part, read in the order of the inputs."""

    def __init__(self, model: Model, data: bytes) -> None:
        self._model = model
        self._data = data
        self._at = 0

    def read(self, declared: dict[str, Any]) -> Tensor:
        """Return the input that the JSON part declares."""
        name = _string_of(declared, "name")
        size = _object_of(declared, "parameters").get("binary_data_size")
        if size is None and "data" not in declared:
            raise invalid(
                "Input must set only one of the following fields: 'data', 'binary_data_size' in"
                " 'parameters', 'shared_memory_region' in 'parameters'. But no field is set"
            )
        datatype = _string_of(declared, "datatype")
        if not is_datatype(datatype):
            raise invalid(f"invalid datatype for input {name}")
        shape = tuple(_list_of(declared, "shape"))
        if not all(isinstance(length, int) for length in shape):
            raise _unparsable("Unable to parse 'shape': attempt to access JSON non-signed-integer")
        if size is not None:
            return Tensor(name, datatype, shape, self._take(name, size))
        data = pack_json(datatype, declared["data"])
        if sum(1 for _ in _flat(declared["data"])) != element_count(shape):
            raise _unparsable(
                "Unable to parse 'data': Shape does not match true shape of 'data' field"
            )
        return Tensor(name, datatype, shape, data)

    def _take(self, name: str, size: object) -> bytes:
        if not isinstance(size, int) or size < 0:
            raise _unparsable("Unable to parse 'binary_data_size'")
        start, self._at = self._at, self._at + size
        missing = self._at - len(self._data)
        if missing > 0:
            raise invalid(
                f"unexpected size for input '{name}', expecting {missing} additional bytes"
                f" for model '{self._model.name}'"
            )
        return self._data[start : self._at]

    def check_all_read(self) -> None:
        """Check that no bytes are left over."""
        if self._at < len(self._data):
            raise invalid(f"unexpected additional input data for model '{self._model.name}'")


def _raw(model: Model, version: str, body: bytes) -> HttpInfer:
    """Read a body without JSON: all of it is the data of the model's only input."""
    if len(model.inputs) != 1:
        raise invalid(
            "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced"
            f" but got {len(model.inputs)} inputs in '{model.name}' model configuration"
        )
    spec = model.inputs[0]
    if spec.datatype == BYTES:
        tensor = Tensor(spec.name, BYTES, (1,), pack(BYTES, [body]))
    else:
        count = len(body) // (element_size(spec.datatype) or 1)
        tensor = Tensor(spec.name, spec.datatype, (count,), body)
    request = InferRequest(model=model.name, version=version, inputs={spec.name: tensor})
    return HttpInfer(request, binary=True, forms={})


def _parameters(head: dict[str, Any]) -> dict[str, Parameter]:
    parameters = _object_of(head, "parameters")
    for key in parameters:
        if key.startswith("triton_"):
            raise invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage"
                " and should not be specified."
            )
    return dict(parameters)


def _boolean(parameters: Mapping[str, object], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise _unparsable(
            f"Unable to parse '{name}': attempt to access JSON non-boolean as boolean"
        )
    return value


def _list_of(value: dict[str, Any], name: str) -> list[Any]:
    if name not in value:
        _refuse_missing(name)
    items = value[name]
    if not isinstance(items, list):
        raise _unparsable(f"Unable to parse '{name}': attempt to access JSON non-array as array")
    return items


def _objects_of(value: dict[str, Any], name: str) -> list[dict[str, Any]]:
    items = _list_of(value, name)
    if not all(isinstance(item, dict) for item in items):
        raise _unparsable(f"Unable to parse '{name}': attempt to access JSON non-object as object")
    return items


def _object_of(value: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a member that may be left out, which is as good as empty."""
    member = value.get(name, {})
    if not isinstance(member, dict):
        raise _unparsable(f"Unable to parse '{name}': attempt to access JSON non-object as object")
    return member


def _string_of(value: dict[str, Any], name: str) -> str:
    if name not in value:
        _refuse_missing(name)
    text = value[name]
    if not isinstance(text, str):
        raise _unparsable(f"Unable to parse '{name}': attempt to access JSON non-string as string")
    return text


def _refuse_missing(name: str) -> NoReturn:
    raise _unparsable(
        f"Unable to parse '{name}': attempt to access non-existing object member '{name}'"
    )


def _unparsable(text: str) -> TritonError:
    """Return the error of a body that is not what it should be: an internal one, in Triton 2.51."""
    return TritonError(ErrorKind.INTERNAL, text)


def _flat(data: object) -> Iterator[object]:
    if isinstance(data, list):
        for item in data:
            yield from _flat(item)
    else:
        yield data


def _element(datatype: str, item: object) -> Value:
    if datatype == BYTES:
        if not isinstance(item, str):
            raise _unparsable("Unable to parse 'data': attempt to access JSON non-string as string")
        return item.encode("utf-8", "surrogateescape")
    letter = FORMATS[datatype]
    wanted = {"?": bool, "e": int | float, "f": int | float, "d": int | float}.get(letter, int)
    if not isinstance(item, wanted) or (letter != "?" and isinstance(item, bool)):
        kind = "unsigned-integer" if letter.isupper() and letter != "?" else "signed-integer"
        raise _unparsable(f"Unable to parse 'data': attempt to access JSON non-{kind} as {kind}")
    assert isinstance(item, bool | int | float)
    return item
