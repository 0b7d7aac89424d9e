"""Which calls are refused for what their heads say: not gRPC, too large, malformed."""

from __future__ import annotations

from typing import Final, NamedTuple

from lb.domain.outcome import Reason
from lb.proxy.http2.options import Http2Options
from lb.proxy.http2.replies import BAD_METHOD, NOT_GRPC
from lb.wire.http2.budget import Spending
from lb.wire.http2.heads import HeadFacts

_POST: Final = b"POST"


class CallRefusal(NamedTuple):
    """Why a call must not go on, and what its client is told."""

    reason: Reason
    detail: str = ""
    spends: Spending | None = None
    """What the client may not do too often."""
    status: int = 200
    """The status of HTTP."""
    block: bytes = b""
    """The whole answer, where that is HTTP's and not gRPC's."""


def refusal_of(facts: HeadFacts, options: Http2Options) -> CallRefusal | None:
    """Why a call with this head must not go on; None where it may, as far as the head says."""
    if facts.fault:
        return CallRefusal(Reason.BAD_REQUEST, facts.fault, Spending.FAULT)
    if facts.method != _POST:
        return CallRefusal(Reason.UNSUPPORTED, status=405, block=BAD_METHOD)
    if not facts.is_grpc:
        # "gRPC over HTTP2": 415 and no grpc-status.
        return CallRefusal(Reason.UNSUPPORTED, status=415, block=NOT_GRPC)
    if facts.size > options.head_size or facts.count > options.fields:
        detail = "request metadata is too large"
        return CallRefusal(Reason.HEAD_TOO_LARGE, detail, Spending.OVERSIZED)
    if facts.loop:
        return CallRefusal(Reason.LOOP, facts.loop)
    if facts.unusable:
        return CallRefusal(Reason.BAD_REQUEST, facts.unusable)
    return None
