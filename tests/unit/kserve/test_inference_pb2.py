"""The generated messages: true to their source, to the public numbers, and good neighbours."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
from tritonclient.grpc import model_config_pb2, service_pb2

from lb.kserve import inference_pb2 as pb

PROTO = Path(pb.__file__).with_name("inference.proto")

TRADE_BYTES = """
ours = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"x"])
ours.inputs.append(pb.ModelInferRequest.InferInputTensor(name="a", shape=[1, -1]))
ours.parameters["sequence_id"].int64_param = 7
theirs = service_pb2.ModelInferRequest.FromString(ours.SerializeToString())
assert theirs.inputs[0].shape == [1, -1], theirs
assert pb.ModelInferRequest.FromString(theirs.SerializeToString()) == ours
"""
OURS = "from lb.kserve import inference_pb2 as pb\n"
THEIRS = "from tritonclient.grpc import service_pb2\n"


def messages_within(messages: Iterator[Descriptor]) -> Iterator[Descriptor]:
    for message in messages:
        yield message
        yield from messages_within(iter(message.nested_types))


def all_messages(*files: FileDescriptor) -> dict[str, Descriptor]:
    tops = (message for file in files for message in file.message_types_by_name.values())
    return {message.full_name: message for message in messages_within(tops)}


OUR_MESSAGES = all_messages(pb.DESCRIPTOR)
THEIR_MESSAGES = all_messages(service_pb2.DESCRIPTOR, model_config_pb2.DESCRIPTOR)


def enum_values(enum: EnumDescriptor | None) -> dict[str, int] | None:
    return None if enum is None else {value.name: value.number for value in enum.values}


def shape_of(field: FieldDescriptor) -> tuple[object, ...]:
    """What of a field is wire format, or is seen by users of the messages."""
    return (
        field.name,
        field.number,
        field.type,
        isinstance(field.default_value, list),  # repeated
        field.message_type.full_name if field.message_type else None,
        enum_values(field.enum_type),
        field.containing_oneof.name if field.containing_oneof else None,
    )


def test_generated_module_is_up_to_date() -> None:
    assert hashlib.sha256(PROTO.read_bytes()).hexdigest() == pb.SOURCE_SHA256


@pytest.mark.parametrize("name", sorted(OUR_MESSAGES))
def test_fields_have_the_public_numbers_and_types(name: str) -> None:
    theirs = THEIR_MESSAGES[name].fields_by_name
    for field in OUR_MESSAGES[name].fields:
        assert shape_of(field) == shape_of(theirs[field.name])


def test_no_message_of_the_service_lacks_a_field() -> None:
    for name in all_messages(service_pb2.DESCRIPTOR):
        ours = {field.name for field in OUR_MESSAGES[name].fields}
        assert ours == {field.name for field in THEIR_MESSAGES[name].fields}


@pytest.mark.parametrize("imports", [OURS + THEIRS, THEIRS + OURS], ids=["first", "second"])
def test_messages_live_beside_those_of_tritonclient(imports: str) -> None:
    subprocess.run([sys.executable, "-c", imports + TRADE_BYTES], check=True)


def test_messages_work_without_protobufs_c_extension() -> None:
    environment = os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    subprocess.run([sys.executable, "-c", OURS + THEIRS + TRADE_BYTES], check=True, env=environment)


def test_fields_that_we_leave_out_survive_a_round_trip() -> None:
    theirs = model_config_pb2.ModelConfig(name="m", max_batch_size=4)
    theirs.optimization.priority = 1
    passed_on = pb.ModelConfig.FromString(theirs.SerializeToString()).SerializeToString()
    assert model_config_pb2.ModelConfig.FromString(passed_on) == theirs
