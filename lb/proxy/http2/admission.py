"""Calls that are refused for what their heads say: not gRPC, too large, not allowed, too many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from lb.access.gate import Claim
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Reason
from lb.proxy.failure import grpc_status
from lb.proxy.http2.replies import BAD_METHOD, NOT_GRPC, pushback, trailers_only
from lb.wire.http2.budget import Spending

if TYPE_CHECKING:
    from lb.proxy.http2.call import Call

_POST: Final = b"POST"


def is_refused(call: Call) -> bool:
    """Whether a call must not go on; it has been answered then."""
    head = call.head
    options = call.relay.options
    if head.fault:
        call.fail(Reason.BAD_REQUEST, head.fault)
        call.server.spend(Spending.FAULT)
    elif not head.is_grpc or head.method != _POST:
        _refuse_foreign(call)
    elif head.size > options.head_size or head.count > options.fields:
        call.fail(Reason.HEAD_TOO_LARGE, "request metadata is too large")
        call.server.spend(Spending.OVERSIZED)
    elif head.loop:
        call.fail(Reason.LOOP, head.loop)
    elif head.unusable:
        call.fail(Reason.BAD_REQUEST, head.unusable)
    elif head.claim is not None:
        _ask_gate(call, cast("Claim", head.claim))
    return call.finished


def _refuse_foreign(call: Call) -> None:
    """Not gRPC: the answer is HTTP's ("gRPC over HTTP2": 415 and no grpc-status)."""
    is_post = call.head.method == _POST
    call.status = 415 if is_post else 405
    call.answer_whole(NOT_GRPC if is_post else BAD_METHOD, Reason.UNSUPPORTED)


def _ask_gate(call: Call, claim: Claim) -> None:
    try:
        call.relay.dispatcher.admit(call, claim, call.server.client)
    except RequestRefused as refusal:
        call.status = 200
        call.grpc_status = status = grpc_status(refusal.reason)
        block = trailers_only(status, refusal.detail)
        if refusal.retry_after_s:
            block += pushback(refusal.retry_after_s)
        call.answer_whole(block, refusal.reason)
