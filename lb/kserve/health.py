"""Our own answers about liveness and readiness, as the messages that clients expect.

`inference.GRPCInferenceService/ServerLive` and `ServerReady` answer one bool (field 1);
`grpc.health.v1.HealthCheckResponse` answers one enum (field 1). Default values are not written.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

_TRUE: Final = b"\x08\x01"
SERVER_NAMES: Final = frozenset({
    b"", b"grpc.health.v1.Health", b"inference.GRPCInferenceService",
    b"tensorflow.serving.ModelService", b"tensorflow.serving.PredictionService",
})  # fmt: skip
"""Services of `grpc.health.v1` that stand for the whole server; others may be models."""


class Serving(IntEnum):
    """`grpc.health.v1.HealthCheckResponse.ServingStatus`."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3
    """Only told to those who watch: the service may come yet."""


EXITING: Final = "Server exiting"
"""What a Triton says about itself while it shuts down, and what we say while we drain."""


def flag_message(value: bool) -> bytes:
    """A `ServerLiveResponse` or `ServerReadyResponse`."""
    return _TRUE if value else b""


def health_message(serving: Serving) -> bytes:
    """A `grpc.health.v1.HealthCheckResponse`."""
    return b"\x08%c" % serving
