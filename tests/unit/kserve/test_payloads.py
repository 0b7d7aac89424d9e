"""Inferences of both protocols become the same JSON, or nothing at all."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve.payloads import (
    JSON_BYTES,
    VALUES,
    binary_of,
    leave_out,
    numbers_of,
    read_grpc_request,
    read_grpc_response,
    read_http,
    read_json,
)


def http_body(*tensors: tuple[str, bytes], **members: Any) -> tuple[bytes, int]:
    """A body with binary tensors, and the size of its JSON."""
    inputs = [
        {
            "name": f"T{number}",
            "datatype": datatype,
            "shape": [-1],
            "parameters": {"binary_data_size": len(raw)},
        }
        for number, (datatype, raw) in enumerate(tensors)
    ]
    head = json.dumps({"inputs": inputs, **members}).encode()
    return head + b"".join(raw for _, raw in tensors), len(head)


def grpc_request(*tensors: tuple[str, bytes]) -> bytes:
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[raw for _, raw in tensors])
    for number, (datatype, _) in enumerate(tensors):
        request.inputs.add(name=f"T{number}", datatype=datatype, shape=[-1])
    return request.SerializeToString()


@pytest.mark.parametrize(
    ("datatype", "raw", "values"),
    [
        ("BOOL", b"\1\0", [True, False]),
        ("INT8", b"\xff", [-1]),
        ("UINT16", b"\1\2", [513]),
        ("INT64", struct.pack("<q", -(2**62)), [-(2**62)]),
        ("UINT64", struct.pack("<Q", 2**64 - 1), [2**64 - 1]),
        ("FP32", struct.pack("<2f", 0.5, -2.0), [0.5, -2.0]),
        ("FP64", struct.pack("<d", 0.1), [0.1]),
        ("BYTES", b"\2\0\0\0hi\0\0\0\0", ["hi", ""]),
    ],
)
def test_a_tensor_has_its_values(datatype: str, raw: bytes, values: list[object]) -> None:
    [over_http] = read_http(*http_body((datatype, raw)), "inputs")["inputs"]
    [over_grpc] = read_grpc_request(grpc_request((datatype, raw)))["inputs"]
    assert over_http == over_grpc
    assert over_http["data"] == values
    assert binary_of(over_http) == raw


@pytest.mark.parametrize(
    ("datatype", "raw"),
    [
        ("FP16", b"\0\x3c"),
        ("BF16", b"\x80\x3f"),
        ("FP32", struct.pack("<f", float("nan"))),
        ("FP64", struct.pack("<d", float("inf"))),
        ("BYTES", b"\2\0\0\0\xff\xfe"),
        ("BYTES", b"\x09\0\0\0cut"),
        ("INT32", b"\1\2\3"),
        ("UINT8", bytes(VALUES + 1)),
        ("WHATEVER", b"abc"),
    ],
)
def test_what_json_has_no_form_for_stays_binary(datatype: str, raw: bytes) -> None:
    [over_http] = read_http(*http_body((datatype, raw)), "inputs")["inputs"]
    [over_grpc] = read_grpc_request(grpc_request((datatype, raw)))["inputs"]
    assert over_http == over_grpc
    assert "data" not in over_http
    assert binary_of(over_http) == raw


def test_a_request_keeps_its_id_parameters_and_wanted_outputs() -> None:
    request = pb.ModelInferRequest(model_name="m", model_version="3", id="x")
    request.parameters["priority"].uint64_param = 7
    request.outputs.add(name="OUT").parameters["classification"].int64_param = 2
    assert read_grpc_request(request.SerializeToString()) == {
        "model_name": "m",
        "model_version": "3",
        "id": "x",
        "parameters": {"priority": 7},
        "inputs": [],
        "outputs": [{"name": "OUT", "parameters": {"classification": 2}}],
    }


def test_typed_contents_are_values_too() -> None:
    response = pb.ModelInferResponse(model_name="m")
    few = response.outputs.add(name="FEW", datatype="FP32", shape=[2])
    few.contents.fp32_contents.extend([0.5, 0.25])
    many = response.outputs.add(name="MANY", datatype="INT8", shape=[VALUES + 1])
    many.contents.int_contents.extend([-1] * (VALUES + 1))
    texts = response.outputs.add(name="TEXTS", datatype="BYTES", shape=[1])
    texts.contents.bytes_contents.append(b"word")
    response.outputs.add(name="EMPTY", datatype="INT8", shape=[0]).contents.SetInParent()
    outputs = read_grpc_response(response.SerializeToString())["outputs"]
    assert outputs[0]["data"] == [0.5, 0.25]
    assert binary_of(outputs[1]) == b"\xff" * (VALUES + 1)
    assert outputs[2]["data"] == ["word"]
    assert outputs[3]["data"] == []


def test_a_tensor_in_shared_memory_has_no_contents() -> None:
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"\1"])
    shared = request.inputs.add(name="SHARED", datatype="INT8", shape=[1])
    shared.parameters["shared_memory_region"].string_param = "region"
    request.inputs.add(name="SENT", datatype="INT8", shape=[1])
    first, second = read_grpc_request(request.SerializeToString())["inputs"]
    assert first["parameters"] == {"shared_memory_region": "region"}
    assert "data" not in first
    assert second["data"] == [1]


@pytest.mark.parametrize("change", [-1, 1])
def test_binary_data_that_does_not_fit_its_json_is_not_guessed_at(change: int) -> None:
    body, size = http_body(("INT8", b"\1\2"))
    with pytest.raises(ValueError, match="tensors"):
        read_http(body[:change] if change < 0 else body + b"\0", size, "inputs")


@pytest.mark.parametrize(("tensors", "why"), [(1, "more contents"), (3, "fewer contents")])
def test_contents_that_do_not_fit_their_tensors_are_not_guessed_at(tensors: int, why: str) -> None:
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"\1", b"\2"])
    for number in range(tensors):
        request.inputs.add(name=str(number), datatype="INT8", shape=[1])
    with pytest.raises(ValueError, match=why):
        read_grpc_request(request.SerializeToString())


@pytest.mark.parametrize(
    ("datatype", "raw", "numbers"),
    [
        ("FP32", struct.pack("<2f", 0.5, -2.0), [0.5, -2.0]),
        ("FP64", struct.pack("<d", float("inf")), [float("inf")]),
        ("FP64", bytes(9), None),
        ("INT32", bytes(4), None),
        ("BF16", bytes(2), None),
    ],
)
def test_numbers_with_a_fraction_are_read_however_large_they_are(
    datatype: str, raw: bytes, numbers: list[float] | None
) -> None:
    assert numbers_of(datatype, raw) == numbers


@pytest.mark.parametrize(
    ("datatype", "contents"),
    [
        ("FP32", pb.InferTensorContents(bytes_contents=[b"one"])),
        ("INT32", pb.InferTensorContents(bytes_contents=[b"one"])),
        ("BYTES", pb.InferTensorContents(int_contents=[1])),
        ("BYTES", pb.InferTensorContents(fp32_contents=[1.5])),
    ],
)
def test_contents_of_another_type_are_not_guessed_at(
    datatype: str, contents: pb.InferTensorContents
) -> None:
    request = pb.ModelInferRequest(model_name="m")
    request.inputs.add(name="ONE", datatype=datatype, shape=[1], contents=contents)
    with pytest.raises(ValueError, match="contents are not of type"):
        read_grpc_request(request.SerializeToString())


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"\xff", b"[NaN]", b"[" * 50_000, b'"' + b"x" * JSON_BYTES + b'"', b'"\xef\xbb'],
)
def test_what_is_no_json_is_not_read(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # messages of several libraries
        read_json(text)


def test_values_of_given_names_are_left_out() -> None:
    payload = {
        "text_input": "secret",
        "parameters": {"user": "secret", "other": 1},
        "inputs": [
            {"name": "HIDDEN", "datatype": "BYTES", "shape": [1], "data": ["secret"]},
            {"name": "SHOWN", "datatype": "INT8", "shape": [1], "data": [1]},
        ],
        "outputs": [{"name": "HIDDEN", "data_base64": "c2VjcmV0"}, {"name": ["HIDDEN"]}],
    }
    leave_out(payload, frozenset({"text_input", "user", "HIDDEN"}))
    assert "secret" not in json.dumps(payload)
    assert "c2VjcmV0" not in json.dumps(payload)
    assert payload["inputs"][0] == {
        "name": "HIDDEN",
        "datatype": "BYTES",
        "shape": [1],
        "left_out": True,
    }
    assert payload["inputs"][1]["data"] == [1]


def test_a_body_whose_json_is_no_object_is_not_read_and_other_parameters_stay() -> None:
    with pytest.raises(ValueError, match="no JSON object"):
        read_http(b"[]", 2, "inputs")
    parameters = {"binary_data_size": 1, "shared": "yes"}
    tensor = {"name": "A", "datatype": "UINT8", "shape": [1], "parameters": parameters}
    head = json.dumps({"inputs": [tensor]}).encode()
    found = read_http(head + b"\7", len(head), "inputs")
    assert found["inputs"][0]["parameters"] == {"shared": "yes"}
