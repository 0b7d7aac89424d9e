"""Inference messages that several tests send."""

from __future__ import annotations

from lb.kserve import inference_pb2 as pb
from lb.simulator.tensors import pack


def request_for(
    model: str, request_id: str, **inputs: tuple[str, list[int]]
) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, id=request_id)
    for name, (datatype, values) in inputs.items():
        request.inputs.add(name=name, datatype=datatype, shape=[len(values)])
        request.raw_input_contents.append(pack(datatype, values))
    return request


def sleep(milliseconds: int, request_id: str) -> pb.ModelInferRequest:
    return request_for("sleeper", request_id, INPUT0=("INT32", [milliseconds]))


def repeat(values: list[int], request_id: str, delay: int = 0) -> pb.ModelInferRequest:
    return request_for(
        "repeat_int32",
        request_id,
        IN=("INT32", values),
        DELAY=("UINT32", [delay] * len(values)),
        WAIT=("UINT32", [0]),
    )
