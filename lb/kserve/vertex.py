"""Triton's front for Vertex AI: which v2 request a request is.

Source: Triton `src/vertex_ai_server.cc`. Its answers are those of the v2 port: also with binary
tensors they have `Inference-Header-Content-Length`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lb.kserve.fronts import UNKNOWN_ROUTE, Forward, FrontRequest, Own, json_length

MIME: Final = b"application/vnd.vertex-ai-triton.binary+json;json-header-size="

_GET: Final = b"GET"
_POST: Final = b"POST"
_MODEL: Final = re.compile(
    rb"/v2/models/[^/]+(?:/versions/[0-9]+)?(?:/(infer|ready|config|stats))?"
)
_READ: Final = re.compile(
    rb"/v2(?:/health/(?:live|ready)|/models/stats"
    rb"|/(?:system|cuda)sharedmemory(?:/region/[^/]+)?/status)?"
)
_CHANGE: Final = re.compile(
    rb"/v2/repository(?:/[^/]+)?/(?:index|models/[^/]+/(?:load|unload))"
    rb"|/v2/(?:system|cuda)sharedmemory(?:/region/[^/]+)?/(?:register|unregister)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexRoutes:
    """How the platform reaches the front."""

    health: bytes
    predict: bytes


def translate(routes: VertexRoutes, request: FrontRequest, model: bytes) -> Forward | Own:
    """What becomes of a request.

    Args:
        routes: of this front.
        request: to it.
        model: which one predictions are of, unless they are redirected.

    Raises:
        FrontFault: its content type cannot be meant.
    """
    if request.path == routes.health:
        return Forward(request.method, b"/v2/health/ready")
    if request.path != routes.predict:
        return UNKNOWN_ROUTE
    if request.redirect is None:
        return _infer(request, b"/v2/models/%b/infer" % model)
    if request.method != _POST:
        return Own(405)
    return _redirected(request, b"/" + request.redirect)


def _redirected(request: FrontRequest, target: bytes) -> Forward | Own:
    """The platform only knows POST, so the method goes by the route."""
    if _READ.fullmatch(target) is not None:
        return Forward(_GET, target)
    match = _MODEL.fullmatch(target)
    if match is not None:
        return _infer(request, target) if match[1] == b"infer" else Forward(_GET, target)
    if _CHANGE.fullmatch(target) is not None:
        return Forward(_POST, target)
    return UNKNOWN_ROUTE


def _infer(request: FrontRequest, target: bytes) -> Forward:
    if request.method != _POST:
        return Forward(request.method, target)  # the backend says that it takes none but POST
    return Forward(_POST, target, json_length(MIME, request))
