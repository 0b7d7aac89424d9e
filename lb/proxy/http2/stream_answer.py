"""The answers of a stream of inferences that one backend serves.

An answer nearly always goes on as it came. The first one is looked at: an error that says that
another backend may do better sends the whole stream there, since at most a head has gone to the
client. Errors are told to whoever judges backends.
"""

from __future__ import annotations

from typing import Final

from lb.domain.outcome import Outcome
from lb.kserve.errors import meaning
from lb.kserve.gate import ERROR_TAG
from lb.kserve.pending_responses import PendingResponses
from lb.kserve.stream_answers import ANSWER_HEAD_BYTES, FINAL, error_text, whole_error
from lb.proxy.http2.attempt import GrpcAttempt, ResponseSink
from lb.proxy.http2.call import Call
from lb.proxy.http2.stream_router import StreamRouter
from lb.proxy.http2.stream_single import SingleBackend
from lb.telemetry.meter import AnswerTimes
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.grpc.status import GrpcStatus
from lb.wire.http2.flow import Payload
from lb.wire.http2.frames import ErrorCode, pack_header
from lb.wire.http2.heads import ResponseHead

_ANSWER_START: Final = PREFIX_SIZE + 1
_OK: Final = 200
_EMPTY: Final = bytes(PREFIX_SIZE)
"""A message without content."""
_UNKNOWN: Final = -1
"""In place of a size."""


