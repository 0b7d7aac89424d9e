from __future__ import annotations

from lb.proxy.http2.replies import ANSWER_HEAD, status_trailers, trailers_only
from lb.wire.grpc.status import GrpcStatus


def test_trailers_carry_status_and_encoded_text() -> None:
    assert b"grpc-message" not in status_trailers(GrpcStatus.OK)
    assert status_trailers(GrpcStatus.INTERNAL, "50 %").endswith(b"\x0cgrpc-message\x0650 %25")
    assert trailers_only(GrpcStatus.UNAVAILABLE, "x").startswith(b"\x00\x07:status\x03200")


def test_answers_say_how_requests_may_be_compressed() -> None:
    assert ANSWER_HEAD.endswith(b"\x14grpc-accept-encoding\x17identity, deflate, gzip")
