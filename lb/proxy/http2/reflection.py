"""gRPC server reflection: a stream of questions about our services, which we answer ourselves."""

from __future__ import annotations

from typing import Any, Final

from lb.domain.outcome import Reason
from lb.kserve import reflection
from lb.proxy.http2.call import Call, CallPart
from lb.proxy.http2.replies import ANSWER_HEAD, UNPARSABLE, status_trailers
from lb.wire.grpc.message import PREFIX_SIZE, frame_message
from lb.wire.grpc.status import GrpcStatus
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.protobuf import ProtobufError

_QUESTION_BYTES: Final = 4096
"""Bytes of a question at most: it holds one name."""
_MOST_QUESTIONS: Final = 1000
"""Questions of one stream at most: a client asks once for each file and service."""
_HELD_BYTES: Final = 64 * 1024
"""Bytes of answers that wait for the client: while there are more, no question is answered."""


class _Answers(Pipe[Any]):
    """The answers. Once enough of them have gone out, the next question is answered."""

    __slots__ = ()

    def __init__(self, call: Call) -> None:
        # A window size of 0 has the link ask `went_out` after every write.
        super().__init__(call, call.relay.memory_budget, 0, 0)
        plain = call.response
        self.sink, self.sink_id, self.credit = plain.sink, plain.sink_id, plain.credit
        self.opposite = plain.opposite
        call.response = self.opposite.opposite = self

    def went_out(self, size: int) -> int:
        """See `Pipe`. Nobody sends what we make ourselves, so there is nothing to credit."""
        self.owed = 0
        if self.owner is not None and self.held < _HELD_BYTES:
            self.owner.part.answers_read()
        return 0


class ReflectionSession(CallPart):
    """One stream of questions.

    An answer is hundreds of times as long as its question. So questions wait in the pipe of the
    request, and are not credited, while the client does not read.
    """

    __slots__ = ("_asked", "_is_behind", "_text")

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        call.part = self
        _Answers(call)
        self._text = b""
        """The beginning of the next question."""
        self._asked = 0
        self._is_behind = False
        """Whether questions may wait for answers to go out."""

    def begin(self, end_stream: bool) -> None:
        """See `CallPart`."""
        self.call.request.drop_retained()
        if end_stream:
            self._end()

    def request_data(self, payload: Payload, end_stream: int) -> None:
        """See `CallPart`."""
        call = self.call
        request = call.request
        if call.finished or call.response.ended:
            call.drop_upload(len(payload))
            return
        call.bytes_in += len(payload)
        request.ended = bool(end_stream)
        if request.push(payload):
            self._take_questions()

    def request_trailers(self, block: bytes) -> None:
        """See `CallPart`."""
        self.call.request.ended = True
        self._take_questions()

    def answers_read(self) -> None:
        """Go on in the next iteration of the event loop: the link is still about to send
        answers."""
        if self._is_behind:
            self._is_behind = False
            self.call.relay.loop.call_soon(self._take_questions)

    def _take_questions(self) -> None:
        call = self.call
        request, response = call.request, call.response
        while not call.finished and not response.ended:
            if response.held >= _HELD_BYTES:
                self._is_behind = True
                return
            if self._take_question():
                continue
            if request.queue:
                payload = request.pull(_QUESTION_BYTES)
                call.drop_upload(len(payload))
                self._text += payload
            else:
                if request.ended:
                    self._end()
                return

    def _take_question(self) -> bool:
        """Answer the next question. False where there is none that is complete."""
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
        return True

    def _answer(self, question: bytes) -> None:
        call = self.call
        self._asked += 1
        if self._asked > _MOST_QUESTIONS:
            call.request.clear()
            self._close(GrpcStatus.RESOURCE_EXHAUSTED, "too many questions on one stream")
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
        self._close(GrpcStatus.OK)

    def _close(self, status: GrpcStatus, detail: str = "") -> None:
        """End the stream after the answers that still wait."""
        call = self.call
        call.grpc_status = status
        response = call.response
        response.ended = True
        response.trailers = status_trailers(status, detail) + call.facts()
        call.server.end_stream(response)
