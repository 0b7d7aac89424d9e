"""Our own errors as clients see them."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.outcome import OUTCOME_REASONS, Outcome, Reason
from lb.proxy.failure import RETRY_AFTER, grpc_status, http_body, http_status, upstream_detail
from lb.wire.grpc.status import GrpcStatus


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_an_error_on_both_protocols(reason: Reason) -> None:
    assert 400 <= http_status(reason) <= 599
    assert grpc_status(reason) is not GrpcStatus.OK


@pytest.mark.parametrize(
    ("reason", "http", "grpc"),
    [
        (Reason.NO_BACKEND, 503, GrpcStatus.UNAVAILABLE),
        (Reason.BACKENDS_FULL, 503, GrpcStatus.RESOURCE_EXHAUSTED),
        (Reason.MEMORY, 503, GrpcStatus.RESOURCE_EXHAUSTED),
        (Reason.UPSTREAM_PROTOCOL, 502, GrpcStatus.INTERNAL),
        (Reason.DEADLINE, 504, GrpcStatus.DEADLINE_EXCEEDED),
        (Reason.BAD_REQUEST, 400, GrpcStatus.INTERNAL),
        (Reason.BODY_TOO_LARGE, 413, GrpcStatus.RESOURCE_EXHAUSTED),
        (Reason.HEAD_TOO_LARGE, 431, GrpcStatus.RESOURCE_EXHAUSTED),
        (Reason.HEAD_TIMEOUT, 408, GrpcStatus.CANCELLED),
        (Reason.UNAUTHENTICATED, 401, GrpcStatus.UNAUTHENTICATED),
        (Reason.CONTROL_REFUSED, 403, GrpcStatus.PERMISSION_DENIED),
        (Reason.RATE_LIMITED, 429, GrpcStatus.RESOURCE_EXHAUSTED),
    ],
)
def test_codes_are_the_documented_ones(reason: Reason, http: int, grpc: GrpcStatus) -> None:
    assert (http_status(reason), grpc_status(reason)) == (http, grpc)


def test_only_what_passes_by_itself_asks_to_come_again() -> None:
    assert {http_status(reason) for reason in RETRY_AFTER} == {
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.TOO_MANY_REQUESTS,
    }


def test_a_body_is_json_in_tritons_shape() -> None:
    assert json.loads(http_body('no "backend" é')) == {"error": 'no "backend" é'}


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_can_be_told(outcome: Outcome) -> None:
    text = upstream_detail("gpu-0", AppProtocol.GRPC, outcome)
    assert text.startswith("backend gpu-0 (grpc) ")
    assert outcome is Outcome.ANSWERED or outcome in OUTCOME_REASONS
