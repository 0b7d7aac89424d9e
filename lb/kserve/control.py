"""Which requests change a server, also when they are spelled so that only some servers see it.

A Triton matches paths as they come. What stands between us and it, and other servers, may decode
percent signs, fold case, join slashes, drop what follows a semicolon, resolve dot segments, or
take the method from a header. An access rule must not depend on that: whatever one of them would
take for control is.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final
from urllib.parse import unquote_to_bytes

from lb.domain.operation import Operation, OperationKind
from lb.kserve.operations import GRPC_OPERATIONS, http_route

METHOD_OVERRIDES: Final = frozenset(
    {b"x-http-method", b"x-http-method-override", b"x-method-override"}
)
"""Headers that some servers take the method from."""
_CONTROL: Final = OperationKind.CONTROL
_SAFE: Final = frozenset({b"GET", b"HEAD"})
_SLASHES: Final = re.compile(rb"[/\\]+")
_PARAMETERS: Final = re.compile(rb";[^/]*")
_DECODINGS: Final = 3
"""Servers in a row that may each decode once."""
_ELSEWHERE: Final = re.compile(rb"/v1/(?:models/[^/]+/(?:load|unload)|config/reload)")
"""Model control of Triton's OpenAI frontend, and of OpenVINO's server."""
_MODEL_CONTROL: Final = Operation("ModelControl", _CONTROL)
_CONTROL_METHODS: Final = {
    path.lower(): operation
    for path, operation in GRPC_OPERATIONS.items()
    if operation.kind is _CONTROL
}


def http_control(method: bytes, target: bytes, *, is_overridden: bool) -> Operation | None:
    """The operation that changes a server as which an HTTP request may be taken; None: none.

    Args:
        method: as on the wire.
        target: request target with its query.
        is_overridden: it has one of `METHOD_OVERRIDES`.
    """
    for path in (target, _plain(target)):
        operation = http_route(method, path).operation
        if operation.kind is _CONTROL:
            return operation
    if method in _SAFE and not is_overridden and _is_readable(path):
        return None
    if _ELSEWHERE.fullmatch(path) is not None:
        return _MODEL_CONTROL
    operation = http_route(b"POST", path).operation
    return operation if operation.kind is _CONTROL else None


def grpc_control(path: bytes) -> Operation | None:
    """As `http_control`, for a gRPC `:path`."""
    operation = GRPC_OPERATIONS.get(path)
    if operation is not None:
        return operation if operation.kind is _CONTROL else None
    return _CONTROL_METHODS.get(_plain(path))


def _is_readable(path: bytes) -> bool:
    """Whether looking at the same path is a request of its own: for trace and log settings."""
    return http_route(b"GET", path).operation.kind is OperationKind.READ


def _plain(target: bytes) -> bytes:
    """The path in its simplest spelling."""
    path = target
    for _ in range(_DECODINGS):
        path = unquote_to_bytes(path)
    # Decoded first: to some servers an encoded question mark is one.
    path = _PARAMETERS.sub(b"", re.split(rb"[?#]", path, maxsplit=1)[0])
    path = _SLASHES.sub(b"/", path)
    if b"/." in path:
        # Plain dot segments are refused, but not ..; or those that are encoded twice.
        path = posixpath.normpath(path)
    return path.rstrip(b"/").lower()
