"""What a ModelInferRequest says beside its sequence and its regions, and what it costs to ask.

Sequences: `test_sequence.py`; regions: `test_regions.py`.
"""

from __future__ import annotations

import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve.inspect import MAX_FIELDS, MAX_TENSOR_FIELDS, Message, inspect
from lb.kserve.work import Work
from lb.wire.protobuf import FieldBudget


def grpc_work(message: Message) -> Work:
    found = inspect(message, with_rows=True)
    return Work(found.rows, found.priority)


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


def test_one_pass_finds_all() -> None:
    request = pb.ModelInferRequest(model_name="m", model_version="2", id="7")
    request.parameters["sequence_id"].int64_param = 5
    request.parameters["priority"].uint64_param = 3
    request.inputs.add(name="IN", datatype="FP32", shape=[8, 2])
    for tensors, region in ((request.inputs, "in"), (request.outputs, "out")):
        tensors.add(name="X").parameters["shared_memory_region"].string_param = region
    found = inspect(request.SerializeToString(), with_rows=True, with_regions=True)
    assert found.is_complete
    assert (found.model, found.version, found.request_id) == (b"m", b"2", b"7")
    assert (found.rows, found.priority, found.regions) == (8, 3, (b"in", b"out"))
    assert found.step is not None
    assert found.step.key.id == 5


def test_what_no_server_can_parse_says_only_what_stands_before_the_fault() -> None:
    message = request([8, 2], priority=pb.InferParameter(uint64_param=5)) + b"\x0e"
    found = inspect(message, with_rows=True)
    assert found.is_complete
    assert (found.model, found.version, found.step) == (b"", b"", None)
    assert (found.request_id, found.rows, found.priority) == (b"7", 8, 5)


def test_a_broken_tensor_breaks_neither_names_nor_parameters() -> None:
    start = pb.ModelInferRequest(model_name="m", model_version="1").SerializeToString()
    found = inspect(start + b"\x2a\x02\x1a\x7f", with_rows=True, with_regions=True)
    assert (found.model, found.version, found.rows) == (b"m", b"1", 1)


def test_an_id_of_unusual_length_is_not_kept() -> None:
    for size, kept in ((256, b"x" * 256), (257, b"")):
        message = pb.ModelInferRequest(model_name="m", id="x" * size).SerializeToString()
        assert inspect(message).request_id == kept


def test_the_first_tensor_ends_it_where_nothing_behind_is_of_interest() -> None:
    message = request([8, 2]) + pb.ModelInferRequest(id="8").SerializeToString()
    assert inspect(message).request_id == b"8"
    found = inspect(message, with_rows=True, only_names=True)
    assert (found.request_id, found.rows) == (b"7", 8)


@pytest.mark.parametrize(
    "unit",
    [b"y" * 9, b"\x78\x01", b"\x08\x01", b"\x7a\x01x", b"\x2a\x00"],
    ids=["fixed", "numbers", "a number as name", "texts", "tensors"],
)
def test_a_part_of_what_is_no_inference_is_given_up_at_its_first_field(unit: bytes) -> None:
    budget = FieldBudget(MAX_FIELDS)
    found = inspect((unit * 4000)[: 16 * 1024], 602_112, budget)
    assert budget.left == MAX_FIELDS - 1
    assert found.is_complete
    assert (found.model, found.version, found.step) == (b"", b"", None)


def test_fields_of_tensors_count_where_regions_are_looked_for() -> None:
    tensor = pb.ModelInferRequest(model_name="m")
    tensor.inputs.add(name="X", shape=[1])
    message = tensor.SerializeToString() * 10_000
    for with_regions, most in ((False, MAX_FIELDS), (True, MAX_TENSOR_FIELDS)):
        budget = FieldBudget(most)
        assert inspect(message, None, budget, with_regions=with_regions).model == b"m"
        assert budget.left == 0
