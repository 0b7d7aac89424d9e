"""Label values that metrics and logs share, each from a closed set."""

from __future__ import annotations

from typing import Final

from lb.domain.backend import AppProtocol
from lb.wire.grpc.status import GrpcStatus

NO_CODE: Final = "none"
"""Nothing was answered: the client left first, or a call ended without a status."""
OTHER: Final = "other"
"""What the closed set does not know, or has no room for."""

_GRPC: Final = AppProtocol.GRPC
_OK: Final = GrpcStatus.OK.value
_HTTP_CODES: Final = {0: NO_CODE} | {code: str(code) for code in range(100, 600)}
_GRPC_CODES: Final = {-1: NO_CODE} | {status.value: status.name for status in GrpcStatus}


def code_label(protocol: AppProtocol, code: int) -> str:
    """HTTP status as digits, gRPC status by name; a peer's inventions are all `other`.

    Args:
        protocol: whose codes they are.
        code: HTTP status, 0 for none; gRPC status, -1 for none.
    """
    codes = _GRPC_CODES if protocol is _GRPC else _HTTP_CODES
    return codes.get(code, OTHER)


def is_failure(protocol: AppProtocol, code: int) -> bool:
    """Whether a client takes the code for a failure of its request."""
    if protocol is _GRPC:
        return code != _OK
    return not 0 < code < 400
