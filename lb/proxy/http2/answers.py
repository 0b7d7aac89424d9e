"""Calls that we answer ourselves: liveness and readiness."""

from __future__ import annotations

from lb.domain.outcome import Reason
from lb.kserve.health import EXITING, flag_message
from lb.kserve.operations import SERVER_LIVE
from lb.proxy.http2.call import Call
from lb.proxy.http2.health import own_readiness
from lb.proxy.http2.replies import ready_through
from lb.wire.grpc.message import frame_message


def answer(call: Call) -> None:
    """Answer a call whose request is complete."""
    dispatcher = call.relay.dispatcher
    if call.operation is SERVER_LIVE:
        call.finish_answer(frame_message(flag_message(True)))
    elif dispatcher.exiting:
        call.fail(Reason.DRAINING, EXITING)
    else:
        state = own_readiness(call)
        if state.loop:
            call.fail(Reason.LOOP, state.loop)
        else:
            answer = frame_message(flag_message(state.is_ready))
            call.finish_answer(answer, ready_through(state))