class StreamAnswers(ResponseSink):
    """The response of the one attempt of a stream: it goes to the client, errors are masked, and
    answers are counted."""

    __slots__ = (
        "_answer", "_answer_header", "_answer_size", "_before", "_call", "_final_mark",
        "_is_let_go", "_router", "_single", "_times", "_told",
    )  # fmt: skip

    def __init__(
        self, call: Call, single: SingleBackend, router: StreamRouter, times: AnswerTimes
    ) -> None:
        self._call = call
        self._single = single
        self._router = router
        self._times = times
        self._is_let_go = False
        """Nothing is held any more."""
        self._before = single.mask.completed
        """Answers of the stream that came before this attempt."""
        self._told = 0
        """How many answers had come of it when those who judge backends were told of one."""
        self._answer = b""
        """How the last answer began, if it came whole and was no error: its length prefix, and the
        tag of its first field."""
        self._answer_size = _UNKNOWN
        """How long it was; `_UNKNOWN` where the next one must be looked at."""
        self._final_mark = b""
        """What an answer has in it that completes a request, as far as that can be seen: it was not
        compressed."""
        self._answer_header = b""
        """The header of the frame in which it went out."""

    # The beginning of a response

    def take_head(self, attempt: GrpcAttempt, head: ResponseHead, end_stream: bool) -> bool:
        """See `ResponseSink`. A head waits for the first answer, if that comes along. The response
        begins with that answer: until then another backend may take the stream."""
        if attempt.held_head is not None:
            self.let_go(attempt)
        elif (
            not (self._is_let_go or attempt.begun or end_stream)
            and head.status == _OK
            and head.is_answer
            and attempt.request.retained is not None
            and self._router.may_move
        ):
            attempt.held_head = head
            attempt.held_text = b""
            self._call.relay.loop.call_soon(self._wait_no_more, attempt)
            return True
        elif attempt.begun and end_stream:
            return attempt.try_outlive_exit(head.grpc_status)
        return False

    @property
    def fails_over(self) -> bool:
        """See `ResponseSink`."""
        return self._router.may_move

    def _wait_no_more(self, attempt: GrpcAttempt) -> None:
        """What came along with a head has come; a client may wait for the head alone."""
        head = attempt.held_head
        is_over = attempt.outcome is not None or self._call.finished
        if not (head is None or attempt.held_text or is_over):
            attempt.pass_head(head)

    def let_go(self, attempt: GrpcAttempt) -> None:
        """Pass on what is held."""
        head, attempt.held_head = attempt.held_head, None
        if head is None:
            return
        self._is_let_go = True
        attempt.response_head(head, end_stream=False)
        if attempt.held_text and not self._call.finished:
            attempt.response_data(attempt.held_text, 0)

    def _decide(self, attempt: GrpcAttempt) -> bool:
        """Whether what is held goes on: not when more of an error is to come, nor when the stream
        failed over because of it."""
        text = attempt.held_text
        if len(text) < _ANSWER_START:
            return False
        size = int.from_bytes(text[1:PREFIX_SIZE], "big") + PREFIX_SIZE
        if text[PREFIX_SIZE] != ERROR_TAG or size > ANSWER_HEAD_BYTES:
            return True
        return len(text) >= size and not self._try_failover(attempt, error_text(text[:size]))

    def _try_failover(self, attempt: GrpcAttempt, text: str) -> bool:
        """Have the stream fail over because of the error that came first. False: it stays."""
        call = self._call
        relay = call.relay
        is_broken = relay.dispatcher.blame.answered_with_error(attempt, GrpcStatus.UNKNOWN, text)
        self._told = 1
        known = meaning(text)
        if known is not None:
            is_kept = attempt.request.retained is not None and self._router.may_move
            if not relay.retry.take_failover(call, known, body_retained=is_kept):
                return False
            attempt.detach(ErrorCode.CANCEL)
            attempt.failed(Outcome.NOT_HERE)
            return True
        return is_broken and attempt.try_replace(Outcome.BROKEN)

    # Answers

    def take_answer(self, payload: bytes, size: int) -> bool:
        """A small frame of the answers came. False when it is not a whole result, as the last one
        was, and `shown` is to look at it."""
        # HOT PATH (benchmarks/bench_stream_relay.py). A result is masked as the last one was,
        # which is not at all; the reference is `StreamMask.feed`.
        if size != self._answer_size or not payload.startswith(self._answer):
            if (
                self._answer_size == _UNKNOWN
                or size <= PREFIX_SIZE
                or payload[PREFIX_SIZE] == ERROR_TAG
                or int.from_bytes(payload[1:PREFIX_SIZE], "big") + PREFIX_SIZE != size
            ):
                return False
            self._note_answer(payload, size)
        call = self._call
        if not call.server.send_small(call.response, payload, self._answer_header, size):
            return False
        single = self._single
        single.mask.completed += 1
        pending_responses = single.pending_responses
        kept = pending_responses.kept
        if kept:
            if pending_responses.drops_slowly:
                single.drop_answered()
            else:
                pending_responses.kept_size -= len(kept.popleft())
        elif pending_responses.unfinished and self._final_mark in payload:
            pending_responses.arrived_whole(payload)
        call.bytes_out += size
        times = self._times
        now = call.relay.now
        if now != times.last_at:
            times.on_answer(now)
        return True

    def take_timed(self, payload: bytes, size: int) -> bool:
        """As `take_answer`, where somebody wants to know."""
        # HOT PATH (benchmarks/bench_stream_relay.py). The reference is
        # `SingleBackend.answers_came`.
        if not self.take_answer(payload, size):
            return False
        in_flight = self._single.in_flight
        if in_flight is not None:
            in_flight.answered_well(self._call.relay.now)
        return True

    def _note_answer(self, payload: bytes, size: int) -> None:
        """Note how a result began that came whole."""
        self._answer = payload[:_ANSWER_START]
        self._answer_size = size
        self._final_mark = b"" if payload[0] else FINAL
        self._answer_header = pack_header(size << 8, 0, self._call.client_id)

    def shown(self, attempt: GrpcAttempt, payload: Payload, end_stream: int) -> Payload | None:
        """See `ResponseSink`."""
        if attempt.held_head is not None:
            if not end_stream and (attempt.held_text or _may_be_error(payload)):
                attempt.held_text += bytes(payload)
                if self._decide(attempt):
                    self.let_go(attempt)
                return None
            self.let_go(attempt)
            if self._call.finished:
                return None
        single = self._single
        mask = single.mask
        was_between = mask.is_between
        if was_between and (error := whole_error(payload)) and attempt.try_leave_for(error):
            return None
        completed = mask.completed
        masked = mask.feed(payload)
        single.pending_responses.arrived(payload)
        if single.is_timed or mask.completed != completed:
            is_whole = was_between and mask.is_between and len(payload) >= _ANSWER_START
            is_error = payload[PREFIX_SIZE] == ERROR_TAG if is_whole else mask.is_error
            if single.is_timed:
                single.answers_came(is_good=not is_error)
            if mask.completed != completed and not is_error:
                self._times.on_answer(self._call.relay.now)
        self._answer_size = _UNKNOWN
        size = len(payload)
        if (
            was_between
            and mask.is_between
            and size >= _ANSWER_START
            and int.from_bytes(payload[1:PREFIX_SIZE], "big") + PREFIX_SIZE == size
        ):
            if payload[PREFIX_SIZE] == ERROR_TAG:
                self._tell_of_error(attempt, payload)
            elif masked is payload and isinstance(payload, bytes) and attempt.begun:
                self._note_answer(payload, size)
                attempt.response.taker = self.take_timed if single.is_timed else self.take_answer
        if mask.completed != completed:
            single.drop_answered()
        if not self._told and mask.completed > self._before:
            self._told = 1
            self._call.relay.dispatcher.blame.answered_first(attempt)
        return masked

    def _tell_of_error(self, attempt: GrpcAttempt, payload: Payload) -> None:
        """An answer is an error."""
        before, self._told = self._told, self._single.mask.completed - self._before
        relay = self._call.relay
        blame = relay.dispatcher.blame
        if self._told - before > 1:
            blame.answered_first(attempt)  # others were good meanwhile
        text = "" if payload[0] else error_text(bytes(payload))
        relay.retry.note_error(attempt.backend, text)
        if payload[0] or self._told == before:
            return
        # Later in a stream only what is certain counts: of good answers nobody is told.
        code = GrpcStatus.UNAVAILABLE if before else GrpcStatus.UNKNOWN
        blame.answered_with_error(attempt, code, text)

    def owed(self) -> PendingResponses | None:
        """See `ResponseSink`."""
        single = self._single
        if single.is_uncounted:
            return None
        single.take_off_answered()
        return single.pending_responses

    def has_asked(self, model: bytes) -> bool:
        """See `ResponseSink`."""
        return self._router.has_asked(model)

    # How it ends without an answer

    def take_resumption(self, attempt: GrpcAttempt, outcome: Outcome) -> bool | None:
        """See `ResponseSink`."""
        part = self._call.part
        return None if part is None else part.take_resumption(attempt.begun, outcome)

    def resume(self, attempt: GrpcAttempt, outcome: Outcome) -> None:
        """See `ResponseSink`."""
        if self._call.part is not None:
            self._call.part.resume(outcome)

    def cut_off(self, attempt: GrpcAttempt, code: int) -> None:
        """See `ResponseSink`: so ends the client's stream, unless its requests go again."""
        self.will_fail(attempt, Outcome.RESET)
        if not attempt.end_and_resume(Outcome.RESET):
            super().cut_off(attempt, code)

    def will_fail(self, attempt: GrpcAttempt, outcome: Outcome) -> None:
        """See `ResponseSink`."""
        self._single.take_off_answered()
        self._router.forget_starts(self._single.pending_responses, attempt.backend, outcome)


def _may_be_error(payload: Payload) -> bool:
    """Whether a stream of answers may begin with an error, by its first bytes."""
    if len(payload) < _ANSWER_START:
        return bytes(payload) != _EMPTY
    return not payload[0] and payload[PREFIX_SIZE] == ERROR_TAG
