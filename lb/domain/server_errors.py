"""Status codes that are errors of a server, and of no client: one definition for each conclusion.

In HTTP they are the codes from 500 on. gRPC's codes stand here as numbers, since `lb.wire.grpc`,
which names them, is a package above this one.
"""

from __future__ import annotations

from typing import Final

from lb.domain.backend import AppProtocol

_UNKNOWN: Final = 2
_DEADLINE_EXCEEDED: Final = 4
_RESOURCE_EXHAUSTED: Final = 8
_UNIMPLEMENTED: Final = 12
_INTERNAL: Final = 13
_UNAVAILABLE: Final = 14
_DATA_LOSS: Final = 15

_ALWAYS: Final = frozenset({_UNKNOWN, _INTERNAL, _UNAVAILABLE, _DATA_LOSS})
_SERVICE: Final = _ALWAYS | {_DEADLINE_EXCEEDED}
"""A service that hangs is known by deadlines that pass. In HTTP that is 504, an error as well."""
_BACKEND: Final = _ALWAYS | {_RESOURCE_EXHAUSTED}
"""A full backend is a worse choice than the others. A deadline may have been too short for any of
them, or have passed while the request was queued."""
_SPAN: Final = _SERVICE | {_UNIMPLEMENTED}
"""OpenTelemetry, "Semantic conventions for gRPC": codes that are errors of a server's span."""

_FIRST_OF_HTTP: Final = 500


def is_service_error(protocol: AppProtocol, code: int) -> bool:
    """Whether a client may take the code for a failure of the service, or of a model.

    Args:
        protocol: whose code it is.
        code: HTTP or gRPC status.
    """
    return code in _SERVICE if protocol is AppProtocol.GRPC else code >= _FIRST_OF_HTTP


def is_backend_error(protocol: AppProtocol, code: int) -> bool:
    """Whether the code speaks against sending the backend more; see `is_service_error`."""
    return code in _BACKEND if protocol is AppProtocol.GRPC else code >= _FIRST_OF_HTTP


def is_span_error(protocol: AppProtocol, code: int) -> bool:
    """Whether a span has failed that ended with the code; see `is_service_error`."""
    return code in _SPAN if protocol is AppProtocol.GRPC else code >= _FIRST_OF_HTTP
