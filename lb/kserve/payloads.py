"""Inferences as JSON that people and programs can read, for the payload log.

Requests and responses of both protocols become the JSON of KServe v2: a tensor has its values in
`data`. Where these are many, or JSON has no form for them, the tensor has `data_base64` instead:
its bytes as the protocol's binary extension lays them out. Nothing is guessed: what cannot be read
raises `ValueError`.

Cost is bounded, since other threads wait meanwhile: JSON up to `JSON_BYTES` and tensors up to
`VALUES` values are read.
"""

from __future__ import annotations

import json
import math
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from lb.kserve import inference_pb2 as pb
from lb.kserve.datatypes import BYTES, FORMATS

MessageT = TypeVar("MessageT", bound=Message)

Json: TypeAlias = dict[str, Any]
Part: TypeAlias = Literal["inputs", "outputs"]
"""Where the tensors with data are: in a request, or in a response."""

JSON_BYTES: Final = 64 * 1024
"""Longest JSON that is read: reading and writing it takes about 2 ms."""
VALUES: Final = 1024
"""Most values of a tensor that become JSON: about 0.5 ms for numbers with a fraction."""
_LENGTH_SIZE: Final = 4
_FORMATS: Final = {name: kind for name, kind in FORMATS.items() if name != "FP16"}
"""Format of `struct` by data type. FP16 and BF16 have no form in Triton's JSON."""
_SIZE: Final = "binary_data_size"
_REGION: Final = "shared_memory_region"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def read_json(text: bytes) -> object:
    """Read JSON in UTF-8.

    Raises:
        ValueError: it is none, or longer than `JSON_BYTES`.
    """
    if len(text) > JSON_BYTES:
        raise ValueError("too long to be read")
    try:
        return json.loads(text.decode(), parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_http(body: bytes, json_size: int, part: Part) -> Json:
    """Read a body of HTTP whose tensors are binary, some or all.

    Args:
        body: all of it.
        json_size: how much of it is JSON (`Inference-Header-Content-Length`).
        part: which of its tensors are followed by data.

    Raises:
        ValueError: its parts do not fit each other, or cannot be read.
    """
    payload = read_json(body[:json_size])
    if not isinstance(payload, dict):
        raise ValueError("no JSON object")
    at = json_size
    for tensor in tensors_of(payload, part):
        parameters = tensor.get("parameters")
        if not isinstance(parameters, dict) or not isinstance(parameters.get(_SIZE), int):
            continue
        size = parameters.pop(_SIZE)
        if not 0 <= size <= len(body) - at:
            raise ValueError("tensors are cut off")
        if not parameters:
            del tensor["parameters"]
        tensor.update(_data(str(tensor.get("datatype")), body[at : at + size]))
        at += size
    if at != len(body):
        raise ValueError("something follows the tensors")
    return payload


def read_grpc_request(message: bytes) -> Json:
    """Read a `ModelInferRequest`.

    Raises:
        ValueError: it is none.
    """
    request = _parsed(pb.ModelInferRequest, message)
    payload = _common(request)
    payload["inputs"] = _tensors(request.inputs, request.raw_input_contents)
    if request.outputs:
        payload["outputs"] = [
            {"name": output.name, **_parameters(output.parameters)} for output in request.outputs
        ]
    return payload


def read_grpc_response(message: bytes) -> Json:
    """Read a `ModelInferResponse`.

    Raises:
        ValueError: it is none.
    """
    return _response(_parsed(pb.ModelInferResponse, message))


def read_grpc_stream_response(message: bytes) -> Json:
    """Read a `ModelStreamInferResponse`: as a response, or an object with the `error` of one.

    Raises:
        ValueError: it is none.
    """
    answer = _parsed(pb.ModelStreamInferResponse, message)
    response = answer.infer_response
    if answer.error_message:
        return {"error": answer.error_message, **({"id": response.id} if response.id else {})}
    return _response(response)


def tensors_of(payload: Mapping[str, Any], part: Part) -> list[Json]:
    """Return the tensors of a payload; none where it has no list of them."""
    tensors = payload.get(part)
    if not isinstance(tensors, list):
        return []
    return [tensor for tensor in tensors if isinstance(tensor, dict)]


def binary_of(tensor: Mapping[str, Any]) -> bytes:
    """Return the data of a tensor in its binary form.

    Raises:
        ValueError: it has none, or its values are not of its type.
    """
    datatype = tensor.get("datatype")
    try:
        if "data_base64" in tensor:
            return b64decode(tensor["data_base64"], validate=True)
        values = list(_flat(tensor["data"]))
        if datatype == BYTES:
            return b"".join(_element(value.encode()) for value in values)
        return struct.pack(f"<{len(values)}{_FORMATS[str(datatype)]}", *values)
    except (
        KeyError, TypeError, AttributeError, OverflowError, RecursionError, struct.error,
    ) as error:  # fmt: skip
        raise ValueError(f"no data of type {datatype}") from error


def numbers_of(datatype: str, raw: bytes) -> list[float] | None:
    """Return the values of a tensor of floating-point numbers; None for other types."""
    kind = _FORMATS.get(datatype)
    if kind not in ("f", "d") or len(raw) % struct.calcsize(f"<{kind}"):
        return None
    return [value for (value,) in struct.iter_unpack(f"<{kind}", raw)]


def _flat(data: object) -> Iterator[Any]:
    """The values of a tensor, whose JSON may be nested by its shape."""
    if not isinstance(data, list):
        yield data
        return
    for each in data:
        yield from _flat(each)


def leave_out(payload: Json, names: frozenset[str]) -> None:
    """Take the values of what has one of some names out of a payload: tensors, parameters, and
    members of the payload itself."""
    for holder in (payload, payload.get("parameters")):
        if isinstance(holder, dict):
            for name in names & holder.keys():
                holder[name] = None
    for part in ("inputs", "outputs"):
        for tensor in tensors_of(payload, part):
            if str(tensor.get("name")) in names:
                tensor.pop("data", None)
                tensor.pop("data_base64", None)
                tensor["left_out"] = True


def _parsed(kind: type[MessageT], message: bytes) -> MessageT:
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise ValueError(str(error)) from error


def _response(response: pb.ModelInferResponse) -> Json:
    payload = _common(response)
    payload["outputs"] = _tensors(response.outputs, response.raw_output_contents)
    return payload


def _common(message: pb.ModelInferRequest | pb.ModelInferResponse) -> Json:
    payload: Json = {"model_name": message.model_name}
    if message.model_version:
        payload["model_version"] = message.model_version
    if message.id:
        payload["id"] = message.id
    return {**payload, **_parameters(message.parameters)}


def _parameters(parameters: Mapping[str, pb.InferParameter]) -> Json:
    if not parameters:
        return {}
    values = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        values[name] = None if choice is None else getattr(parameter, choice)
    return {"parameters": values}


def _tensors(
    tensors: Iterable[
        pb.ModelInferRequest.InferInputTensor | pb.ModelInferResponse.InferOutputTensor
    ],
    raw: Sequence[bytes],
) -> list[Json]:
    described = []
    rest = iter(raw)
    for tensor in tensors:
        found: Json = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
            **_parameters(tensor.parameters),
        }
        if tensor.HasField("contents"):
            found.update(_typed_data(tensor.datatype, tensor.contents))
        elif _REGION not in tensor.parameters and raw:
            data = next(rest, None)
            if data is None:
                raise ValueError("fewer contents than tensors")
            found.update(_data(tensor.datatype, data))
        described.append(found)
    if next(rest, None) is not None:
        raise ValueError("more contents than tensors")
    return described


