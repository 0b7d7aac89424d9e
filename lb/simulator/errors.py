"""What a Triton refuses, with the HTTP status and the gRPC code it says so with."""

from __future__ import annotations

from enum import Enum

import grpc


class ErrorKind(Enum):
    """Kind of error: HTTP status and gRPC code, as Triton pairs them."""

    INVALID_ARGUMENT = (400, grpc.StatusCode.INVALID_ARGUMENT)
    NOT_FOUND = (404, grpc.StatusCode.NOT_FOUND)
    INTERNAL = (500, grpc.StatusCode.INTERNAL)
    UNSUPPORTED = (501, grpc.StatusCode.UNIMPLEMENTED)
    UNAVAILABLE = (503, grpc.StatusCode.UNAVAILABLE)

    @property
    def http_status(self) -> int:
        """Status of the HTTP answer."""
        return self.value[0]

    @property
    def grpc_code(self) -> grpc.StatusCode:
        """Status of the gRPC call."""
        return self.value[1]


class TritonError(Exception):
    """A request that the simulated Triton refuses; the text is what the client reads."""

    def __init__(self, fault: ErrorKind, text: str) -> None:
        super().__init__(text)
        self.fault = fault
        self.text = text


def invalid(text: str) -> TritonError:
    """Return the error of a request that makes no sense."""
    return TritonError(ErrorKind.INVALID_ARGUMENT, text)
