"""Which codes are errors of a server, and what is concluded from them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.server_errors import is_backend_error, is_service_error, is_span_error
from lb.wire.grpc.status import GrpcStatus

ALWAYS = {"UNKNOWN", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
CASES = (
    (is_service_error, ALWAYS | {"DEADLINE_EXCEEDED"}),
    (is_backend_error, ALWAYS | {"RESOURCE_EXHAUSTED"}),
    (is_span_error, ALWAYS | {"DEADLINE_EXCEEDED", "UNIMPLEMENTED"}),
)


@pytest.mark.parametrize(("is_error", "names"), CASES)
def test_codes_that_are_errors(
    is_error: Callable[[AppProtocol, int], bool], names: set[str]
) -> None:
    assert {each.name for each in GrpcStatus if is_error(AppProtocol.GRPC, each)} == names
    assert [code for code in (0, 200, 404, 499, 500, 504) if is_error(AppProtocol.HTTP, code)] == [
        500,
        504,
    ]
