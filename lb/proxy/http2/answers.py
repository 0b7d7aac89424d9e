"""Calls that we answer ourselves: liveness, readiness and `grpc.health.v1`."""

from __future__ import annotations

from lb.domain.backend import AppProtocol
from lb.domain.outcome import Reason
from lb.domain.pool import PoolSnapshot
from lb.kserve.health import EXITING, flag_message, health_message
from lb.kserve.operations import HEALTH_CHECK, HEALTH_WATCH, SERVER_LIVE
from lb.proxy.http2.call import Call
from lb.proxy.http2.replies import ANSWER_HEAD
from lb.wire.grpc.message import frame_message


def is_ready(snapshot: PoolSnapshot) -> bool:
    """Ready for gRPC: at least one backend is eligible."""
    return bool(snapshot.placement(AppProtocol.GRPC).eligible)


def answer(call: Call) -> None:
    """Answer a call whose request is complete."""
    operation = call.operation
    dispatcher = call.relay.dispatcher
    if operation is HEALTH_WATCH:
        _watch(call)
        return
    ready = is_ready(dispatcher.pool.current)
    if operation is HEALTH_CHECK:
        call.finish_answer(frame_message(health_message(ready and not dispatcher.exiting)))
    elif operation is SERVER_LIVE:
        call.finish_answer(frame_message(flag_message(True)))
    elif dispatcher.exiting:
        call.fail(Reason.DRAINING, EXITING)
    else:
        call.finish_answer(frame_message(flag_message(ready)))


def _watch(call: Call) -> None:
    """Send the state now and whenever it changes, until the client goes (health.proto)."""
    if call.begun:
        return
    relay = call.relay
    last: list[bool] = []

    def tell(snapshot: PoolSnapshot) -> None:
        serving = is_ready(snapshot) and not relay.dispatcher.exiting
        if last and last[0] == serving:
            return
        last[:] = [serving]
        call.server.send_data(call.response, frame_message(health_message(serving)))

    call.begun = True
    call.status = 200
    call.server.send_head(call.client_id, ANSWER_HEAD, end_stream=False)
    call.watch = relay.dispatcher.pool.subscribe(tell)
    tell(relay.dispatcher.pool.current)
