from __future__ import annotations

import grpc
import pytest

from lb.simulator.errors import ErrorKind, invalid


@pytest.mark.parametrize(
    ("fault", "http", "code"),
    [
        (ErrorKind.INVALID_ARGUMENT, 400, 3),
        (ErrorKind.NOT_FOUND, 404, 5),
        (ErrorKind.INTERNAL, 500, 13),
        (ErrorKind.UNSUPPORTED, 501, 12),
        (ErrorKind.UNAVAILABLE, 503, 14),
    ],
)
def test_faults_pair_http_and_grpc_as_triton_does(fault: ErrorKind, http: int, code: int) -> None:
    assert fault.http_status == http
    assert fault.grpc_code.value[0] == code


def test_invalid_request_carries_its_text() -> None:
    error = invalid("no")
    assert (error.text, error.fault.grpc_code) == ("no", grpc.StatusCode.INVALID_ARGUMENT)
