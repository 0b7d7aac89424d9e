"""The answers of a stream of inferences that one backend serves.

An answer nearly always goes on as it came. The first one is looked at: an error that says that
another backend may do better sends the whole stream there, since nothing has gone to the client.
Errors are told to whoever judges backends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lb.domain.backend import Backend, Port
from lb.domain.outcome import Outcome
from lb.kserve.errors import meaning
from lb.kserve.gate import ERROR_TAG
from lb.kserve.stream_answers import ANSWER_HEAD_BYTES, error_text
from lb.proxy.http2.attempt import GrpcAttempt
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.grpc.status import GrpcStatus
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import ErrorCode, pack_header
from lb.wire.http2.heads import ResponseHead

if TYPE_CHECKING:
    from lb.proxy.http2.stream_branch import Branch
    from lb.proxy.http2.stream_call import StreamCall

_ANSWER_START: Final = PREFIX_SIZE + 1
_OK: Final = 200
_EMPTY: Final = bytes(PREFIX_SIZE)
"""A message without content."""


class HeldAnswer:
    """The beginning of a response, of which nothing has gone to the client."""

    __slots__ = ("head", "text")

    def __init__(self, head: ResponseHead) -> None:
        self.head = head
        self.text = b""
        """What has come of an error."""


class StreamAttempt(GrpcAttempt):
    """One stream of inferences at one backend.

    Its answers go to the client, as long as it is the only one of its call; with several of them
    they go to its branch, whose answers are merged with those of others.
    """

    __slots__ = ("_answer", "_answer_header", "_answer_size", "_held", "_told", "branch", "stream")

    def __init__(self, call: StreamCall, backend: Backend, port: Port, began_at: float) -> None:
        super().__init__(call, backend, port, began_at)
        self.stream = call
        """As `call`."""
        self.branch: Branch | None = None
        """Where its answers go, if they are merged."""
        self._held: HeldAnswer | None = None
        self._told = 0
        """How many answers had come when those who judge backends were told of one."""
        self._answer = b""
        """How the last answer began, if it came whole and was no error: its length prefix, and the
        tag of its first field."""
        self._answer_size = 0
        """How long it was; 0 where the next one must be looked at."""
        self._answer_header = b""
        """Of the frame in which it went out."""

    @property
    def is_second(self) -> bool:
        """Streams are not sent twice."""
        return False

    def passes(self, _pipe: Pipe[Any]) -> bool:
        """All of it is looked at."""
        return False

    # The beginning of a response

    def response_head(self, head: ResponseHead, end_stream: bool) -> None:
        """See `GrpcAttempt`. A head waits for the first answer, if that comes along."""
        if self.branch is not None:
            self.branch.response_head(head, end_stream)
            return
        call = self.stream
        if self._held is not None:
            self.let_go()
        elif (
            not (self.begun or end_stream)
            and head.status == _OK
            and head.is_answer
            and self.request.retained is not None
            and call.may_move
        ):
            self._held = HeldAnswer(head)
            call.relay.loop.call_soon(self._wait_no_more, self._held)
            return
        super().response_head(head, end_stream)

    def _is_served_elsewhere(self, head: ResponseHead) -> bool:
        """See `GrpcAttempt`."""
        return self.stream.may_move and super()._is_served_elsewhere(head)

    def _wait_no_more(self, held: HeldAnswer) -> None:
        """What came along with a head has come; a client may wait for the head alone."""
        call = self.stream
        if self._held is held and not held.text and self.outcome is None and not call.finished:
            call.relay.now = call.relay.clock()
            self.let_go()

    def let_go(self) -> None:
        """Pass on what is held."""
        held, self._held = self._held, None
        if held is None:
            return
        super().response_head(held.head, end_stream=False)
        if held.text and not self.stream.finished:
            self._pass_on(held.text, 0)

    def _decide(self, held: HeldAnswer) -> bool:
        """Whether what is held goes on: not when more of an error is to come, nor when the stream
        went elsewhere because of it."""
        text = held.text
        if len(text) < _ANSWER_START:
            return False
        size = int.from_bytes(text[1:PREFIX_SIZE], "big") + PREFIX_SIZE
        if text[PREFIX_SIZE] != ERROR_TAG or size > ANSWER_HEAD_BYTES:
            return True
        return len(text) >= size and not self._is_mended_by(error_text(text[:size]))

    def _is_mended_by(self, text: str) -> bool:
        """Whether the stream goes to another backend, because of the error that came first."""
        call = self.stream
        dispatcher = call.relay.dispatcher
        is_broken = dispatcher.answered_with_error(self, GrpcStatus.UNKNOWN, text)
        self._told = 1
        known = meaning(text)
        if known is not None:
            is_kept = self.request.retained is not None
            if not dispatcher.goes_elsewhere(call, known, body_retained=is_kept):
                return False
            self.detach(ErrorCode.CANCEL)
            self.failed(Outcome.NOT_HERE)
            return True
        if not is_broken or not self._may_retry(Outcome.BROKEN, is_unsent=False):
            return False
        self.detach(ErrorCode.CANCEL)
        self.leave(Outcome.BROKEN)
        call.go_again(Outcome.BROKEN, is_unsent=False)
        return True

    # Answers

    def end_whole(
        self, head: ResponseHead, payload: bytes, size: int, trailers: ResponseHead
    ) -> bool:
        """See `GrpcAttempt`: there is more to do than a write."""
        return False

    def take_answer(self, payload: bytes, size: int) -> bool:
        """A small frame of the answers came. False when it is not a whole result, as the last one
        was, and `response_data` is to take it."""
        # HOT PATH (benchmarks/bench_stream_relay.py). A result is masked as the last one was,
        # which is not at all; the reference is `StreamMask.feed`.
        if not self._answer_size:
            return False
        if size != self._answer_size or not payload.startswith(self._answer):
            if (
                size <= PREFIX_SIZE
                or payload[PREFIX_SIZE] == ERROR_TAG
                or int.from_bytes(payload[1:PREFIX_SIZE], "big") + PREFIX_SIZE != size
            ):
                return False
            self._note_answer(payload, size)
        call = self.stream
        if not call.server.send_small(self.response, payload, self._answer_header, size):
            return False
        call.mask.completed += 1
        call.bytes_out += size
        return True

    def take_timed(self, payload: bytes, size: int) -> bool:
        """As `take_answer`, where somebody wants to know."""
        if not self.take_answer(payload, size):
            return False
        self.stream.answers_came(is_good=True)
        return True

    def _note_answer(self, payload: bytes, size: int) -> None:
        """Note how a result began that came whole."""
        self._answer = payload[:_ANSWER_START]
        self._answer_size = size
        self._answer_header = pack_header(size << 8, 0, self.stream.client_id)

    def response_data(self, payload: Payload, end_stream: int) -> None:
        """See `GrpcAttempt`."""
        if self.branch is not None:
            self.branch.response_data(payload, end_stream)
            return
        held = self._held
        if held is not None:
            if not end_stream and (held.text or _may_be_error(payload)):
                held.text += bytes(payload)
                if self._decide(held):
                    self.let_go()
                return
            self.let_go()
            if self.stream.finished:
                return
        self._pass_on(payload, end_stream)

    def _pass_on(self, payload: Payload, end_stream: int) -> None:
        call = self.stream
        mask = call.mask
        was_between = mask.is_between
        masked = mask.feed(payload)
        if call.is_timed:
            is_whole = was_between and mask.is_between and len(payload) >= _ANSWER_START
            is_error = payload[PREFIX_SIZE] == ERROR_TAG if is_whole else mask.is_error
            call.answers_came(is_good=not is_error)
        self._answer_size = 0
        size = len(payload)
        if (
            was_between
            and mask.is_between
            and size >= _ANSWER_START
            and int.from_bytes(payload[1:PREFIX_SIZE], "big") + PREFIX_SIZE == size
        ):
            if payload[PREFIX_SIZE] == ERROR_TAG:
                self._tell_of_stream_error(payload)
            elif masked is payload and isinstance(payload, bytes) and self.begun:
                self._note_answer(payload, size)
                self.response.taker = self.take_timed if call.is_timed else self.take_answer
        if not self._told and mask.completed:
            self._told = 1
            call.relay.dispatcher.answered_first(self)
        super().response_data(masked, end_stream)

    def _tell_of_stream_error(self, payload: Payload) -> None:
        """An answer is an error."""
        before, self._told = self._told, self.stream.mask.completed
        dispatcher = self.stream.relay.dispatcher
        if self._told - before > 1:
            dispatcher.answered_first(self)  # others were good meanwhile
        if payload[0] or self._told == before:
            return
        # Later in a stream only what is certain counts: of good answers nobody is told.
        code = GrpcStatus.UNAVAILABLE if before else GrpcStatus.UNKNOWN
        dispatcher.answered_with_error(self, code, error_text(bytes(payload)))

    # How it ends without an answer

    def failed(self, outcome: Outcome, detail: str = "", status: GrpcStatus | None = None) -> None:
        """See `GrpcAttempt`."""
        if self.branch is not None:
            self.branch.attempt_failed(outcome, detail)
            return
        self.stream.forget_starts(self.stream.debts, self.backend, outcome)
        super().failed(outcome, detail, status)

    def upstream_reset(self, code: int) -> None:
        """See `GrpcAttempt`."""
        if self.branch is not None:
            self.branch.upstream_reset(code)
        else:
            super().upstream_reset(code)

    def backend_hung(self) -> None:
        """See `GrpcAttempt`."""
        if self.branch is not None:
            self.branch.backend_hung()
        else:
            super().backend_hung()

    def leave_parting(self) -> None:
        """See `GrpcAttempt`."""
        self.stream.leave_parting()


def _may_be_error(payload: Payload) -> bool:
    """Whether a stream of answers may begin with an error, by its first bytes."""
    if len(payload) < _ANSWER_START:
        return bytes(payload) != _EMPTY
    return not payload[0] and payload[PREFIX_SIZE] == ERROR_TAG
