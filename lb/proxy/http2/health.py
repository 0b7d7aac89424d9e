"""Questions about health that name something: `grpc.health.v1`, and whether a model is ready."""

from __future__ import annotations

from typing import ClassVar, Final

from lb.domain.backend import AppProtocol
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Reason
from lb.domain.pool import PoolSnapshot
from lb.kserve.health import EXITING, SERVER_NAMES, Serving, flag_message, health_message
from lb.kserve.operations import HEALTH_WATCH, SERVER_LIVE
from lb.proxy.exchange import Particulars
from lb.proxy.http2.asked import UNPARSABLE, AskedCall
from lb.proxy.http2.call import Call
from lb.proxy.http2.replies import OK_HEAD, ready_through, status_trailers
from lb.proxy.readiness import Readiness, readiness
from lb.wire.grpc.message import frame_message
from lb.wire.grpc.status import GrpcStatus
from lb.wire.protobuf import BYTES, ProtobufError, fields

_LIMIT: Final = 4096
"""Bytes of a question: a name has at most 255."""
_GRPC: Final = AppProtocol.GRPC


def is_ready(snapshot: PoolSnapshot) -> bool:
    """Ready for gRPC: at least one backend is."""
    return bool(snapshot.ready(_GRPC))


def own_readiness(call: Call) -> Readiness:
    """What is answered to a call that asks whether we are ready."""
    dispatcher = call.relay.dispatcher
    return readiness(dispatcher.pool.current, _GRPC, call.head.passed, dispatcher.identity)


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


class ServerCall(AskedCall):
    """`ServerLive` and `ServerReady`, whose messages have no fields."""

    __slots__ = ()

    limit: ClassVar[int] = _LIMIT

    def _ask(self) -> None:
        """The request is complete."""
        if _read(self) is None:
            return
        dispatcher = self.relay.dispatcher
        if self.operation is SERVER_LIVE:
            self.finish_answer(frame_message(flag_message(True)))
        elif dispatcher.exiting:
            self.fail(Reason.DRAINING, EXITING)
        else:
            state = own_readiness(self)
            if state.loop:
                self.fail(Reason.LOOP, state.loop)
            else:
                answer = frame_message(flag_message(state.is_ready))
                self.finish_answer(answer, ready_through(state))


class HealthCall(AskedCall):
    """`Check` and `Watch` of `grpc.health.v1.Health`."""

    __slots__ = ()

    limit: ClassVar[int] = _LIMIT

    def _ask(self) -> None:
        """The request is complete."""
        found = _read(self)
        if found is None:
            return
        service = found.get(1, b"")
        dispatcher = self.relay.dispatcher
        if self.operation is HEALTH_WATCH:
            self._watch(service)
        elif dispatcher.exiting:
            self.finish_answer(frame_message(health_message(Serving.NOT_SERVING)))
        else:
            self._check(service)

    def _check(self, service: bytes) -> None:
        state = serving(self.relay.dispatcher.pool.current, service)
        fields = b""
        if state is Serving.SERVING and self.head.passed:
            through = own_readiness(self)
            if through.loop:
                self.fail(Reason.LOOP, through.loop)
                return
            fields = ready_through(through)
        self.finish_answer(frame_message(health_message(state)), fields)

    def _watch(self, service: bytes) -> None:
        """Send the state now and whenever it changes, until the client goes (health.proto), or we
        do: a drain would wait for those who watch until its time is over."""
        relay = self.relay
        last = 0

        def tell(snapshot: PoolSnapshot) -> None:
            nonlocal last
            exiting = relay.dispatcher.exiting
            state = Serving.NOT_SERVING if exiting else watched(snapshot, service)
            if state != last:
                last = state
                self.server.send_data(self.response, frame_message(health_message(state)))
            if relay.draining and not self.finished:
                self.grpc_status = GrpcStatus.UNAVAILABLE
                self.response.ended = True
                self.response.trailers = status_trailers(GrpcStatus.UNAVAILABLE, EXITING)
                self.server.end_stream(self.response)

        self.begun = True
        self.status = 200
        self.server.send_head(self.client_id, OK_HEAD, end_stream=False)
        self.watch = relay.dispatcher.pool.subscribe(tell)
        tell(relay.dispatcher.pool.current)


class ReadyCall(AskedCall):
    """`ModelReady`: ready if any backend has the model; else a backend says what it is."""

    __slots__ = ()

    limit: ClassVar[int] = _LIMIT

    def _ask(self) -> None:
        """The request is complete."""
        request = self.request
        pieces = list(request.retained or ())  # a backend may get them, too
        try:
            names = _strings(self._message())
        except (RequestRefused, ProtobufError):
            names = {}
        self.model, version = names.get(1, b""), names.get(2, b"")
        if self.relay.dispatcher.pool.current.is_served(self.model, version, _GRPC):
            self.finish_answer(frame_message(flag_message(True)))
            return
        if version:
            self.particulars = Particulars()
            self.particulars.version = version
        request.retained = pieces
        if request.rewind():
            self._place()


def _read(call: AskedCall) -> dict[int, bytes] | None:
    """The strings of a call's message; None where it cannot be read: the call is over then."""
    message = call.take_message()
    if message is None:
        return None
    try:
        return _strings(message)
    except ProtobufError:
        call.fail(Reason.BAD_REQUEST, UNPARSABLE)
        return None


def _strings(message: bytes) -> dict[int, bytes]:
    """The strings of a message by their field.

    Raises:
        ProtobufError: it is malformed.
    """
    return {
        number: message[start:end] for number, kind, start, end in fields(message) if kind == BYTES
    }
