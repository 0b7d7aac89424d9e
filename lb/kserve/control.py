"""Which requests change a server, also when they are spelled so that only some servers see it.

A Triton matches paths as they come. What stands between us and it, and other servers, may decode
percent signs, fold case, join slashes, drop what follows a semicolon, resolve dot segments, or
take the method from a header. An access rule must not depend on that: whatever one of them would
take for control is.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final, NamedTuple

from lb.domain.operation import Operation, OperationKind
from lb.kserve.operations import GRPC_OPERATIONS, http_route

METHOD_OVERRIDES: Final = frozenset(
    {b"x-http-method", b"x-http-method-override", b"x-method-override"}
)
"""Headers that some servers take the method from."""
_CONTROL: Final = OperationKind.CONTROL
_SAFE: Final = frozenset({b"GET", b"HEAD"})
_QUERY: Final = re.compile(rb"[?#]")
_SLASHES: Final = re.compile(rb"[/\\]+")
_PARAMETERS: Final = re.compile(rb";[^/]*")
_ESCAPE: Final = re.compile(rb"%(?=[0-9A-Fa-f]{2})")
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


class HttpControl(NamedTuple):
    """The operation that changes a server as which an HTTP request may be taken; None: none."""

    plain: Operation | None
    overridden: Operation | None
    """What it may be taken as with one of `METHOD_OVERRIDES`."""


_NONE: Final = HttpControl(None, None)


def http_control(method: bytes, target: bytes) -> HttpControl:
    """What an HTTP request may change.

    Args:
        method: as on the wire.
        target: request target with its query.
    """
    path = _plain(target)
    for spelling in (target, path):
        operation = http_route(method, spelling).operation
        if operation.kind is _CONTROL:
            return HttpControl(operation, operation)
    if _ELSEWHERE.fullmatch(path) is not None:
        operation = _MODEL_CONTROL
    else:
        operation = http_route(b"POST", path).operation
        if operation.kind is not _CONTROL:
            return _NONE
    if method in _SAFE and _is_readable(path):
        return HttpControl(None, operation)
    return HttpControl(operation, operation)


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
    path = _without_query(target)
    for _ in range(_DECODINGS):
        if b"%" not in path:
            break
        path = _decoded(path)
    # Again: to some servers an encoded question mark is one.
    path = _PARAMETERS.sub(b"", _without_query(path))
    if b"//" in path or b"\\" in path:
        path = _SLASHES.sub(b"/", path)
    if b"/." in path:
        # Plain dot segments are refused, but not ..; or those that are encoded twice.
        path = posixpath.normpath(path)
    return path.rstrip(b"/").lower()


def _without_query(target: bytes) -> bytes:
    return _QUERY.split(target, maxsplit=1)[0]


def _decoded(path: bytes) -> bytes:
    """A path with its percent-encoding decoded once; what is no escape stays as it is.

    Anybody may send thousands of escapes, and `urllib` takes half a microsecond for each. As
    escapes of Python's they are decoded without a call for each.
    """
    text = _ESCAPE.sub(rb"\\x", path.replace(b"\\", rb"\\"))
    return text.decode("unicode_escape").encode("latin-1")