def _data(datatype: str, raw: bytes) -> Json:
    """The member of a tensor that holds its data, by the data's binary form."""
    values = _values(datatype, raw)
    if values is None:
        return {"data_base64": b64encode(raw).decode()}
    return {"data": values}


def _values(datatype: str, raw: bytes) -> list[Any] | None:
    """The values of a tensor in its binary form; None where these are too many, or not for JSON."""
    if datatype == BYTES:
        return _texts(raw)
    kind = _FORMATS.get(datatype)
    if kind is None:
        return None
    count, rest = divmod(len(raw), struct.calcsize(f"<{kind}"))
    if rest or count > VALUES:
        return None
    return _finite(list(struct.unpack(f"<{count}{kind}", raw)))


def _finite(values: list[Any]) -> list[Any] | None:
    return values if all(map(math.isfinite, values)) else None


def _texts(raw: bytes) -> list[str] | None:
    """The elements of a tensor of BYTES; None if one is no text, or they are too many."""
    texts: list[str] = []
    at = 0
    if len(raw) > JSON_BYTES:
        return None
    while at < len(raw):
        end = at + _LENGTH_SIZE
        size = int.from_bytes(raw[at:end], "little")
        at = end + size
        if at > len(raw) or len(texts) == VALUES:
            return None
        try:
            texts.append(raw[end:at].decode())
        except UnicodeDecodeError:
            return None
    return texts


def _typed_data(datatype: str, contents: pb.InferTensorContents) -> Json:
    """As `_data`, where the values stand in fields of protobuf."""
    fields = contents.ListFields()
    if not fields:
        return {"data": []}
    values = list(fields[0][1])
    try:
        if datatype == BYTES:
            return _data(datatype, b"".join(_element(value) for value in values))
        if len(values) <= VALUES and _finite(values) is not None:
            return {"data": values}
        raw = struct.pack(f"<{len(values)}{_FORMATS[datatype]}", *values)
    except (KeyError, TypeError, OverflowError, struct.error) as error:
        raise ValueError(f"contents are not of type {datatype}") from error
    return _data(datatype, raw)


def _element(value: bytes) -> bytes:
    return len(value).to_bytes(_LENGTH_SIZE, "little") + value
