"""What requests say of their sequence."""

from __future__ import annotations

import time
from typing import Any

import pytest

from lb.domain.sequence import SequenceKey, SequenceStep
from lb.kserve import inference_pb2 as pb
from lb.kserve.inspect import MAX_FIELDS, inspect
from lb.kserve.sequence import http_step
from tests.fakes.steps import Incomplete, grpc_step

MODEL = b"m"


def step(sequence_id: int | str, *, is_start: bool = False, is_end: bool = False) -> SequenceStep:
    return SequenceStep(SequenceKey(MODEL, sequence_id), is_start, is_end)


def message(*, tensors: int = 1, **parameters: Any) -> bytes:
    """As a client writes it; the type of a parameter follows from its name."""
    request = pb.ModelInferRequest(
        model_name="m", model_version="1", id="r", raw_input_contents=[b"x" * 500] * tensors
    )
    request.inputs.add(name="X", datatype="INT32", shape=[1, 1])
    for name, value in parameters.items():
        field = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(request.parameters[name], field, value)
    return request.SerializeToString()


def entry(key: bytes, value: bytes) -> bytes:
    inner = b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([len(value)]) + value
    return b"\x22" + bytes([len(inner)]) + inner


# gRPC


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({"sequence_id": 77}, step(77)),
        ({"sequence_id": "77"}, step("77")),
        ({"sequence_id": 77, "sequence_start": True}, step(77, is_start=True)),
        (
            {"sequence_id": 1, "sequence_start": True, "sequence_end": True},
            step(1, is_start=True, is_end=True),
        ),
        ({"sequence_id": 1, "sequence_start": False, "sequence_end": False}, step(1)),
        ({"sequence_id": -1}, step(2**64 - 1)),
        ({"sequence_id": 2**63 - 1}, step(2**63 - 1)),
        ({"sequence_id": "a\0b"}, step("a")),
        ({"sequence_id": "x" * 128}, step("x" * 128)),
        ({}, None),
        ({"sequence_id": 0, "sequence_start": True}, None),
        ({"sequence_id": "", "sequence_start": True}, None),
        ({"sequence_id": "\0a"}, None),
        ({"sequence_id": "x" * 129}, None),
        ({"sequence_id": True}, None),
        ({"sequence_id": 1, "sequence_start": 1}, None),
        ({"sequence_id": 1, "sequence_end": "true"}, None),
        ({"sequence_start": True}, None),
        ({"priority": 3, "sequence_ids": 3, "a_sequence_id": 4}, None),
    ],
)
def test_a_message_has_the_step_that_triton_sees(
    parameters: dict[str, Any], wanted: SequenceStep | None
) -> None:
    assert grpc_step(message(**parameters), MODEL) == wanted
    assert grpc_step(memoryview(message(**parameters)), MODEL) == wanted


def test_an_integer_and_a_text_are_two_sequences() -> None:
    one = grpc_step(message(sequence_id=77), MODEL)
    other = grpc_step(message(sequence_id="77"), MODEL)
    assert one is not None
    assert other is not None
    assert one.key != other.key


def test_of_several_with_a_name_the_last_counts() -> None:
    text = entry(b"sequence_id", b"\x10\x05") + entry(b"sequence_id", b"\x10\x06")
    assert grpc_step(text, MODEL) == step(6)


def test_a_value_of_a_wrong_type_is_no_id() -> None:
    unsigned = entry(b"sequence_id", b"\x28\x05")
    floating = entry(b"sequence_id", b"\x21" + bytes(8))
    assert grpc_step(unsigned, MODEL) is None
    assert grpc_step(floating, MODEL) is None
    assert grpc_step(entry(b"sequence_id", b"\x10\x05\x28\x05"), MODEL) is None


def test_parameters_behind_the_tensors_are_seen_in_a_whole_message() -> None:
    text = b"\x3a\x03abc" + entry(b"sequence_id", b"\x10\x05")
    assert grpc_step(text, MODEL) == step(5)


def test_of_a_part_the_first_tensor_decides() -> None:
    text = message(sequence_id=77, sequence_start=True, tensors=3)
    needed = text.index(b"\x2a")  # inputs
    for size in range(needed + 1):
        with pytest.raises(Incomplete):
            grpc_step(text[:size], MODEL, len(text))
    for size in range(needed + 2, len(text)):
        assert grpc_step(text[:size], MODEL, len(text)) == step(77, is_start=True)


