"""A gRPC batch that runs as several: its call, the parts, and their answers.

The call has no attempt of its own. Each part has some rows, and is placed, retried and hedged as a
request is: an attempt at a part has pipes of its own, and its response is held whole
(`PartAnswer`) until those of all parts have come.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from lb.domain.backend import AppProtocol, Backend, Port
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Outcome, Reason
from lb.kserve.inflation import inflated_in_steps
from lb.kserve.inspect import inspect_quickly
from lb.kserve.merge.steps import Steps
from lb.kserve.split.messages import MessageCut, cut_message, first_rows, join_messages
from lb.kserve.split.tensors import NotMerged, NotSplit
from lb.proxy.exchange import Exchange
from lb.proxy.http2.attempt import GrpcAttempt, ResponseSink, credit_backend, status_in
from lb.proxy.http2.call import Call, CallPart
from lb.proxy.http2.inspection import INSPECTED_BYTES, NAME_AT
from lb.proxy.http2.replies import trailers_only
from lb.proxy.split import (
    TOO_LARGE,
    HeldBytes,
    Part,
    SplitPlan,
    part_hints,
    take_over_marks,
)
from lb.proxy.split_batch import SplitBatch
from lb.wire.grpc.compression import inflated_start
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.grpc.status import GrpcStatus, decode_message
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import ErrorCode, StreamError
from lb.wire.http2.heads import ResponseHead
from lb.wire.rope import Held, Rope

ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)

_LEAST_STORED: Final = 64 * 1024
"""Bytes in a frame from which on stored payload goes to the socket without a copy. Below, the
system calls cost more than the copy."""
_READ_BYTES: Final = 256 * 1024
"""Bytes of stored payload that are read into memory at once, to be sent in shorter frames."""
_INFLATED_ANSWER: Final = 64 * 2**20
"""Bytes that a compressed answer to a part may inflate to."""
_STATUSES: Final = frozenset(GrpcStatus)


class _PartRequest(Pipe[Any]):
    """The request of an attempt at a part: views of the batch, which is in the memory budget
    already."""

    __slots__ = ()

    def pull(self, limit: int) -> Any:
        """See `Pipe`. Stored payload stays where it lies if the connection takes much at once."""
        queue = self.queue
        assert queue
        piece: Held = queue.popleft()
        if not isinstance(piece, bytes | memoryview):
            size = len(piece)
            most = limit if limit >= _LEAST_STORED else _READ_BYTES
            if size > most:
                rest: Any = piece.part(most, size)
                queue.appendleft(rest)
                piece = piece.part(0, most)
            if most == limit:
                assert self.sink is not None
                self.sink.is_stored = True
                return piece
            piece = piece.read()
        if len(piece) > limit:
            view = memoryview(piece)
            queue.appendleft(view[limit:])
            piece = view[:limit]
        return piece

    def went_out(self, size: int) -> int:
        """See `Pipe`: the client was credited when the batch came."""
        return 0


class GrpcPart(Exchange):
    """Some rows of a batch, an attempt at a time, or two with a hedge: for whoever places them,
    counts the attempts, and retries them."""

    __slots__ = ("answer", "count", "first", "pieces", "session", "span")

    def __init__(self, session: SplitSession, first: int, count: int) -> None:
        """
        Args:
            session: of the whole batch.
            first: row of it.
            count: rows of the part.
        """
        call = session.call
        super().__init__(AppProtocol.GRPC, call.operation, call.client, call.started_at)
        self.model, self.token = call.model, call.token
        self.method, self.path, self.request_id = call.method, call.path, call.request_id
        self.is_part = True
        self.session = session
        self.first = first
        self.span = 0 if call.trace is None else call.trace.new_span()
        self.count = count
        self.pieces: list[Held] = []
        """The message with its prefix."""
        self.answer: PartAnswer | None = None
        """The one that counts."""

    # Of the whole

    @property
    def whole(self) -> Exchange:
        """See `Exchange`."""
        return self.session.call

    @property
    def first_span(self) -> int:
        """See `Exchange`."""
        return self.span

    @property
    def deadline(self) -> float:
        """See `Exchange`."""
        return self.session.call.deadline

    def hint(self, name: bytes) -> bytes:
        """See `Exchange`."""
        return self.session.call.hint(name)

    @property
    def is_sent(self) -> bool:
        """See `Exchange`."""
        return not self.finished

    # Attempts

    def begin(self) -> None:
        """See `Part`."""
        batch = self.session.batch
        assert batch.cut is not None
        self.pieces = batch.cut.part(self.first, self.count)
        self.bytes_in = size = sum(map(len, self.pieces))
        self.hints = part_hints(batch.hints, batch.plan, self.count, size)
        self.place_anew()

    def _place(self) -> None:
        relay = self.session.call.relay
        try:
            attempt = relay.placer.place(self, _make_attempt, relay.now, self)
        except RequestRefused as refusal:
            self.refuse(refusal)
            return
        if attempt is not None:
            relay.start(attempt)

    def place_anew(self) -> None:
        """Begin the next attempt."""
        relay = self.session.call.relay
        relay.now = relay.clock()
        self._place()

    def go_on(self) -> None:
        """See `Waiting`."""
        self.place_anew()

    def refuse(self, refusal: RequestRefused) -> None:
        """See `Waiting`."""
        self.session.part_failed(
            self, refusal.reason, refusal.detail, None, retry_after_s=refusal.retry_after_s
        )

    def attempt_late(self) -> None:
        """See `Exchange`."""
        attempt = self.attempt
        if isinstance(attempt, GrpcAttempt):
            attempt.leave_backend(Outcome.LATE)

    def begin_hedge(self) -> GrpcAttempt | None:
        """Send it to a second backend as well; None where that cannot be."""
        relay = self.session.call.relay
        try:
            attempt = relay.placer.place_beside(self, _make_attempt, relay.now)
        except RequestRefused:
            return None
        relay.start(attempt)
        return attempt if attempt.outcome is None else None

    def cancel_hedge(self) -> None:
        """Nobody waits for the second attempt any more."""
        hedge, self.hedge = self.hedge, None
        if isinstance(hedge, GrpcAttempt):
            _forget(hedge)
            hedge.give_up(Outcome.OVERTAKEN, ErrorCode.CANCEL)

    # Ends

    def answered(self, attempt: GrpcAttempt, answer: PartAnswer) -> None:
        """A whole answer came, the first one; its attempt has ended."""
        if attempt is self.hedge:
            first = self.attempt
            relay = self.session.call.relay
            relay.accounts.overtake(self)
            if isinstance(first, GrpcAttempt):
                _forget(first)
                first.abandon(Outcome.OVERTAKEN)
            relay.dispatcher.queue.leave(self)  # where it was to be tried again
        else:
            self.cancel_hedge()
        self.answer = answer
        self._finish()
        self.session.part_answered(self, answer.held.size)

    def cancel(self) -> None:
        """See `Part`."""
        if self.finished:
            return
        self.cancel_hedge()
        attempt = self.attempt
        if isinstance(attempt, GrpcAttempt) and attempt.outcome is None:
            _forget(attempt)
            attempt.abandon(Outcome.CANCELLED)
        else:
            self.session.call.relay.accounts.stop(self, Outcome.CANCELLED)
        self._finish()

    def drop_answer(self) -> None:
        """See `Part`. Nothing of it runs on: its attempts end with their streams."""
        if self.answer is not None:
            self.answer.held.drop()
            self.answer = None

    def _finish(self) -> None:
        """Leave nothing behind but the answer."""
        call = self.session.call
        take_over_marks(call, self)
        call.relay.accounts.finish(self)
        self.pieces = []


def _make_attempt(part: GrpcPart, backend: Backend, port: Port, began_at: float) -> GrpcAttempt:
    """An attempt at a part, with pipes of its own: its request is complete."""
    call = part.session.call
    relay = call.relay
    options = relay.options
    attempt = GrpcAttempt(call, backend, port, began_at)
    attempt.exchange = part
    attempt.sink = PartAnswer(part)
    request: Pipe[Any] = _PartRequest(attempt, relay.memory_budget, 0, 0)
    response: Pipe[Any] = Pipe(
        attempt, relay.memory_budget, options.answer_window, options.stream_window_max
    )
    request.opposite, response.opposite = response, request
    request.ended = True
    pieces: Any = part.pieces
    request.queue = deque(pieces)
    request.retained = pieces
    attempt.request, attempt.response = request, response
    return attempt


def _forget(attempt: GrpcAttempt) -> None:
    """Hold nothing any more of an attempt that is over: neither what it was to send, nor what it
    was answered."""
    attempt.request.queue = attempt.request.retained = None
    sink = attempt.sink
    if isinstance(sink, PartAnswer):
        sink.held.drop()


class PartAnswer(ResponseSink):
    """The response of an attempt at a part, held whole."""

    __slots__ = ("held", "part")

    def __init__(self, part: GrpcPart) -> None:
        self.part = part
        self.held = HeldBytes(part.session.batch.memory)

    def take_head(self, attempt: GrpcAttempt, head: ResponseHead, end_stream: bool) -> bool:
        """See `ResponseSink`."""
        if attempt.held_head is not None:
            if head.status or not end_stream:
                raise StreamError(ErrorCode.PROTOCOL_ERROR, "second head in a response")
        elif not head.is_answer:
            return False
        elif not end_stream:
            attempt.held_head = head
            return True
        status = status_in(head)
        if not status:
            self._on_message(attempt)
        elif self.held.held or not attempt.try_failover(head):
            self._on_error(attempt, status, decode_message(head.grpc_message))
        return True

    def shown(self, attempt: GrpcAttempt, payload: Payload, end_stream: int) -> Payload | None:
        """See `ResponseSink`: nothing goes to the client yet."""
        if attempt.held_head is None:
            attempt.broken_response("DATA before the head of a response")
            return None
        attempt.first_byte_at = attempt.first_byte_at or attempt.call.relay.now
        if not self.held.add(payload):
            return None
        credit_backend(attempt, attempt.response, len(payload))
        if end_stream:
            self._on_error(attempt, GrpcStatus.UNKNOWN, "no status")
        return None

    def _on_message(self, attempt: GrpcAttempt) -> None:
        """The status is OK: there is to be one whole message."""
        data = self.held.rope()
        size = int.from_bytes(data.read(1, PREFIX_SIZE), "big") + PREFIX_SIZE
        if len(data) < PREFIX_SIZE or len(data) != size:
            self.held.drop()
            attempt.unusable_answer()
            return
        self._end(attempt, GrpcStatus.OK)
        self.part.answered(attempt, self)

    def _on_error(self, attempt: GrpcAttempt, status: int, text: str) -> None:
        """The backend answers with an error that no other backend may mend."""
        self._end(attempt, status)
        self.held.drop()
        part = self.part
        if attempt is part.hedge:
            part.hedge = None  # the first attempt goes on
        else:
            part.session.part_erred(part, status, text)

    def _end(self, attempt: GrpcAttempt, status: int) -> None:
        """The backend's part is over."""
        relay = attempt.call.relay
        attempt.response.ended = True
        attempt.port.bytes_sent += self.part.bytes_in
        attempt.port.bytes_received += self.held.size
        relay.accounts.attempt_ended(attempt, Outcome.ANSWERED, status, relay.now)
        attempt.detach(None if attempt.request.finished else ErrorCode.NO_ERROR)
        attempt.request.queue = attempt.request.retained = None

    # Without an answer

    def may_retry(self, outcome: Outcome) -> bool:
        """See `ResponseSink`: a hedge is not tried again."""
        hedge = self.part.hedge
        return not (isinstance(hedge, GrpcAttempt) and hedge.sink is self)

    def retry(self, attempt: GrpcAttempt, outcome: Outcome, *, is_unsent: bool) -> None:
        """See `ResponseSink`."""
        _forget(attempt)
        attempt.call.relay.retry.go_again(self.part, outcome, self.part.place_anew)

    def give_place(self, attempt: GrpcAttempt) -> None:
        """See `ResponseSink`: the other one has an answer of its own."""
        _forget(attempt)

    def failed(
        self,
        attempt: GrpcAttempt,
        outcome: Outcome,
        reason: Reason,
        detail: str,
        status: GrpcStatus | None,
    ) -> None:
        """See `ResponseSink`."""
        _forget(attempt)
        part = self.part
        if attempt is part.hedge:
            part.hedge = None
        elif attempt is part.attempt or part.attempt is None:
            part.session.part_failed(part, reason, detail, status)


