from __future__ import annotations

import json

import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve.work import Work, grpc_work, json_work


def request(shape: list[int], **parameters: pb.InferParameter) -> bytes:
    message = pb.ModelInferRequest(model_name="m", model_version="1", id="7")
    for name, value in parameters.items():
        message.parameters[name].CopyFrom(value)
    message.inputs.add(name="IN", datatype="FP32", shape=shape)
    message.inputs.add(name="MORE", datatype="FP32", shape=[99])
    message.raw_input_contents.append(b"x" * 4096)
    return message.SerializeToString()


@pytest.mark.parametrize("rows", [1, 7, 64, 300])
def test_rows_of_a_message_are_the_first_dimension_of_its_first_input(rows: int) -> None:
    assert grpc_work(request([rows, 16])) == Work(rows)


@pytest.mark.parametrize(
    ("value", "priority"),
    [
        (pb.InferParameter(uint64_param=3), 3),
        (pb.InferParameter(int64_param=2), 2),
        (pb.InferParameter(string_param="1"), 0),
        (pb.InferParameter(int64_param=-1), 0),
        (pb.InferParameter(bool_param=True), 0),
    ],
)
def test_the_priority_is_a_number_among_the_parameters(
    value: pb.InferParameter, priority: int
) -> None:
    message = request([4], other=pb.InferParameter(int64_param=9), priority=value)
    assert grpc_work(message) == Work(4, priority)


def test_the_first_bytes_of_a_message_are_enough() -> None:
    message = request([8, 2], priority=pb.InferParameter(uint64_param=5))
    assert grpc_work(message[:120]) == Work(8, 5)


def test_any_beginning_of_a_message_is_read_without_a_fault() -> None:
    message = request([8, 2], priority=pb.InferParameter(uint64_param=5))
    for size in range(len(message[:200])):
        work = grpc_work(message[:size])
        assert work.rows in (1, 8)
        assert work.priority in (0, 5)


@pytest.mark.parametrize(
    "message", [b"", b"\xff" * 40, b"\x2a\x04\x1a\x02\x80", b"\x2a\x02\x1a\x00", b"\x08" * 9]
)
def test_what_is_no_message_says_nothing(message: bytes) -> None:
    assert grpc_work(message) == Work()


def test_impossible_rows_are_not_believed() -> None:
    assert grpc_work(request([2**40])) == Work()
    assert grpc_work(request([-1])) == Work()
    assert grpc_work(request([0])) == Work()
    assert grpc_work(request([])) == Work()


def body(shape: list[int], **parameters: object) -> bytes:
    inputs = [{"name": "IN", "shape": shape, "datatype": "INT32", "data": [1]}]
    return json.dumps({"inputs": inputs, "parameters": parameters}).encode()


def test_rows_and_priority_stand_in_json() -> None:
    assert json_work(body([5, 3])) == Work(5)
    assert json_work(body([5, 3], priority=2)) == Work(5, 2)
    assert json_work(body([2], priority=True)) == Work(2)
    assert json_work(body([2], priority="1")) == Work(2)
    assert json_work(body([2], priority=-3)) == Work(2)


def test_a_shape_outside_of_the_inputs_is_none() -> None:
    assert json_work(b'{"shape":[9],"inputs":[{"name":"shape","datatype":"INT8"}]}') == Work()
    assert json_work(b'{"inputs" : [ {"shape" : [ 12 , 3 ]') == Work(12)
    assert json_work(b'{"inputs":[{"shape":[12') == Work()
    assert json_work(b"") == Work()
