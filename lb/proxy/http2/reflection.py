"""gRPC server reflection: a stream of questions about our services, which we answer ourselves."""

from __future__ import annotations

from typing import Final

from lb.domain.outcome import Reason
from lb.kserve import reflection
from lb.proxy.http2.asked import UNPARSABLE
from lb.proxy.http2.call import Call, CallPart
from lb.proxy.http2.replies import ANSWER_HEAD, status_trailers
from lb.wire.grpc.message import PREFIX_SIZE, frame_message
from lb.wire.grpc.status import GrpcStatus
from lb.wire.http2.flow import Payload
from lb.wire.protobuf import ProtobufError

_QUESTION_BYTES: Final = 4096
"""Bytes of a question at most: it holds one name."""
_MOST_QUESTIONS: Final = 1000
"""Questions of one stream at most: a client asks once for each file and service."""
_HELD_BYTES: Final = 1024 * 1024
"""Bytes of answers that may wait for a client that does not read them."""


class ReflectionSession(CallPart):
    """One stream of questions."""

    __slots__ = ("_asked", "_text")

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        call.part = self
        self._text = b""
        """What has come of the next question."""
        self._asked = 0

    def begin(self, end_stream: bool) -> None:
        """See `CallPart`."""
        self.call.request.drop_retained()
        if end_stream:
            self._end()

    def request_data(self, payload: Payload, end_stream: int) -> None:
        """See `CallPart`."""
        call = self.call
        call.bytes_in += len(payload)
        call.drop_upload(len(payload))
        if call.finished or call.request.ended:
            return
        self._text += payload
        while self._take_question():
            pass
        if end_stream and not call.finished:
            self._end()

    def _take_question(self) -> bool:
        """Answer the next question. False where there is none that is complete, or the call is
        over."""
        text = self._text
        if len(text) < PREFIX_SIZE:
            return False
        call = self.call
        stop = int.from_bytes(text[1:PREFIX_SIZE], "big") + PREFIX_SIZE
        if stop > _QUESTION_BYTES:
            call.fail(Reason.BODY_TOO_LARGE, "the message is too large for this call")
        elif text[0]:
            call.fail(
                Reason.BAD_REQUEST,
                "compressed questions are not supported",
                status=GrpcStatus.UNIMPLEMENTED,
            )
        elif len(text) < stop:
            return False
        else:
            self._text = text[stop:]
            self._answer(text[PREFIX_SIZE:stop])
        return not call.finished

    def request_trailers(self, block: bytes) -> None:
        """See `CallPart`."""
        if not self.call.finished:
            self._end()

    def _answer(self, question: bytes) -> None:
        call = self.call
        self._asked += 1
        if self._asked > _MOST_QUESTIONS:
            call.fail(Reason.FLOOD, "too many questions on one stream")
            return
        if call.response.held > _HELD_BYTES:
            call.fail(Reason.CLIENT_STALLED, "the client does not read the answers")
            return
        try:
            message = frame_message(reflection.answer(question))
        except ProtobufError:
            call.fail(Reason.BAD_REQUEST, UNPARSABLE)
            return
        self._begin()
        call.bytes_out += len(message)
        call.server.send_data(call.response, message)

    def _begin(self) -> None:
        call = self.call
        if not call.begun:
            call.begun = True
            call.status = 200
            call.server.send_head(call.client_id, ANSWER_HEAD, end_stream=False)

    def _end(self) -> None:
        """The client has asked all."""
        call = self.call
        call.request.ended = True
        if self._text:
            call.fail(Reason.BAD_REQUEST, "the stream ends within a message")
            return
        self._begin()
        call.grpc_status = GrpcStatus.OK
        response = call.response
        response.ended = True
        response.trailers = status_trailers(GrpcStatus.OK) + call.facts()
        if not response.queue:
            call.server.end_stream(response)