class SplitSession(CallPart):
    """The request of a batch that is cut: held whole, and answered once all parts are. Implements
    `BatchSide`."""

    __slots__ = ("batch", "first_answer_at")

    def __init__(self, call: Call, plan: SplitPlan) -> None:
        """
        Args:
            call: whose request it is.
            plan: how it is cut.
        """
        super().__init__(call)
        call.part = self
        self.first_answer_at = 0.0
        self.batch: SplitBatch[MessageCut, tuple[list[Payload], str]] = SplitBatch(
            self, call, call.relay.parts, call, plan
        )

    # The request

    def take(self, payload: Payload, end_stream: int) -> None:
        """Take what has come of the request, whose call has looked at it."""
        request, held = self.call.request, self.batch.held
        pieces = [*(request.queue or ()), payload]
        request.clear()
        if all(map(held.add, pieces)):
            self._go_on(held.size, end_stream)
        self.batch.age()

    def request_data(self, payload: Held, end_stream: int) -> None:
        """See `CallPart`."""
        call, batch = self.call, self.batch
        if batch.cut is not None or call.finished:
            call.drop_upload(len(payload))
            return
        call.bytes_in += len(payload)
        if call.messages is not None and not call.check_message(payload):
            return
        if batch.held.add(payload):
            self._go_on(len(payload), end_stream)

    def request_trailers(self, block: bytes) -> None:
        """See `CallPart`."""
        self._go_on(0, 1)

    def _go_on(self, size: int, end_stream: int) -> None:
        call, batch = self.call, self.batch
        if batch.held.size > batch.plan.rule.max_bytes + PREFIX_SIZE:
            call.fail(Reason.BODY_TOO_LARGE, TOO_LARGE)
        elif end_stream:
            call.request.ended = True
            if call.check_length():
                batch.begin(batch.held.size)
        else:
            call.drop_upload(size)
            if not call.finished:
                call.server.store(call.request)

    # What its protocol does of a batch

    def read(self) -> Steps[MessageCut]:
        """See `BatchSide`."""
        batch = self.batch
        data = batch.held.rope()
        size = int.from_bytes(data.read(1, PREFIX_SIZE), "big")
        if len(data) != size + PREFIX_SIZE or data[0] > 1:
            raise NotSplit("not exactly one message")
        message = yield from self._message(data, batch.plan.rule.max_bytes)
        if message is None:
            raise NotSplit("it cannot be inflated, or is too long")
        cut = yield from cut_message(message)
        return cut

    def note(self, cut: MessageCut) -> bool:
        """See `BatchSide`."""
        return self.batch.held.charge(cut.memory)

    def pass_on(self) -> None:
        """See `BatchSide`."""
        call = self.call
        request = call.request
        data = self.batch.give_back()
        call.part, request.owner = None, call
        request.retained = []
        request.retained_size = 0
        pieces: list[Payload] = [*data.views(0, len(data))]
        request.retain_run(pieces, len(data), call.relay.options.retained_size)
        # Its sender was credited for it before.
        request.replayed = len(data)
        if request.push_run(pieces):
            call.place_anew()

    def make_part(self, first: int, count: int) -> GrpcPart:
        """See `BatchSide`."""
        return GrpcPart(self, first, count)

    def join(self, parts: Sequence[Part]) -> tuple[Steps[tuple[list[Payload], str]], int | None]:
        """See `BatchSide`."""
        found = [part.answer for part in parts if isinstance(part, GrpcPart)]
        answers = [answer.held.rope() for answer in found if answer is not None]
        size = None if any(data[0] for data in answers) else sum(map(len, answers))
        return self._join(answers), size

    def _join(self, answers: Sequence[Rope]) -> Steps[tuple[list[Payload], str]]:
        messages = []
        for data in answers:
            message = yield from self._message(data, _INFLATED_ANSWER)
            if message is None:
                raise NotMerged("an answer cannot be inflated", is_of_model=False)
            messages.append(message)
        joined = yield from join_messages(messages, self.batch.plan.parts)
        return joined

    def _message(self, data: Rope, limit: int) -> Steps[Rope | None]:
        """A message behind its prefix. None where it cannot be inflated to so many bytes."""
        message = data.part(PREFIX_SIZE, len(data))
        if not data[0]:
            return message
        plain = yield from inflated_in_steps(message, limit, self.batch.held.charge)
        return plain

    def answer(self, joined: tuple[list[Payload], str]) -> Pipe[Any] | None:
        """See `BatchSide`."""
        call = self.call
        pieces, _ = joined
        # What waits of the answer is on the account of the pipe.
        self.batch.close()
        call.finish_answer(bytes(pieces[0]), rest=pieces[1:])
        return call.response if call.response.held else None

    def not_joined(self, text: str, *, is_of_model: bool) -> None:
        """See `BatchSide`."""
        status = GrpcStatus.INTERNAL if is_of_model else GrpcStatus.UNAVAILABLE
        self.call.fail(Reason.NOT_MERGED, text, status=status)

    def pin(self, cut: MessageCut, version: bytes) -> None:
        """See `BatchSide`."""
        cut.pin(version)

    def fail(self) -> None:
        """See `BatchSide`."""
        self.call.fail(Reason.INTERNAL, "internal error")

    def wake(self) -> None:
        """See `BatchSide`."""
        relay = self.call.relay
        relay.now = relay.clock()

    # The parts

    def part_answered(self, part: GrpcPart, size: int) -> None:
        """A part has its answer, of so many bytes."""
        self.first_answer_at = self.first_answer_at or self.call.relay.now
        self.batch.part_answered(part.count, size)

    def part_erred(self, part: GrpcPart, status: int, text: str) -> None:
        """A backend answers to a part with an error, which ends the call."""
        call, batch = self.call, self.batch
        if call.finished:
            return
        if batch.lacks_version(text):
            self.part_failed(part, Reason.NOT_MERGED, text, GrpcStatus.UNAVAILABLE)
            return
        batch.cancel_parts()
        text = batch.error_text(part.first, part.count, text)
        call.grpc_status = status
        call.status = 200
        known = GrpcStatus(status) if status in _STATUSES else GrpcStatus.UNKNOWN
        call.answer_whole(trailers_only(known, text) + call.facts(), None)

    def part_failed(
        self,
        part: GrpcPart,
        reason: Reason,
        detail: str,
        status: GrpcStatus | None,
        *,
        retry_after_s: float = 0.0,
    ) -> None:
        """There is no answer to a part, and no other attempt, which ends the call."""
        text = self.batch.error_text(part.first, part.count, detail)
        self.call.fail(reason, text, status=status, retry_after_s=retry_after_s)

    # What the call asks of it

    def end_attempts(self, code: ErrorCode | None) -> bool:
        """See `CallPart`."""
        self.batch.cancel_parts()
        return True

    def leave(self, reason: Reason | None) -> None:
        """See `CallPart`."""
        self.batch.close()

    @property
    def merged_at(self) -> float:
        """See `CallPart`."""
        return self.first_answer_at


def rows_of_first(data: bytes, model: bytes, *, is_all: bool) -> int | None:
    """The rows of the message that a request begins with.

    Args:
        data: what has come, prefix included.
        model: that it names.
        is_all: there is no more to come.

    Returns:
        None when more of it is needed to tell; 1 where it does not say so.
    """
    is_enough = is_all or len(data) >= INSPECTED_BYTES
    if len(data) < PREFIX_SIZE:
        return 1 if is_enough else None
    if not data[0] and data.startswith(model, NAME_AT) and data[NAME_AT - 1] == len(model):
        quick = inspect_quickly(data, NAME_AT + len(model))
        if quick is not None:
            return quick[1]
    size = int.from_bytes(data[1:PREFIX_SIZE], "big")
    message = data[PREFIX_SIZE : PREFIX_SIZE + size]
    if data[0]:
        message, size = inflated_start(message, INSPECTED_BYTES)
    rows = first_rows(message, size)
    return 1 if rows is None and is_enough else rows
