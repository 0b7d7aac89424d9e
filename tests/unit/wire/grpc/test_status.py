"""gRPC status codes, where they come from other codes, and `grpc-message`."""

from __future__ import annotations

from urllib.parse import unquote

import grpc
import pytest

from lb.wire.grpc.status import GrpcStatus, encode_message, status_of_http, status_of_reset
from lb.wire.http2.frames import ErrorCode


def test_codes_are_those_of_the_grpc_library() -> None:
    theirs = {code.name: code.value[0] for code in grpc.StatusCode}
    assert {status.name: status.value for status in GrpcStatus} == theirs


@pytest.mark.parametrize(
    ("http", "status"),
    [
        (400, GrpcStatus.INTERNAL),
        (401, GrpcStatus.UNAUTHENTICATED),
        (403, GrpcStatus.PERMISSION_DENIED),
        (404, GrpcStatus.UNIMPLEMENTED),
        (429, GrpcStatus.UNAVAILABLE),
        (502, GrpcStatus.UNAVAILABLE),
        (503, GrpcStatus.UNAVAILABLE),
        (504, GrpcStatus.UNAVAILABLE),
        (200, GrpcStatus.UNKNOWN),
        (418, GrpcStatus.UNKNOWN),
        (500, GrpcStatus.UNKNOWN),
    ],
)
def test_http_status_maps_as_the_grpc_document_says(http: int, status: GrpcStatus) -> None:
    assert status_of_http(http) is status


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.REFUSED_STREAM, GrpcStatus.UNAVAILABLE),
        (ErrorCode.CANCEL, GrpcStatus.CANCELLED),
        (ErrorCode.ENHANCE_YOUR_CALM, GrpcStatus.RESOURCE_EXHAUSTED),
        (ErrorCode.INADEQUATE_SECURITY, GrpcStatus.PERMISSION_DENIED),
        (ErrorCode.NO_ERROR, GrpcStatus.INTERNAL),
        (ErrorCode.PROTOCOL_ERROR, GrpcStatus.INTERNAL),
        (0xFFFFFFFF, GrpcStatus.INTERNAL),
    ],
)
def test_reset_codes_map_as_the_grpc_document_says(code: int, status: GrpcStatus) -> None:
    """Codes that RFC 9113 does not know count as INTERNAL too."""
    assert status_of_reset(code) is status


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("", b""),
        ("plain text ~!", b"plain text ~!"),
        ("100 %", b"100 %25"),
        ("two\r\nlines\x7f", b"two%0D%0Alines%7F"),
        ("é", b"%C3%A9"),
    ],
)
def test_message_is_percent_encoded(text: str, encoded: bytes) -> None:
    """Percent signs, line breaks and bytes outside ASCII never stand in the field."""
    assert encode_message(text) == encoded
    assert unquote(encoded.decode()) == text
