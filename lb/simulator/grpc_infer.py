"""Inference messages of gRPC, to and from what the models take and give."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lb.kserve import inference_pb2 as pb
from lb.kserve.datatypes import TYPED_CONTENTS
from lb.simulator.errors import invalid
from lb.simulator.models import VERSION, InferRequest, Parameter
from lb.simulator.tensors import Tensor, Value, is_datatype, pack

FINAL_RESPONSE: Final = "triton_final_response"
EMPTY_FINAL_RESPONSE: Final = "triton_enable_empty_final_response"


def parse(message: pb.ModelInferRequest) -> InferRequest:
    """Read an inference, with raw or explicit contents.

    Raises:
        TritonError: the message makes no sense.
    """
    raw = list(message.raw_input_contents)
    inputs: dict[str, Tensor] = {}
    for index, declared in enumerate(message.inputs):
        if not is_datatype(declared.datatype):
            data = b""  # refused later, for not being the model's datatype
        elif raw:
            data = _raw_data(message.model_name, declared, raw, index)
        else:
            data = _explicit_data(message.model_name, declared)
        shape = tuple(declared.shape)
        inputs[declared.name] = Tensor(declared.name, declared.datatype, shape, data)
    return InferRequest(
        model=message.model_name,
        version=message.model_version,
        id=message.id,
        inputs=inputs,
        outputs=tuple(output.name for output in message.outputs),
        parameters=_parameters(message.parameters),
    )


def render(request: InferRequest, tensors: Iterable[Tensor]) -> pb.ModelInferResponse:
    """Return one answer, with raw contents as Triton always sends them."""
    response = pb.ModelInferResponse(model_name=request.model, model_version=VERSION, id=request.id)
    for tensor in tensors:
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(tensor.data)
    return response


def _raw_data(
    model: str, declared: pb.ModelInferRequest.InferInputTensor, raw: Sequence[bytes], index: int
) -> bytes:
    if declared.HasField("contents"):
        raise invalid(
            "contents field must not be specified when using raw_input_contents"
            f" for '{declared.name}' for model '{model}'"
        )
    if index >= len(raw):
        raise _no_data(model, declared.name)
    return raw[index]


def _explicit_data(model: str, declared: pb.ModelInferRequest.InferInputTensor) -> bytes:
    field = TYPED_CONTENTS.get(declared.datatype)
    if field is None or not declared.HasField("contents"):
        raise _no_data(model, declared.name)
    for other, _ in declared.contents.ListFields():
        if other.name != field:
            raise invalid(
                f"unexpected explicit tensor data for input tensor '{declared.name}'"
                f" for model '{model}', binary data was already supplied."
            )
    values: Sequence[Value] = getattr(declared.contents, field)
    try:
        return pack(declared.datatype, values)
    except struct.error as error:
        raise invalid(f"input '{declared.name}' for model '{model}': {error}") from None


def _no_data(model: str, name: str) -> Exception:
    return invalid(f"unable to find data for input tensor '{name}' for model '{model}' in request.")


def _parameters(given: Mapping[str, pb.InferParameter]) -> dict[str, Parameter]:
    for key in given:
        if key.startswith("triton_") and key != EMPTY_FINAL_RESPONSE:
            raise invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the"
                " following keys starting with 'triton_' are allowed:"
                f" {EMPTY_FINAL_RESPONSE}"
            )
    parameters: dict[str, Parameter] = {}
    for key, parameter in given.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is not None:
            parameters[key] = getattr(parameter, choice)
    return parameters
