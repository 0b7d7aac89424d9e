"""Questions about health that name something: `grpc.health.v1`, and whether a model is ready."""

from __future__ import annotations

from typing import Final

from lb.domain.backend import AppProtocol
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Reason
from lb.domain.pool import PoolSnapshot
from lb.kserve.health import EXITING, SERVER_NAMES, Serving, flag_message, health_message
from lb.kserve.operations import HEALTH_WATCH, SERVER_LIVE
from lb.proxy.exchange import RoutingHints
from lb.proxy.http2.asked import Collector
from lb.proxy.http2.call import Call
from lb.proxy.http2.replies import OK_HEAD, UNPARSABLE, ready_through, status_trailers
from lb.proxy.readiness import Readiness, readiness
from lb.wire.grpc.message import frame_message
from lb.wire.grpc.status import GrpcStatus
from lb.wire.protobuf import BYTES, ProtobufError, fields

HEALTH_QUESTION_BYTES: Final = 4096
"""Bytes of a question that is one name, which has at most 255."""
_GRPC: Final = AppProtocol.GRPC


def is_ready(snapshot: PoolSnapshot) -> bool:
    """Ready for gRPC: at least one backend is."""
    return bool(snapshot.ready(_GRPC))


def own_readiness(call: Call) -> Readiness:
    """What is answered to a call that asks whether we are ready."""
    dispatcher = call.relay.dispatcher
    return readiness(dispatcher.pool.current, _GRPC, call.head.facts.passed, dispatcher.identity)


def serving(snapshot: PoolSnapshot, service: bytes) -> Serving:
    """The state of a service: a model that a backend lists, or else the server.

    A Triton does not look at the name, so that clients which give it one of their own invention
    must find a server, too.
    """
    if service in snapshot.routes and service not in SERVER_NAMES:
        is_served = bool(snapshot.is_served(service, b"", _GRPC))
    else:
        is_served = is_ready(snapshot)
    return Serving.SERVING if is_served else Serving.NOT_SERVING


def watched(snapshot: PoolSnapshot, service: bytes) -> Serving:
    """As `serving`, for those who watch, which no Triton lets them: unknown is unknown."""
    is_known = service in SERVER_NAMES or service in snapshot.routes or not snapshot.knows_all
    return serving(snapshot, service) if is_known else Serving.SERVICE_UNKNOWN


def answer_server(collector: Collector) -> None:
    """Answer `ServerLive` and `ServerReady`, whose messages have no fields."""
    if _read(collector) is None:
        return
    call = collector.call
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


def answer_health(collector: Collector) -> None:
    """Answer `Check` and `Watch` of `grpc.health.v1.Health`."""
    found = _read(collector)
    if found is None:
        return
    call = collector.call
    service = found.get(1, b"")
    if call.operation is HEALTH_WATCH:
        _watch(collector, service)
    elif call.relay.dispatcher.exiting:
        call.finish_answer(frame_message(health_message(Serving.NOT_SERVING)))
    else:
        _check(call, service)


def _of_variants(call: Call, service: bytes) -> Serving | None:
    """Whether some variant of a name serves; None where it has no variants."""
    variants = call.relay.dispatcher.variants
    if service not in variants:
        return None
    return Serving.SERVING if variants.is_ready(service, _GRPC) else Serving.NOT_SERVING


def _check(call: Call, service: bytes) -> None:
    state = _of_variants(call, service)
    if state is None:
        state = serving(call.relay.dispatcher.pool.current, service)
    fields = b""
    if call.head.facts.passed:
        through = own_readiness(call)
        if state is Serving.SERVING and through.loop:
            call.fail(Reason.LOOP, through.loop)
            return
        if through.is_ready is (state is Serving.SERVING):
            fields = ready_through(through)
    call.finish_answer(frame_message(health_message(state)), fields)


def _watch(collector: Collector, service: bytes) -> None:
    """Send the state now and whenever it changes, until the client goes (health.proto), or we do: a
    drain would wait for those who watch until its time is over."""
    call = collector.call
    relay = call.relay
    last = 0

    def tell(snapshot: PoolSnapshot) -> None:
        nonlocal last
        exiting = relay.dispatcher.exiting
        state = _of_variants(call, service) or watched(snapshot, service)
        if exiting:
            state = Serving.NOT_SERVING
        if state != last:
            last = state
            call.server.send_data(call.response, frame_message(health_message(state)))
        if relay.draining and not call.finished:
            call.grpc_status = GrpcStatus.UNAVAILABLE
            call.response.ended = True
            call.response.trailers = status_trailers(GrpcStatus.UNAVAILABLE, EXITING)
            call.server.end_stream(call.response)

    call.begun = True
    call.status = 200
    call.server.send_head(call.client_id, OK_HEAD, end_stream=False)
    collector.watch = relay.dispatcher.pool.subscribe(tell)
    tell(relay.dispatcher.pool.current)


def answer_ready(collector: Collector) -> None:
    """Answer `ModelReady`: ready if any backend has the model; else a backend says what it is."""
    call = collector.call
    pieces = list(call.request.retained or ())  # a backend may get them, too
    try:
        names = _strings(collector.message())
    except (RequestRefused, ProtobufError):
        names = {}
    call.model, version = names.get(1, b""), names.get(2, b"")
    dispatcher = call.relay.dispatcher
    variants = dispatcher.variants
    if not version and call.model in variants:
        is_ready: bool | None = variants.is_ready(call.model, _GRPC)
    else:
        is_ready = dispatcher.pool.current.is_served(call.model, version, _GRPC)
    if is_ready:
        call.finish_answer(frame_message(flag_message(True)))
        return
    if version:
        call.hints = RoutingHints()
        call.hints.version = version
    collector.give_back(pieces)


def _read(collector: Collector) -> dict[int, bytes] | None:
    """The strings of a call's message; None where it cannot be read: the call is over then."""
    message = collector.take_message()
    if message is None:
        return None
    try:
        return _strings(message)
    except ProtobufError:
        collector.call.fail(Reason.BAD_REQUEST, UNPARSABLE)
        return None


def _strings(message: bytes) -> dict[int, bytes]:
    """The strings of a message by their field.

    Raises:
        ProtobufError: it is malformed.
    """
    return {
        number: message[start:end] for number, kind, start, end in fields(message) if kind == BYTES
    }
