from __future__ import annotations

import json
from typing import Any

import pytest

from lb.simulator.errors import ErrorKind, TritonError
from lb.simulator.http_infer import HttpInfer, load_object, pack_json, parse, render
from lb.simulator.models import MODELS, InferRequest
from lb.simulator.tensors import Tensor, make_tensor

FP32 = MODELS["identity_fp32"]
SIMPLE = MODELS["simple"]


def described(**more: object) -> dict[str, Any]:
    return {"name": "INPUT0", "shape": [2], "datatype": "FP32", **more}


def body(*inputs: dict[str, Any], tail: bytes = b"", **more: object) -> tuple[bytes, int]:
    head = json.dumps({"inputs": inputs, **more}).encode()
    return head + tail, len(head)


def refusal(data: bytes, size: int | None = None) -> tuple[ErrorKind, str]:
    with pytest.raises(TritonError) as caught:
        parse(FP32, "", data, size)
    return caught.value.fault, caught.value.text


def test_json_tensor_is_read_flat_or_nested() -> None:
    flat, _ = body(described(data=[1, 2.5]), id="7", parameters={"mine": 3})
    nested, _ = body(described(data=[[1], [2.5]]))
    infer = parse(FP32, "1", flat, None)
    assert infer.request.inputs["INPUT0"] == make_tensor("INPUT0", "FP32", [1, 2.5])
    assert (infer.request.id, infer.request.version) == ("7", "1")
    assert infer.request.parameters == {"mine": 3}
    assert parse(FP32, "", nested, None).request.inputs == infer.request.inputs


def test_binary_tensors_follow_in_the_order_of_the_inputs() -> None:
    data, size = body(
        described(name="A", parameters={"binary_data_size": 8}),
        described(name="B", parameters={"binary_data_size": 4}, shape=[1]),
        tail=b"aaaaaaaabbbb",
    )
    inputs = parse(FP32, "", data, size).request.inputs
    assert (inputs["A"].data, inputs["B"].data) == (b"aaaaaaaa", b"bbbb")


def test_body_without_json_is_the_only_input() -> None:
    infer = parse(FP32, "", bytes(8), 0)
    assert infer.request.inputs["INPUT0"] == Tensor("INPUT0", "FP32", (2,), bytes(8))
    assert infer.is_binary("OUTPUT0")
    text = parse(MODELS["identity_bytes"], "", b"ab", 0).request.inputs["INPUT0"]
    assert text.values == [b"ab"]


def test_body_without_json_needs_a_model_of_one_input() -> None:
    with pytest.raises(TritonError, match="Raw request must only have 1 input"):
        parse(SIMPLE, "", b"", None)


def test_form_of_an_output_is_its_own_before_the_request_s() -> None:
    data, _ = body(
        described(data=[1, 2]),
        outputs=[{"name": "A", "parameters": {"binary_data": False}}, {"name": "B"}],
        parameters={"binary_data_output": True},
    )
    infer = parse(FP32, "", data, None)
    assert infer.request.outputs == ("A", "B")
    assert (infer.is_binary("A"), infer.is_binary("B")) == (False, True)


@pytest.mark.parametrize(
    ("data", "fault", "text"),
    [
        (b"{bad", ErrorKind.INTERNAL, "failed to parse the request JSON buffer"),
        (b"[]", ErrorKind.INTERNAL, "attempt to access non-existing object member 'inputs'"),
        (b'{"inputs":3}', ErrorKind.INTERNAL, "Unable to parse 'inputs'"),
        (b'{"inputs":[3]}', ErrorKind.INTERNAL, "non-object as object"),
        (b'{"inputs":[],"parameters":[]}', ErrorKind.INTERNAL, "Unable to parse 'parameters'"),
        (b'{"inputs":[],"id":5}', ErrorKind.INTERNAL, "Unable to parse 'id'"),
        (b'{"inputs":[],"outputs":[{}]}', ErrorKind.INTERNAL, "object member 'name'"),
        (body(described())[0], ErrorKind.INVALID_ARGUMENT, "But no field is set"),
        (body(described(datatype="X", data=[]))[0], ErrorKind.INVALID_ARGUMENT, "invalid datatype"),
        (body(described(shape=["a"], data=[]))[0], ErrorKind.INTERNAL, "Unable to parse 'shape'"),
        (body(described(data=[1]))[0], ErrorKind.INTERNAL, "Shape does not match true shape"),
        (body(described(data=["a", "b"]))[0], ErrorKind.INTERNAL, "Unable to parse 'data'"),
        (
            body(described(parameters={"binary_data_size": "x"}))[0],
            ErrorKind.INTERNAL,
            "Unable to parse 'binary_data_size'",
        ),
        (
            body(parameters={"triton_x": 1})[0],
            ErrorKind.INVALID_ARGUMENT,
            "keys starting with 'triton_'",
        ),
        (
            body(parameters={"binary_data_output": 1})[0],
            ErrorKind.INTERNAL,
            "non-boolean as boolean",
        ),
    ],
)
def test_body_that_makes_no_sense_is_refused(data: bytes, fault: ErrorKind, text: str) -> None:
    got_fault, got_text = refusal(data)
    assert got_fault is fault
    assert text in got_text


def test_missing_and_additional_binary_data_are_refused() -> None:
    declared = described(parameters={"binary_data_size": 8})
    short, size = body(declared, tail=b"1234")
    assert "expecting 4 additional bytes for model 'identity_fp32'" in refusal(short, size)[1]
    long, size = body(declared, tail=b"123456789")
    assert "unexpected additional input data" in refusal(long, size)[1]


def test_answer_is_json_in_tritons_order_of_keys() -> None:
    infer = HttpInfer(InferRequest("m", {}, id="7"), binary=False, forms={})
    tensors = [make_tensor("T", "FP32", [0.1, -3]), make_tensor("S", "BYTES", [b"\xff"])]
    assert render(infer, tensors) == (
        b'{"id":"7","model_name":"m","model_version":"1","outputs":['
        b'{"name":"T","datatype":"FP32","shape":[2],"data":[0.10000000149011612,-3.0]},'
        b'{"name":"S","datatype":"BYTES","shape":[1],"data":["\xff"]}]}',
        None,
    )


def test_binary_answer_tells_the_length_of_its_json() -> None:
    infer = HttpInfer(InferRequest("m", {}), binary=True, forms={"J": False})
    answer, size = render(infer, [make_tensor("B", "UINT8", [7]), make_tensor("J", "UINT8", [8])])
    assert size == len(answer) - 1
    assert answer[-1:] == b"\7"
    head = load_object(answer[:size])
    assert head["outputs"][0]["parameters"] == {"binary_data_size": 1}
    assert head["outputs"][1]["data"] == [8]


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("INT32", [True]),
        ("INT32", [1.5]),
        ("UINT8", [-1]),
        ("INT8", [200]),
        ("BOOL", [1]),
        ("BYTES", [1]),
        ("FP32", [1e300]),
    ],
)
def test_json_element_of_another_type_is_refused(datatype: str, data: object) -> None:
    with pytest.raises(TritonError) as caught:
        pack_json(datatype, data)
    assert caught.value.fault is ErrorKind.INTERNAL
