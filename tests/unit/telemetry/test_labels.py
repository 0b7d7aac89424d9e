"""Label values come from closed sets, whatever a peer sends."""

from __future__ import annotations

import pytest

from lb.domain.backend import AppProtocol
from lb.telemetry.labels import code_label, is_failure

HTTP, GRPC = AppProtocol.HTTP, AppProtocol.GRPC


@pytest.mark.parametrize(
    ("protocol", "code", "label"),
    [
        (HTTP, 200, "200"),
        (HTTP, 599, "599"),
        (HTTP, 0, "none"),
        (HTTP, 600, "other"),
        (HTTP, 99, "other"),
        (GRPC, 0, "OK"),
        (GRPC, 14, "UNAVAILABLE"),
        (GRPC, -1, "none"),
        (GRPC, 17, "other"),
    ],
)
def test_codes_have_labels(protocol: AppProtocol, code: int, label: str) -> None:
    assert code_label(protocol, code) == label


@pytest.mark.parametrize(
    ("protocol", "code", "failed"),
    [
        (HTTP, 200, False),
        (HTTP, 304, False),
        (HTTP, 400, True),
        (HTTP, 0, True),
        (GRPC, 0, False),
        (GRPC, 5, True),
        (GRPC, -1, True),
    ],
)
def test_failures_are_what_a_client_takes_for_one(
    protocol: AppProtocol, code: int, failed: bool
) -> None:
    assert is_failure(protocol, code) is failed
