"""Header blocks of our own answers to calls."""

from __future__ import annotations

from math import ceil
from typing import Final

from lb.domain.outcome import OUTCOME_REASONS, Reason
from lb.proxy.readiness import Readiness
from lb.wire.grpc.status import GrpcStatus, encode_message
from lb.wire.hops import NOT_RUN, READY_THROUGH
from lb.wire.http2.fields import encode_field
from lb.wire.http2.frames import ErrorCode

OK_HEAD: Final = encode_field(b":status", b"200") + encode_field(
    b"content-type", b"application/grpc"
)
"""What our own errors begin with."""
ANSWER_HEAD: Final = OK_HEAD + encode_field(b"grpc-accept-encoding", b"identity, deflate, gzip")
"""What our own answers begin with: as gRPC servers do, it says how requests may be compressed."""
NOT_GRPC: Final = encode_field(b":status", b"415")
BAD_METHOD: Final = encode_field(b":status", b"405") + encode_field(b"allow", b"POST")
UNPARSABLE: Final = "Unable to parse request"
"""In a Triton's words."""

RESET_CODES: Final = {
    Reason.DEADLINE: ErrorCode.CANCEL,
    Reason.CLIENT_STALLED: ErrorCode.CANCEL,
    Reason.MEMORY: ErrorCode.ENHANCE_YOUR_CALM,
    Reason.ANSWER_HEAD_TOO_LARGE: ErrorCode.ENHANCE_YOUR_CALM,
}
"""How a stream is reset whose response has begun; others are INTERNAL_ERROR."""
BACKEND_FAILED: Final = frozenset(OUTCOME_REASONS.values()) - {
    Reason.DEADLINE, Reason.CLIENT_GONE, Reason.OVERTAKEN,
}  # fmt: skip
"""Why a response ends if its backend is to blame."""


def trailers_only(status: GrpcStatus, detail: str) -> bytes:
    """The block of an answer that is nothing but an error."""
    return OK_HEAD + status_trailers(status, detail)


def pushback(retry_after_s: float) -> bytes:
    """The field that says when to come again, for clients that repeat RESOURCE_EXHAUSTED by
    themselves (gRPC A6)."""
    return encode_field(b"grpc-retry-pushback-ms", b"%d" % ceil(retry_after_s * 1000))


def ready_through(state: Readiness) -> bytes:
    """The field that tells another balancer through which balancers we are ready."""
    return encode_field(READY_THROUGH, state.through) if state.through else b""


def not_run(why: bytes) -> bytes:
    """The field that tells another balancer that the call did not run here; nothing without
    `why`."""
    return encode_field(NOT_RUN, why) if why else b""


def status_trailers(status: int, detail: str = "") -> bytes:
    """The block of trailers."""
    block = encode_field(b"grpc-status", b"%d" % status)
    return block + encode_field(b"grpc-message", encode_message(detail)) if detail else block
