"""Calls that we answer ourselves: liveness and readiness."""

from __future__ import annotations

from lb.domain.outcome import Reason
from lb.kserve.health import EXITING, flag_message
from lb.kserve.operations import SERVER_LIVE
from lb.proxy.http2.call import Call
from lb.proxy.http2.health import is_ready
from lb.wire.grpc.message import frame_message


def answer(call: Call) -> None:
    """Answer a call whose request is complete."""
    dispatcher = call.relay.dispatcher
    if call.operation is SERVER_LIVE:
        call.finish_answer(frame_message(flag_message(True)))
    elif dispatcher.exiting:
        call.fail(Reason.DRAINING, EXITING)
    else:
        call.finish_answer(frame_message(flag_message(is_ready(dispatcher.pool.current))))
