"""The answers of a stream of inferences that one backend serves.

An answer nearly always goes on as it came. The first one is looked at: an error that says that
another backend may do better sends the whole stream there, since nothing has gone to the client.
Errors are told to whoever judges backends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lb.domain.outcome import Outcome
from lb.kserve.errors import meaning
from lb.kserve.gate import ERROR_TAG
from lb.kserve.stream_answers import ANSWER_HEAD_BYTES, error_text
from lb.proxy.http2.stream_way import RoutedStream
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.grpc.status import GrpcStatus
from lb.wire.http2.flow import Payload
from lb.wire.http2.frames import ErrorCode, pack_header
from lb.wire.http2.heads import RequestHead, ResponseHead

if TYPE_CHECKING:
    from lb.proxy.http2.relay import Http2Relay
    from lb.proxy.http2.server import ServerLink

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


class AnsweredStream(RoutedStream):
    """A stream, and what its one backend answers."""

    __slots__ = (
        "_answer", "_answer_header", "_answer_size", "_held", "_told", "is_timed",
    )  # fmt: skip

    def __init__(
        self, relay: Http2Relay, server: ServerLink, stream_id: int, head: RequestHead
    ) -> None:
        super().__init__(relay, server, stream_id, head)
        self._held: HeldAnswer | None = None
        self.is_timed = False
        """Somebody wants to know when answers come."""
        self._told = 0
        """How many answers had come when those who judge backends were told of one."""
        self._answer = b""
        """How the last answer began, if it came whole and was no error: its length prefix, and the
        tag of its first field."""
        self._answer_size = 0
        """How long it was; 0 where the next one must be looked at."""
        self._answer_header = b""
        """Of the frame in which it went out."""

    def forget_first(self) -> None:
        """See `RoutedStream`."""
        super().forget_first()
        self._held = None
        self._told = 0

    # The beginning of a response

    def response_head(self, head: ResponseHead, end_stream: bool) -> None:
        """See `Call`. A head waits for the first answer, if that comes along."""
        if self._held is not None:
            self.let_go()
        elif (
            not (self.begun or end_stream)
            and head.status == _OK
            and head.is_answer
            and self.request.retained is not None
            and self.may_move
        ):
            self._held = HeldAnswer(head)
            self.relay.loop.call_soon(self._wait_no_more, self._held)
            return
        super().response_head(head, end_stream)

    def _is_served_elsewhere(self, head: ResponseHead) -> bool:
        """See `AttemptedCall`."""
        return self.may_move and super()._is_served_elsewhere(head)

    def _wait_no_more(self, held: HeldAnswer) -> None:
        """What came along with a head has come; a client may wait for the head alone."""
        if self._held is held and not held.text and not self.finished:
            self.relay.now = self.relay.clock()
            self.let_go()

    def let_go(self) -> None:
        """Pass on what is held."""
        held, self._held = self._held, None
        if held is None:
            return
        super().response_head(held.head, end_stream=False)
        if held.text and not self.finished:
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
        dispatcher = self.relay.dispatcher
        is_broken = dispatcher.answered_with_error(self, GrpcStatus.UNKNOWN, text)
        self._told = 1
        known = meaning(text)
        if known is not None:
            is_kept = self.request.retained is not None
            if not dispatcher.goes_elsewhere(self, known, body_retained=is_kept):
                return False
            self._detach(ErrorCode.CANCEL)
            self.attempt_failed(Outcome.NOT_HERE)
            return True
        if not is_broken or not self._may_retry(Outcome.BROKEN, is_unsent=False):
            return False
        self._detach(ErrorCode.CANCEL)
        self._leave_attempt(Outcome.BROKEN)
        self._go_again(Outcome.BROKEN, is_unsent=False)
        return True

    # Answers

    def end_whole(
        self, head: ResponseHead, payload: bytes, size: int, trailers: ResponseHead
    ) -> bool:
        """See `Call`: there is more to do than a write."""
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
        if not self.server.send_small(self.response, payload, self._answer_header, size):
            return False
        self.mask.completed += 1
        self.bytes_out += size
        return True

    def take_timed(self, payload: bytes, size: int) -> bool:
        """As `take_answer`, where somebody wants to know."""
        if not self.take_answer(payload, size):
            return False
        self.answers_came(is_good=True)
        return True

    def answers_came(self, *, is_good: bool) -> None:
        """Some bytes of answers came, and perhaps the end of one. The last one may be an error."""

    def _note_answer(self, payload: bytes, size: int) -> None:
        """Note how a result began that came whole."""
        self._answer = payload[:_ANSWER_START]
        self._answer_size = size
        self._answer_header = pack_header(size << 8, 0, self.client_id)

    def response_data(self, payload: Payload, end_stream: int) -> None:
        """See `Call`."""
        held = self._held
        if held is not None:
            if not end_stream and (held.text or _may_be_error(payload)):
                held.text += bytes(payload)
                if self._decide(held):
                    self.let_go()
                return
            self.let_go()
            if self.finished:
                return
        self._pass_on(payload, end_stream)

    def _pass_on(self, payload: Payload, end_stream: int) -> None:
        mask = self.mask
        was_between = mask.is_between
        masked = mask.feed(payload)
        if self.is_timed:
            is_whole = was_between and mask.is_between and len(payload) >= _ANSWER_START
            is_error = payload[PREFIX_SIZE] == ERROR_TAG if is_whole else mask.is_error
            self.answers_came(is_good=not is_error)
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
                self.response.taker = self.take_timed if self.is_timed else self.take_answer
        if not self._told and mask.completed:
            self._told = 1
            self.relay.dispatcher.answered_first(self)
        super().response_data(masked, end_stream)

    def _tell_of_stream_error(self, payload: Payload) -> None:
        """An answer is an error."""
        before, self._told = self._told, self.mask.completed
        dispatcher = self.relay.dispatcher
        if self._told - before > 1:
            dispatcher.answered_first(self)  # others were good meanwhile
        if payload[0] or self._told == before:
            return
        # Later in a stream only what is certain counts: of good answers nobody is told.
        code = GrpcStatus.UNAVAILABLE if before else GrpcStatus.UNKNOWN
        dispatcher.answered_with_error(self, code, error_text(bytes(payload)))


def _may_be_error(payload: Payload) -> bool:
    """Whether a stream of answers may begin with an error, by its first bytes."""
    if len(payload) < _ANSWER_START:
        return bytes(payload) != _EMPTY
    return not payload[0] and payload[PREFIX_SIZE] == ERROR_TAG