@pytest.mark.parametrize(
    "text",
    [
        b"\x22\x05abc",
        b"\xff" * 30,
        message(sequence_id=1) + b"\x0e",
        entry(b"sequence_id", b"\x1a\x01\xff"),
        b"\x08\x01" * 5000 + entry(b"sequence_id", b"\x10\x05"),
        b"\x22\x7f" + b"\x08\x01" * 63 + b"\x08" + entry(b"sequence_id", b"\x10\x05"),
    ],
)
def test_what_triton_refuses_or_nobody_writes_has_no_step(text: bytes) -> None:
    assert grpc_step(text, MODEL) is None


@pytest.mark.parametrize(
    "unit", [b"\x08\x01", b"\x22\x00", b"\x3a\x00", entry(b"sequence_id", b"\x10\x05")]
)
def test_no_message_blocks_for_long(unit: bytes) -> None:
    text = unit * (4_000_000 // len(unit))
    started = time.process_time()
    assert grpc_step(text, MODEL) is None
    assert grpc_step(b"\x0b" + text, MODEL) is None  # in a group
    assert grpc_step(b"\x22\xff\xff\x7f" + text, MODEL) is None  # in a parameter
    assert time.process_time() - started < 0.5  # it takes up to 20 ms


# HTTP


def body(parameters: str) -> bytes:
    inputs = '"inputs":[{"name":"X","shape":[1],"datatype":"INT32","data":[1],"parameters":{}}]'
    return f'{{"id":"r",{inputs},"parameters":{parameters}}}'.encode()


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ('{"sequence_id":77}', step(77)),
        ('{"sequence_id":"77"}', step("77")),
        ('{"sequence_id":77,"sequence_start":true}', step(77, is_start=True)),
        ('{"sequence_id":77,"sequence_end":true}', step(77, is_end=True)),
        ('{"sequence_id":18446744073709551615}', step(2**64 - 1)),
        ('{"sequence_\\u0069d":7}', step(7)),
        ('{"sequence_id":"\\u0037"}', step("7")),
        ('{"sequence_id":1,"sequence_id":2}', step(1)),
        ('{"sequence_id":1,"sequence_start":true,"sequence_start":false}', step(1, is_start=True)),
        ('{"sequence_id":"a\\u0000b"}', step("a")),
        ('{"sequence_id":7},"parameters":{"sequence_id":8}', step(7)),
        ('{"sequence_id":0}', None),
        ('{"sequence_id":-0}', None),
        ('{"sequence_id":""}', None),
        ('{"sequence_id":-5}', None),
        ('{"sequence_id":7.0}', None),
        ('{"sequence_id":7e1}', None),
        ('{"sequence_id":18446744073709551616}', None),
        ('{"sequence_id":null}', None),
        ('{"sequence_id":true}', None),
        ('{"sequence_id":[1]}', None),
        ('{"sequence_id":077}', None),
        ('{"sequence_id":7,"sequence_start":1}', None),
        ('{"sequence_id":"' + "x" * 129 + '"}', None),
        ('{"sequence_id":"\\ud800"}', None),
        ("{}", None),
        ('["sequence_id",7]', None),
        ('{"a":{"sequence_id":7}}', None),
    ],
)
def test_json_has_the_step_that_triton_sees(parameters: str, wanted: SequenceStep | None) -> None:
    assert http_step(body(parameters), MODEL) == wanted


def test_an_id_within_a_tensor_is_none() -> None:
    assert http_step(b'{"inputs":[{"parameters":{"sequence_id":7}}]}', MODEL) is None
    assert http_step(b'{"inputs":[{"data":["sequence_id"]}]}', MODEL) is None


def test_sequences_of_models_with_impossible_names_are_none() -> None:
    head = b'{"parameters":{"sequence_id":7,"sequence_start":true}}'
    assert http_step(head, b"m" * 1024) is not None
    assert http_step(head, b"m" * 1025) is None
    request = pb.ModelInferRequest(model_name="m" * 1025)
    request.parameters["sequence_id"].int64_param = 7
    assert inspect(request.SerializeToString()).step is None


def test_parameters_are_among_the_first_fields_or_nothing_is_said() -> None:
    step = pb.ModelInferRequest(model_name="m")
    step.parameters["sequence_id"].int64_param = 7
    text = step.SerializeToString()
    many = b"\x1a\x00" * 2 * MAX_FIELDS
    assert inspect(text).step is not None
    found = inspect(many + text)
    assert (found.model, found.version, found.step) == (b"", b"", None)


def test_very_many_tensors_hide_nothing_that_stands_before_them() -> None:
    step = pb.ModelInferRequest(model_name="m")
    step.parameters["sequence_id"].int64_param = 7
    for number in range(1000):
        step.inputs.add(name=str(number), shape=[1])
        step.raw_input_contents.append(b"1234")
    found = inspect(step.SerializeToString())
    assert found.model == b"m"
    assert found.step is not None
