"""Our own answers about liveness and readiness, as the messages that clients expect.

`inference.GRPCInferenceService/ServerLive` and `ServerReady` answer one bool (field 1);
`grpc.health.v1.HealthCheckResponse` answers one enum (field 1). Default values are not written.
"""

from __future__ import annotations

from typing import Final

_TRUE: Final = b"\x08\x01"
_SERVING: Final = b"\x08\x01"
_NOT_SERVING: Final = b"\x08\x02"

EXITING: Final = "Server exiting"
"""What a Triton says about itself while it shuts down, and what we say while we drain."""


def flag_message(value: bool) -> bytes:
    """A `ServerLiveResponse` or `ServerReadyResponse`."""
    return _TRUE if value else b""


def health_message(serving: bool) -> bytes:
    """A `grpc.health.v1.HealthCheckResponse`."""
    return _SERVING if serving else _NOT_SERVING
