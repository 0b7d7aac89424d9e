"""Batches of both protocols, and what an identity model answers to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from lb.kserve import inference_pb2 as pb
from lb.kserve.datatypes import SIZES
from lb.kserve.merge.steps import finish
from lb.kserve.split.bodies import Body, BodyCut, cut_body
from lb.kserve.split.messages import MessageCut, cut_message
from lb.wire.rope import Payload, Rope

TYPED = {
    "BOOL": "bool_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "UINT8": "uint_contents", "UINT64": "uint64_contents", "FP32": "fp32_contents",
    "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def read_body(body: Payload | Rope, json_size: int) -> BodyCut:
    """The body of a batch, all steps at once."""
    return finish(cut_body(body, json_size))


def read_message(message: Payload | Rope) -> MessageCut:
    """The message of a batch, all steps at once."""
    return finish(cut_message(message))


@dataclass
class Tensor:
    """An input: for BYTES its elements, for others the bytes of its elements."""

    datatype: str
    shape: list[int]
    elements: list[bytes]
    name: str = "INPUT0"

    @property
    def raw(self) -> bytes:
        """The data as it stands on the wire."""
        if self.datatype != "BYTES":
            return b"".join(self.elements)
        return b"".join(len(each).to_bytes(4, "little") + each for each in self.elements)

    def rows(self, first: int, count: int) -> Tensor:
        """Some rows of it."""
        each = prod(self.shape[1:])
        elements = self.elements[first * each : (first + count) * each]
        return Tensor(self.datatype, [count, *self.shape[1:]], elements, self.name)


def counted(datatype: str, shape: Sequence[int], name: str = "INPUT0") -> Tensor:
    """A tensor whose elements are all different, as far as their size allows."""
    count = prod(shape)
    if datatype == "BYTES":
        elements = [b"%d" % number * (number % 3) for number in range(count)]
    else:
        size = SIZES[datatype]
        elements = [(number % 251).to_bytes(1, "little") * size for number in range(count)]
    return Tensor(datatype, list(shape), elements, name)


def request_of(tensors: Sequence[Tensor], **parameters: Any) -> pb.ModelInferRequest:
    """A ModelInferRequest with raw contents."""
    request = pb.ModelInferRequest(model_name="identity", model_version="1", id="7")
    for key, value in parameters.items():
        kind = "string_param" if isinstance(value, str) else "int64_param"
        setattr(request.parameters[key], kind, value)
    for tensor in tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.raw)
    return request


def answer_of(request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    """What an identity model answers to raw contents."""
    answer = pb.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        name = tensor.name.replace("IN", "OUT")
        answer.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        answer.raw_output_contents.append(raw)
    return answer


def message_of(pieces: Sequence[bytes | memoryview]) -> bytes:
    """A message in pieces, without its prefix, whose length is checked."""
    whole = b"".join(pieces)
    assert whole[0] == 0
    assert int.from_bytes(whole[1:5], "big") == len(whole) - 5
    return whole[5:]


def body_of(tensors: Sequence[Tensor], **more: Any) -> tuple[int, bytes]:
    """The body of an inference with binary data, and how much of it is JSON."""
    inputs = [
        {
            "name": tensor.name,
            "shape": tensor.shape,
            "datatype": tensor.datatype,
            "parameters": {"binary_data_size": len(tensor.raw)},
        }
        for tensor in tensors
    ]
    head = compact({"id": "7", "inputs": inputs, **more})
    return len(head), head + b"".join(tensor.raw for tensor in tensors)


def compact(content: Any) -> bytes:
    """JSON as Triton writes it."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def answered(body: Body) -> tuple[int, bytes]:
    """What an identity model answers to a body: how much of it is JSON, and all of it."""
    whole = b"".join(body.pieces)
    size = len(whole) if body.json_size < 0 else body.json_size
    content = json.loads(whole[:size])
    outputs = [{**each, "name": each["name"].replace("IN", "OUT")} for each in content["inputs"]]
    head = compact({"model_name": "identity", "model_version": "1", "outputs": outputs})
    return (-1 if body.json_size < 0 else len(head)), head + whole[size:]
