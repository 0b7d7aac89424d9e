"""The front for Vertex AI."""

from __future__ import annotations

import pytest

from lb.kserve.fronts import UNKNOWN_ROUTE, Forward, FrontFault, FrontRequest, Own
from lb.kserve.vertex import MIME, VertexRoutes, translate

ROUTES = VertexRoutes(health=b"/health", predict=b"/v1/endpoints/7:predict")


def ask(
    method: bytes = b"POST",
    path: bytes = ROUTES.predict,
    redirect: bytes | None = None,
    content_type: bytes = b"",
) -> Forward | Own:
    request = FrontRequest(method, path, 50, content_type, redirect=redirect)
    return translate(ROUTES, request, b"simple")


def test_health_is_readiness() -> None:
    assert ask(b"GET", b"/health") == Forward(b"GET", b"/v2/health/ready")


def test_predictions_are_of_the_default_model() -> None:
    assert ask() == Forward(b"POST", b"/v2/models/simple/infer")
    assert ask(content_type=MIME + b"12") == Forward(b"POST", b"/v2/models/simple/infer", 12)


def test_the_backend_says_that_predictions_are_posted() -> None:
    assert ask(b"GET") == Forward(b"GET", b"/v2/models/simple/infer")


def test_other_routes_are_unknown() -> None:
    assert ask(b"GET", b"/v2/health/ready") == UNKNOWN_ROUTE


@pytest.mark.parametrize(
    ("redirect", "method"),
    [
        (b"v2", b"GET"),
        (b"v2/health/live", b"GET"),
        (b"v2/models/stats", b"GET"),
        (b"v2/models/m", b"GET"),
        (b"v2/models/m/versions/2/config", b"GET"),
        (b"v2/models/m/infer", b"POST"),
        (b"v2/repository/index", b"POST"),
        (b"v2/repository/models/m/load", b"POST"),
        (b"v2/systemsharedmemory/status", b"GET"),
        (b"v2/cudasharedmemory/region/r/status", b"GET"),
        (b"v2/systemsharedmemory/region/r/register", b"POST"),
    ],
)
def test_a_redirection_has_the_method_of_its_route(redirect: bytes, method: bytes) -> None:
    assert ask(redirect=redirect) == Forward(method, b"/" + redirect)


@pytest.mark.parametrize(
    "redirect",
    [
        b"/v2", b"V2", b"", b"v2?x=1", b"metrics", b"v2/logging", b"v2/trace/setting",
        b"v2/models/m/generate", b"v2/repository/models/a/b/load",
    ],
)  # fmt: skip
def test_other_redirections_are_unknown(redirect: bytes) -> None:
    assert ask(redirect=redirect) == UNKNOWN_ROUTE


def test_redirections_are_posted() -> None:
    assert ask(b"GET", redirect=b"v2") == Own(405)


def test_the_json_length_counts_where_there_may_be_tensors() -> None:
    assert ask(redirect=b"v2/models/m/infer", content_type=MIME + b"9") == Forward(
        b"POST", b"/v2/models/m/infer", 9
    )
    with pytest.raises(FrontFault):
        ask(content_type=MIME + b"51")
