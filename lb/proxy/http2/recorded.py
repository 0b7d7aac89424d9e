"""Calls and streams whose payload is noted for the payload log, as the client sends and gets it."""

from __future__ import annotations

from lb.domain.backend import Backend, Port
from lb.domain.operation import Operation, OperationKind
from lb.kserve.gate import StreamMask
from lb.kserve.operations import MODEL_STREAM_INFER
from lb.payloads.log import Recording
from lb.proxy.http2.attempt import GrpcAttempt, ResponseSink
from lb.proxy.http2.call import Call, CallPart
from lb.proxy.http2.connection import Http2Connection
from lb.proxy.http2.shared import Http2Shared
from lb.proxy.http2.stream_session import StreamSession
from lb.wire.http2.flow import Payload
from lb.wire.http2.heads import HeadFacts, RequestHead


class RecordedRequest(CallPart):
    """Notes the request of a call before the call, or the part that it has, takes it."""

    __slots__ = ("_recording",)

    def __init__(self, call: Call, recording: Recording) -> None:
        super().__init__(call)
        self._recording = recording

    @property
    def _taker(self) -> Call | CallPart:
        return self.call.part or self.call

    def request_data(self, payload: Payload, end_stream: int) -> None:
        """See `CallPart`."""
        self._recording.add_request(payload)
        self._taker.request_data(payload, end_stream)

    def resume_request(self, payload: Payload, end_stream: int) -> None:
        """See `CallPart`."""
        self._taker.resume_request(payload, end_stream)

    def request_trailers(self, block: bytes) -> None:
        """See `CallPart`."""
        self._taker.request_trailers(block)


class RecordedResponse(ResponseSink):
    """Notes the response of an attempt, which goes to the client."""

    __slots__ = ("_recording", "_sink")

    def __init__(self, recording: Recording, sink: ResponseSink) -> None:
        """
        Args:
            recording: notes it.
            sink: of the response, which may change it before.
        """
        recording.begin_response()
        self._recording = recording
        self._sink = sink

    def shown(self, attempt: GrpcAttempt, payload: Payload, end_stream: int) -> Payload | None:
        """See `ResponseSink`."""
        attempt.sink = self._sink
        shown = self._sink.shown(attempt, payload, end_stream)
        self._sink, attempt.sink = attempt.sink, self
        if shown is not None:
            self._recording.add_response(shown)
        return shown


class RecordedAnswers(StreamMask):
    """Masks the answers of a stream, and notes them as the client gets them."""

    __slots__ = ("_recording",)

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def feed(self, payload: bytes | memoryview) -> bytes | memoryview:
        """See `StreamMask`."""
        masked = super().feed(payload)
        self._recording.add_response(masked)
        # Another object, so that no answer takes a way on which nobody looks at it.
        return memoryview(masked)


def may_be_recorded(head: RequestHead) -> bool:
    """Whether the payload log wants calls with such a head."""
    facts = head.facts
    route = facts.route
    if route is MODEL_STREAM_INFER:
        return True
    return (
        facts.handler is None
        and isinstance(route, Operation)
        and route.kind is OperationKind.INFERENCE
    )


def recorded_call(
    relay: Http2Shared, server: Http2Connection, stream_id: int, head: RequestHead
) -> Call:
    """Make a call that the payload log may want, which takes no short way."""
    if head.facts.handler is not None:
        return _recorded_stream(relay, head.facts.handler(relay, server, stream_id, head))
    facts = HeadFacts(head.facts)
    facts.is_plain = False
    head = RequestHead(facts, head.block, head.noted, head.context)
    call = Call(relay, server, stream_id, head)
    recording = relay.parts.payloads.sample(call)
    if recording is not None:
        RecordedRequest(call, recording)
    return call


def _recorded_stream(relay: Http2Shared, call: Call) -> Call:
    session = call.part
    if isinstance(session, StreamSession) and call.request.owner is session:
        recording = relay.parts.payloads.sample_stream(call)
        if recording is not None:
            RecordedRequest(call, recording)
            session.single.mask = RecordedAnswers(recording)
            session.single.looks_at_all = True  # none goes on past who notes it
    return call


def recorded_attempt(call: Call, backend: Backend, port: Port, began_at: float) -> GrpcAttempt:
    """Make an attempt at a call that the payload log may want."""
    attempt = GrpcAttempt(call, backend, port, began_at)
    attempt.sink = call.relay.sink_of(call)
    return attempt
