"""What one backend made of a question."""

from __future__ import annotations

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome, Reason
from lb.net.ask.grpc import GrpcAnswer
from lb.net.ask.http import HttpAnswer
from lb.proxy.fan_out.result import answered_grpc, answered_http, unanswered
from tests.fakes.backends import make_backend

BACKEND = make_backend("a")
HTTP, GRPC = AppProtocol.HTTP, AppProtocol.GRPC


def test_an_error_is_an_answer_with_its_text() -> None:
    result = answered_http(BACKEND, HttpAnswer(404, (), b'{"error":"gone"}'), 1.0, 2.0)
    assert (result.is_ok, result.label, result.detail) == (False, "error", "gone")
    assert answered_http(BACKEND, HttpAnswer(500, (), b"?"), 1.0, 2.0).detail == "HTTP status 500"
    result = answered_grpc(BACKEND, GrpcAnswer(5, "gone", b""), 1.0, 2.0)
    assert (result.is_ok, result.label, result.detail) == (False, "error", "gone")


def test_an_answer_that_no_triton_gives_is_none() -> None:
    result = answered_http(BACKEND, HttpAnswer(304, (), b""), 1.0, 2.0)
    assert (result.is_ok, result.status, result.reason) == (False, 502, Reason.UPSTREAM_PROTOCOL)
    assert result.detail == "HTTP status 304"


def test_who_was_not_reached_never_heard_of_it() -> None:
    result = unanswered(BACKEND, HTTP, UpstreamError(Outcome.CONNECT_REFUSED, "no"))
    assert result.is_unreached
    assert (result.status, result.label) == (503, "connect_refused")
    result = unanswered(BACKEND, GRPC, UpstreamError(Outcome.LOST, "cut"))
    assert not result.is_unreached
    assert (result.status, result.reason) == (14, Reason.UPSTREAM_LOST)


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("requested model 'm' is not available", True),
        ("Request for unknown model: 'm' version 1 is not at ready state", True),
        ("Request for unknown model : m", True),
        ("failed to load 'm'", False),
    ],
)
def test_a_server_may_say_that_it_lacks_the_model(text: str, lacks: bool) -> None:
    body = b'{"error":"%b"}' % text.encode()
    assert answered_http(BACKEND, HttpAnswer(400, (), body), 1.0, 2.0).lacks_model is lacks
    assert answered_grpc(BACKEND, GrpcAnswer(3, text, b""), 1.0, 2.0).lacks_model is lacks
    lost = unanswered(BACKEND, HTTP, UpstreamError(Outcome.LOST, text))
    assert not lost.lacks_model


@pytest.mark.parametrize(
    ("http", "grpc"), [(400, 3), (404, 5), (501, 12), (503, 14), (500, 13), (418, 13)]
)
def test_errors_of_http_in_grpc(http: int, grpc: int) -> None:
    result = answered_http(BACKEND, HttpAnswer(http, (), b""), 1.0, 2.0)
    assert result.status_in(GRPC) == grpc
    assert result.status_in(HTTP) == http


@pytest.mark.parametrize(
    ("grpc", "http"), [(3, 400), (5, 404), (6, 400), (12, 501), (14, 503), (13, 500), (77, 500)]
)
def test_errors_of_grpc_in_http(grpc: int, http: int) -> None:
    result = answered_grpc(BACKEND, GrpcAnswer(grpc, "", b""), 1.0, 2.0)
    assert result.status_in(HTTP) == http
    assert result.status_in(GRPC) == grpc
