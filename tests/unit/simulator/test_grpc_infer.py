from __future__ import annotations

import pytest

from lb.kserve import inference_pb2 as pb
from lb.simulator import grpc_infer
from lb.simulator.errors import TritonError
from lb.simulator.models import InferRequest
from lb.simulator.tensors import make_tensor


def message(datatype: str = "INT32") -> pb.ModelInferRequest:
    asked = pb.ModelInferRequest(model_name="m", model_version="1", id="7")
    asked.inputs.add(name="I", datatype=datatype, shape=[2])
    return asked


def refusal(asked: pb.ModelInferRequest) -> str:
    with pytest.raises(TritonError) as caught:
        grpc_infer.parse(asked)
    return caught.value.text


def test_raw_contents_are_read() -> None:
    asked = message()
    asked.raw_input_contents.append(b"12345678")
    asked.outputs.add(name="O")
    asked.parameters["p"].int64_param = -3
    asked.parameters["empty"].SetInParent()
    request = grpc_infer.parse(asked)
    assert (request.model, request.version, request.id) == ("m", "1", "7")
    assert request.inputs["I"].data == b"12345678"
    assert request.outputs == ("O",)
    assert request.parameters == {"p": -3}


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [1, -2]),
        ("INT64", "int64_contents", [2**40, -2]),
        ("UINT16", "uint_contents", [1, 2]),
        ("UINT64", "uint64_contents", [2**63, 2]),
        ("FP32", "fp32_contents", [0.5, 2]),
        ("FP64", "fp64_contents", [0.1, 2]),
        ("BYTES", "bytes_contents", [b"a", b""]),
    ],
)
def test_explicit_contents_are_read(datatype: str, field: str, values: list[int]) -> None:
    asked = message(datatype)
    getattr(asked.inputs[0].contents, field).extend(values)
    assert grpc_infer.parse(asked).inputs["I"] == make_tensor("I", datatype, values)


def test_contents_beside_raw_contents_are_refused() -> None:
    asked = message()
    asked.raw_input_contents.append(b"12345678")
    asked.inputs[0].contents.int_contents.append(1)
    assert "contents field must not be specified when using raw_input_contents" in refusal(asked)


def test_input_without_data_is_refused() -> None:
    assert "unable to find data for input tensor 'I' for model 'm'" in refusal(message())
    asked = message()
    asked.inputs.add(name="J", datatype="INT32")
    asked.raw_input_contents.append(b"")
    assert "unable to find data for input tensor 'J'" in refusal(asked)


def test_contents_of_another_type_are_refused() -> None:
    asked = message()
    asked.inputs[0].contents.fp32_contents.append(1)
    assert "unexpected explicit tensor data for input tensor 'I'" in refusal(asked)


def test_contents_out_of_range_are_refused() -> None:
    asked = message("INT8")
    asked.inputs[0].contents.int_contents.append(300)
    assert refusal(asked).startswith("input 'I' for model 'm'")


def test_unknown_datatype_is_left_to_the_model_to_refuse() -> None:
    assert grpc_infer.parse(message("WHAT")).inputs["I"].datatype == "WHAT"


def test_reserved_parameters_are_refused_except_the_one_for_clients() -> None:
    asked = message("WHAT")
    asked.parameters[grpc_infer.EMPTY_FINAL_RESPONSE].bool_param = True
    assert grpc_infer.parse(asked).parameters == {grpc_infer.EMPTY_FINAL_RESPONSE: True}
    asked.parameters["triton_x"].bool_param = True
    assert "keys starting with 'triton_' are reserved" in refusal(asked)


def test_answer_has_raw_contents() -> None:
    answer = grpc_infer.render(InferRequest("m", {}, id="7"), [make_tensor("O", "UINT8", [1, 2])])
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "1", "7")
    assert [(o.name, o.datatype, list(o.shape)) for o in answer.outputs] == [("O", "UINT8", [2])]
    assert list(answer.raw_output_contents) == [b"\1\2"]
