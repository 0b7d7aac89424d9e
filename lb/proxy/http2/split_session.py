"""A gRPC batch that runs as several: its call, the parts, and their answers.

The call has no attempt of its own. Each part has some rows, and is placed, retried and hedged as a
request is: an attempt at a part has pipes of its own, and its response is held whole
(`PartAnswer`) until those of all parts have come.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from lb.domain.backend import AppProtocol, Backend, Port
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Outcome, Reason
from lb.kserve.errors import meaning
from lb.kserve.inspect import inspect_quickly
from lb.kserve.merge.steps import Steps, finish
from lb.kserve.split.messages import MessageCut, cut_message, first_rows, join_messages
from lb.kserve.split.tensors import NotMerged, NotSplit, VersionsDiffer
from lb.net.steps import at_once, in_turns
from lb.proxy.exchange import Exchange, SplitHints
from lb.proxy.http2.attempt import GrpcAttempt, ResponseSink
from lb.proxy.http2.call import Call, CallPart
from lb.proxy.http2.inspection import INSPECTED_BYTES, NAME_AT
from lb.proxy.http2.replies import trailers_only
from lb.proxy.split import (
    JOINED_AT_ONCE,
    TOO_LARGE,
    HeldBytes,
    Parts,
    SplitPlan,
    Splits,
    part_hints,
    pinned,
    rows_text,
    take_over_marks,
    units_at_once,
)
from lb.proxy.split_memory import BatchMemory
from lb.wire.grpc.compression import inflated, inflated_start
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.grpc.status import GrpcStatus, decode_message, status_of_http
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import ErrorCode, StreamError, window_update
from lb.wire.http2.heads import NO_STATUS, ResponseHead
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
    def due(self) -> float:
        """See `Exchange`."""
        return self.session.call.due

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
        session = self.session
        assert session.cut is not None
        self.pieces = session.cut.part(self.first, self.count)
        self.bytes_in = size = sum(map(len, self.pieces))
        self.hints = part_hints(session.hints, session.plan, self.count, size)
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
            hedge.give_up(Outcome.OVERTAKEN, ErrorCode.CANCEL)
            _forget(hedge)

    # Ends

    def answered(self, attempt: GrpcAttempt, answer: PartAnswer) -> None:
        """A whole answer came, the first one; its attempt has ended."""
        if attempt is self.hedge:
            first = self.attempt
            relay = self.session.call.relay
            relay.accounts.overtake(self)
            if isinstance(first, GrpcAttempt):
                first.detach(ErrorCode.CANCEL)
                first.leave(Outcome.OVERTAKEN)
                _forget(first)
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
        if isinstance(attempt, GrpcAttempt):
            attempt.detach(ErrorCode.CANCEL)
            _forget(attempt)
        self.session.call.relay.accounts.stop(self, Outcome.CANCELLED)
        self._finish()

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
        self.held = HeldBytes(part.session.memory)

    @property
    def message(self) -> Rope:
        """The message without its prefix, inflated.

        Raises:
            NotMerged: it cannot be inflated.
        """
        data = self.held.rope()
        message = _inflated(data, _INFLATED_ANSWER)
        if message is None:
            raise NotMerged("an answer cannot be inflated", is_of_model=False)
        return message

    def take_head(self, attempt: GrpcAttempt, head: ResponseHead, end_stream: bool) -> bool:
        """See `ResponseSink`."""
        if attempt.held_head is not None:
            if head.status or not end_stream:
                raise StreamError(ErrorCode.PROTOCOL_ERROR, "second head in a response")
        elif not head.is_answer:
            return False
        elif not end_stream:
            attempt.held_head = head
            attempt.first_byte_at = attempt.call.relay.now
            return True
        status = head.grpc_status
        if status == NO_STATUS:
            status = status_of_http(head.status)
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
        if not self.held.add(payload):
            return None
        response, connection = attempt.response, attempt.connection
        increment = response.went_out(len(payload))
        if increment and connection is not None:
            connection.out.append(window_update(response.source_id, increment))
            connection.mark()
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
    """The request of a batch that is cut: held whole, and answered once all parts are."""

    __slots__ = (
        "_held", "_is_fresh", "_is_pinned", "_parts", "_splits", "_work", "cut", "first_answer_at",
        "hints", "memory", "plan",
    )  # fmt: skip

    def __init__(self, call: Call, splits: Splits, plan: SplitPlan) -> None:
        """
        Args:
            call: whose request it is.
            splits: counts the batch.
            plan: how it is cut.
        """
        super().__init__(call)
        call.part = self
        self.plan = plan
        self.hints = call.hints
        """The hints of the call before it was cut."""
        self.cut: MessageCut | None = None
        """The request once it is complete."""
        self.first_answer_at = 0.0
        self._is_fresh = True
        """The plan is of this iteration of the event loop."""
        self._is_pinned = False
        """Its parts ask for a version of the model, since several answered before."""
        self._splits = splits
        self.memory = BatchMemory(call.relay.memory_budget, call)
        """What the request and the answers to its parts take."""
        self._held = HeldBytes(self.memory)
        self._parts: Parts | None = None
        self._work: asyncio.Task[None] | None = None
        """Reads a long request, or joins long answers."""

    # The request

    def take(self, payload: Payload, end_stream: int) -> None:
        """Take what has come of the request, whose call has looked at it."""
        request = self.call.request
        pieces = [*(request.queue or ()), payload]
        request.clear()
        if all(map(self._held.add, pieces)):
            self._go_on(self._held.size, end_stream)
        self._is_fresh = False

    def request_data(self, payload: Held, end_stream: int) -> None:
        """See `CallPart`."""
        call = self.call
        if self.cut is not None or call.finished:
            call.drop_upload(len(payload))
            return
        call.bytes_in += len(payload)
        if call.messages is not None and not call.check_message(payload):
            return
        if self._held.add(payload):
            self._go_on(len(payload), end_stream)

    def request_trailers(self, block: bytes) -> None:
        """See `CallPart`."""
        self._go_on(0, 1)

    def _go_on(self, size: int, end_stream: int) -> None:
        call = self.call
        if self._held.size > self.plan.rule.max_bytes + PREFIX_SIZE:
            call.fail(Reason.BODY_TOO_LARGE, TOO_LARGE)
        elif end_stream:
            call.request.ended = True
            if call.check_length():
                self._begin()
        else:
            call.drop_upload(size)
            if not call.finished:
                call.server.store(call.request)

    def _begin(self) -> None:
        """The request is complete."""
        work = self._read()
        try:
            cut = at_once(work, self.call.relay.iteration, units_at_once(self._held.size))
        except NotSplit:
            self._give_back()
            return
        if cut is None:
            self._do_in_turns("cut", work, self._begin_parts)
        else:
            self._begin_parts(cut)

    def _read(self) -> Steps[MessageCut]:
        """Read the request.

        Raises:
            NotSplit: it cannot be cut.
        """
        cut = yield from cut_message(self._message())
        if cut.rows != self.plan.rows:
            raise NotSplit("inputs differ in their batch dimension")
        return cut

    def _do_in_turns(
        self, name: str, work: Steps[ResultT], then: Callable[[ResultT], None]
    ) -> None:
        """Do work while others have their turns. `leave` ends it."""
        call = self.call
        name = f"{name}:{call.operation.name}"
        self._work = call.relay.parts.tasks.spawn(self._in_turns(work, then), name=name)

    async def _in_turns(self, work: Steps[ResultT], then: Callable[[ResultT], None]) -> None:
        try:
            result = await in_turns(work, self.call.relay.iteration)
            self._end_work()
            then(result)
        except NotSplit:
            self._end_work()
            self._give_back()
        except NotMerged as error:
            self._end_work()
            self._not_merged(error)
        except Exception:  # top frame: a client waits
            _log.exception("a batch cannot be cut, or the answers to its parts not joined")
            self._end_work()
            self.call.fail(Reason.INTERNAL, "internal error")

    def _end_work(self) -> None:
        self._work = None
        relay = self.call.relay
        relay.now = relay.clock()

    def _begin_parts(self, cut: MessageCut) -> None:
        call, plan = self.call, self.plan
        if not self._held.charge(cut.memory):
            return
        self.cut = cut
        room = self._splits.room
        if room.begin(self.memory, call.model, plan.rows, must=plan.must):
            self._go_on_with(cut)
        elif plan.must:
            self._is_fresh = False
            go_on = partial(self._begin_late, cut)
            room.wait(self.memory, call.model, plan.rows, go_on, call.relay.parts)
        else:
            self._give_back()

    def _begin_late(self, cut: MessageCut) -> None:
        relay = self.call.relay
        relay.now = relay.clock()
        self._go_on_with(cut)

    def _go_on_with(self, cut: MessageCut) -> None:
        """There is room for the answers to the parts."""
        call, plan = self.call, self.plan
        if not self._is_fresh:
            now_best = self._splits.plan(call, plan.rows, self._held.size)
            if now_best is None:
                self._give_back()  # others have come since it began
                return
            self.plan = plan = now_best
        self._splits.counts.batches += 1
        self._run(cut, plan)

    def _run(self, cut: MessageCut, plan: SplitPlan) -> None:
        call = self.call
        firsts = [sum(plan.parts[:place]) for place in range(len(plan.parts))]
        made = [GrpcPart(self, *each) for each in zip(firsts, plan.parts, strict=True)]
        self._splits.counts.parts += len(made)
        call.hints = SplitHints(self.hints, len(made))
        call.may_have_run = True  # some of it, before an error of ours
        self._parts = Parts(made, plan.rule.at_once, call.relay.iteration, cut.part_units)
        self._parts.begin()

    def _message(self) -> Rope:
        """The message of the request, inflated.

        Raises:
            NotSplit: it is not exactly one, or cannot be inflated.
        """
        data = self._held.rope()
        size = int.from_bytes(data.read(1, PREFIX_SIZE), "big")
        if len(data) != size + PREFIX_SIZE or data[0] > 1:
            raise NotSplit("not exactly one message")
        message = _inflated(data, self.plan.rule.max_bytes)
        if message is None:
            raise NotSplit("it cannot be inflated, or is too long")
        return message

    def _give_back(self) -> None:
        """Have the call placed like any other, as it came."""
        call = self.call
        request = call.request
        data = self._held.rope()
        self._leave_room()
        self._held.drop()
        self.cut = None
        call.part, request.owner = None, call
        request.retained = []
        request.retained_size = 0
        pieces: list[Payload] = [*data.views(0, len(data))]
        request.retain_run(pieces, len(data), call.relay.options.retained_size)
        # Its sender was credited for it before.
        request.replayed = len(data)
        if request.push_run(pieces):
            call.place_anew()

    # The parts

    def part_answered(self, part: GrpcPart, size: int) -> None:
        """A part has its answer, of so many bytes."""
        call, parts = self.call, self._parts
        self._splits.room.answered(call.model, part.count, size, call.relay.parts)
        self.first_answer_at = self.first_answer_at or call.relay.now
        if call.finished or parts is None or not parts.one_done():
            return
        plan = self.plan
        answers = [part.answer for part in parts.parts if isinstance(part, GrpcPart)]
        try:
            messages = [answer.message for answer in answers if answer is not None]
            size = sum(map(len, messages))
            inflated = size - sum(answer.held.size for answer in answers if answer is not None)
            if inflated > 0 and not self._held.charge(inflated):
                return
            work = join_messages(messages, plan.parts)
            budget = call.relay.iteration
            if size > JOINED_AT_ONCE or budget.left <= 0:
                self._do_in_turns("join", work, self._answer)
                return
            budget.spend(units_at_once(size))
            joined = finish(work)
        except NotMerged as error:
            self._not_merged(error)
            return
        self._answer(joined)

    def _answer(self, joined: tuple[list[Payload], str]) -> None:
        call = self.call
        pieces, _ = joined
        self._splits.fit(call.model, self.plan)
        self._leave_room()
        # What waits of the answers is on the account of the pipe, and the request is not needed.
        self._drop_answers()
        self._held.drop()
        self.cut = None
        call.finish_answer(bytes(pieces[0]), rest=pieces[1:])
        if call.response.held:
            self._splits.room.handed_over(call.response, call.relay.parts)

    def _not_merged(self, error: NotMerged) -> None:
        call = self.call
        if error.is_of_model:
            self._splits.unfit(call.model, self.plan, str(error))
        if not self.plan.must:
            self._drop_answers()
            call.hints = self.hints
            self._give_back()
            return
        if isinstance(error, VersionsDiffer) and self._try_run_again(error.newest):
            return
        status = GrpcStatus.INTERNAL if error.is_of_model else GrpcStatus.UNAVAILABLE
        text = f"the answers to {len(self.plan.parts)} parts cannot be joined: {error}"
        call.fail(Reason.NOT_MERGED, text, status=status)

    def _try_run_again(self, version: bytes) -> bool:
        """Run the batch once more, on the backends that have a version of the model: others had
        another one. False where it was, or its model cannot be cut any more."""
        cut, plan = self.cut, self.plan
        now_best = self._splits.plan(self.call, plan.rows, self._held.size)
        if self._is_pinned or not version or cut is None or now_best is None:
            return False
        self._drop_answers()
        self._is_pinned = True
        self.plan = now_best
        self.hints = pinned(self.hints, version)
        cut.pin(version)
        self._run(cut, now_best)
        return True

    def part_erred(self, part: GrpcPart, status: int, text: str) -> None:
        """A backend answers to a part with an error, which ends the call."""
        call = self.call
        if call.finished:
            return
        if self._is_pinned and meaning(text) is not None:  # nobody has that version any more
            self.part_failed(part, Reason.NOT_MERGED, text, GrpcStatus.UNAVAILABLE)
            return
        self.end_attempts(None)
        where = rows_text(part.first, part.count, self.plan.rows)
        call.grpc_status = status
        call.status = 200
        known = GrpcStatus(status) if status in _STATUSES else GrpcStatus.UNKNOWN
        call.answer_whole(trailers_only(known, f"{where}: {text}") + call.facts(), None)

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
        where = rows_text(part.first, part.count, self.plan.rows)
        self.call.fail(reason, f"{where}: {detail}", status=status, retry_after_s=retry_after_s)

    # What the call asks of it

    def end_attempts(self, code: ErrorCode | None) -> bool:
        """See `CallPart`."""
        if self._parts is not None:
            self._parts.cancel()
        return True

    def leave(self, reason: Reason | None) -> None:
        """See `CallPart`."""
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
        if self._parts is not None:
            self._parts.cancel()
            self._drop_answers()
            self._parts = None
        self._leave_room()
        self._held.drop()
        self.cut = None

    def _leave_room(self) -> None:
        self._splits.room.leave(self.memory, self.call.relay.parts)

    def _drop_answers(self) -> None:
        for part in () if self._parts is None else self._parts.parts:
            if isinstance(part, GrpcPart) and part.answer is not None:
                part.answer.held.drop()
                part.answer = None

    @property
    def merged_at(self) -> float:
        """See `CallPart`."""
        return self.first_answer_at


def _inflated(data: Rope, limit: int) -> Rope | None:
    """A message behind its prefix. None where it cannot be inflated to so many bytes."""
    if not data[0]:
        return data.part(PREFIX_SIZE, len(data))
    message = inflated(data.read(PREFIX_SIZE, len(data)), limit)
    return None if message is None else Rope([message])


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
