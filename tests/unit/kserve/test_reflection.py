"""Questions about services that no usual client asks."""

from __future__ import annotations

from grpc_reflection.v1alpha import reflection_pb2 as pb

from lb.kserve.reflection import answer


def test_what_is_unknown_in_a_question_is_passed_over() -> None:
    asked = pb.ServerReflectionRequest(host="a", list_services="*").SerializeToString()
    odd = b"\x10\x05" + asked + b"\x7a\x01x"  # a number in field 2, bytes in field 15
    found = pb.ServerReflectionResponse.FromString(answer(odd))
    usual = pb.ServerReflectionResponse.FromString(answer(asked))
    assert found.valid_host == "a"
    assert found.list_services_response == usual.list_services_response
    assert usual.list_services_response.service
