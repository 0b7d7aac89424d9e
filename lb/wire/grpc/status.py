"""gRPC status codes and their mapping from HTTP and HTTP/2.

Sources: gRPC "Status codes and their use", "HTTP to gRPC Status Code Mapping", and the RST_STREAM
table of "gRPC over HTTP2".
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final
from urllib.parse import unquote_to_bytes


class GrpcStatus(IntEnum):
    """The seventeen canonical codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


_HTTP: Final = {
    400: GrpcStatus.INTERNAL,
    401: GrpcStatus.UNAUTHENTICATED,
    403: GrpcStatus.PERMISSION_DENIED,
    404: GrpcStatus.UNIMPLEMENTED,
    429: GrpcStatus.UNAVAILABLE,
    431: GrpcStatus.INTERNAL,
    502: GrpcStatus.UNAVAILABLE,
    503: GrpcStatus.UNAVAILABLE,
    504: GrpcStatus.UNAVAILABLE,
}

_RESET: Final = {
    0x7: GrpcStatus.UNAVAILABLE,  # REFUSED_STREAM
    0x8: GrpcStatus.CANCELLED,  # CANCEL
    0xB: GrpcStatus.RESOURCE_EXHAUSTED,  # ENHANCE_YOUR_CALM
    0xC: GrpcStatus.PERMISSION_DENIED,  # INADEQUATE_SECURITY
}


def status_of_http(code: int) -> GrpcStatus:
    """The status of an answer that has an HTTP status but no `grpc-status`."""
    return _HTTP.get(code, GrpcStatus.UNKNOWN)


def status_of_reset(error_code: int) -> GrpcStatus:
    """The status of a call whose stream was reset with an HTTP/2 error code."""
    return _RESET.get(error_code, GrpcStatus.INTERNAL)


def encode_message(text: str) -> bytes:
    """Percent-encode a `grpc-message`: printable ASCII except `%` stays."""
    return b"".join(
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in text.encode()
    )


def decode_message(value: bytes) -> str:
    """The text of a `grpc-message`; what is not UTF-8 is replaced."""
    return unquote_to_bytes(value).decode(errors="replace")
