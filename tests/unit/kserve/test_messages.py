"""The table of gRPC calls agrees with the service that the .proto file declares."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError

from lb.kserve import inference_pb2 as pb
from lb.kserve import messages

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
METHODS = [value for value in vars(messages).values() if isinstance(value, messages.Method)]


def test_every_call_of_the_service_has_a_method() -> None:
    assert [m.name for m in METHODS] != []
    assert sorted(m.name for m in METHODS) == sorted(m.name for m in SERVICE.methods)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_method_has_the_declared_messages_and_path(method: messages.Method) -> None:
    declared = SERVICE.methods_by_name[method.name]
    assert method.request.DESCRIPTOR is declared.input_type
    assert method.response.DESCRIPTOR is declared.output_type
    assert method.path == f"/{SERVICE.full_name}/{declared.name}"


def test_what_is_encoded_is_the_wire_form() -> None:
    assert messages.MODEL_READY.encode(pb.ModelReadyRequest(name="m")) == b"\x0a\x01m"


def test_answer_decodes_from_the_wire_form() -> None:
    assert messages.SERVER_READY.decode(b"\x08\x01").ready is True


def test_malformed_answer_raises_decode_error() -> None:
    with pytest.raises(DecodeError):
        messages.SERVER_READY.decode(b"\xff")
