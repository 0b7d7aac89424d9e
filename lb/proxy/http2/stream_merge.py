"""One stream of a client, served by several upstream streams.

Requests go to the branches as `StreamRouter` decides. On the way back whole messages are merged:
answers that are counted (see `PendingResponses`) in the order of their requests over the whole
stream, others as they come, and never two messages into each other. An answer whose turn has not
come waits under the window of its own branch, so what is held is bounded by the windows, and no
branch can make another one hold more.

The stream ends when the client has half-closed it and every branch has ended, or when no branch is
left. A branch that is lost while others live ends with errors in the stream for all that it owes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final

from lb.balancing.sequences import lost_text, sequence_text
from lb.domain.backend import Backend
from lb.domain.outcome import OUTCOME_REASONS, Outcome, Reason
from lb.domain.schedule import Ticket
from lb.domain.sequence import SequenceStep
from lb.kserve.gate import ERROR_TAG, StreamMask
from lb.kserve.pending_responses import Due, StreamMessage
from lb.kserve.stream_answers import error_answer
from lb.proxy.failure import grpc_status
from lb.proxy.http2.attempt import EXITING, attempt_of, credit_backend
from lb.proxy.http2.call import Call
from lb.proxy.http2.replies import OK_HEAD, status_trailers, trailers_only
from lb.proxy.http2.stream_branch import Branch
from lb.proxy.http2.stream_pipes import move_queue
from lb.proxy.http2.stream_resumption import Resumption
from lb.proxy.http2.stream_router import StreamRouter
from lb.proxy.http2.stream_single import SingleBackend
from lb.proxy.http2.stream_work import MAX_UNANSWERED, Work, in_flight_messages_of
from lb.telemetry.meter import AnswerTimes
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.grpc.status import GrpcStatus
from lb.wire.http2.fields import FieldCache
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import ErrorCode, pack_header
from lb.wire.http2.heads import ResponseHead

_ENDS_AT_ERROR: Final = b"triton_grpc_error"
_STATUSES: Final = frozenset(GrpcStatus)
_ANSWERS_AT_ONCE: Final = 200
"""Messages that are passed on before others have their turn: two milliseconds."""
_ANSWER_COST: Final = 10
"""Units of `IterationBudget` for each of these."""
_ERRORS_AT_ONCE: Final = 100
"""Errors of a lost branch that are made at a time."""


class MergedResponse(Pipe[Any]):
    """The merged answers on their way to the client. What waits came out of a branch already."""

    __slots__ = ("merge",)

    def __init__(self, merge: StreamMerge, call: Call) -> None:
        super().__init__(call, call.relay.memory_budget, 2**31, 0)
        self.merge: StreamMerge | None = merge
        """Until that is over."""

    def went_out(self, size: int) -> int:
        """See `Pipe`. Nobody is credited: the branches were."""
        self.owed = 0
        if not self.queue and self.merge is not None:
            self.merge.answers_went_out()
        return 0


class StreamMerge:
    """The branches of one call. To be begun once the call has it."""

    __slots__ = (
        "_aside", "_call", "_half_closed", "_has_left", "_has_more", "_header", "_header_size",
        "_is_pumping", "_is_scheduled", "_local", "_mask", "_order", "_passes_results", "_router",
        "_single", "_sources", "_speaker", "_status", "_times", "_trailers", "begun_at", "has_held",
        "inbound", "is_closing", "live", "merged_response", "target",
    )  # fmt: skip

    def __init__(
        self, call: Call, router: StreamRouter, single: SingleBackend, times: AnswerTimes
    ) -> None:
        """
        Args:
            call: whose stream it is.
            router: of its messages.
            single: follows these, and has the mask of all that goes to the client.
            times: of its answers.
        """
        self._call = call
        self._router = router
        self._single = single
        self._mask = mask = single.mask
        self._passes_results = type(mask) is StreamMask
        """Results are not looked into on their way to the client."""
        self._header = b""
        """The header of the frame in which a result of `_header_size` goes out."""
        self._header_size = 0
        self._times = times
        self.live: dict[Backend, Branch] = {}
        """Upstream streams that are open, the first one first."""
        self._aside: list[Branch] = []
        """Branches that get no new requests: they are between two attempts, were placed where there
        is one already, or leave."""
        self._has_left = False
        """A backend was left that owed nothing: without any branch the stream goes on."""
        self.has_held = False
        """A message is held back until its model is loaded, or some are left to be routed: they do
        not need the branches that there are, and without any the stream goes on."""
        self.target: Branch | None = None
        """Where the message under way goes, or the last one went."""
        self._half_closed: bytes | None = None
        """The trailers of the client's request, once all of that was routed."""
        self._sources: list[Branch] = []
        """Branches that may have something to say; those that ended, too, until all is said."""
        self._order: deque[Branch] = deque()
        """Whose answer is due: one entry for each counted request."""
        self._speaker: Branch | None = None
        """Whose message is under way to the client."""
        self._local: Branch | None = None
        """Says what no backend was asked."""
        self._status: tuple[GrpcStatus, str, Reason | None] | None = None
        """How the stream ends, if not well: the first bad status of a branch."""
        self._trailers = b""
        """The last good trailers of a branch."""
        self.is_closing = False
        """No branch is left: the stream ends once all was said."""
        self.begun_at = 0.0
        """When its first answer came, if that was merged."""
        self._is_pumping = False
        self._is_scheduled = False
        self._has_more = False
        """Some messages are left to be passed on in a later iteration of the event loop."""
        call.may_have_run = True  # what its portions did is not on its account
        self.inbound = call.response
        self.merged_response = self._new_merged_response()
        router.live = self.live

    # The change from one upstream stream to several

    def begin(self, resumption: Resumption) -> None:
        """Go on from one backend, if there is one yet."""
        if self._call.is_under_way:
            self._adopt(resumption)

    def _new_merged_response(self) -> MergedResponse:
        call = self._call
        before = self.inbound
        server = call.server
        merged_response = MergedResponse(self, call)
        merged_response.sink, merged_response.sink_id, merged_response.credit = (
            server,
            call.client_id,
            before.credit,
        )
        merged_response.opposite = call.request
        call.request.opposite = merged_response
        size = move_queue(before, merged_response)
        if size:
            if before in server.waiting:
                del server.waiting[before]
                server.waiting[merged_response] = None
            credit_backend(attempt_of(call), before, size)
        before.sink = None
        call.response = merged_response
        return merged_response

    def _adopt(self, resumption: Resumption) -> None:
        call = self._call
        assert call.backend is not None
        branch = self._new_branch(call.backend, call.model)
        branch.adopt(self.inbound, self._single, self._router, resumption)
        if not branch.cutter.is_between:
            self._speaker = branch
            branch.pending_responses.answered(1)
        self._order.extend([branch] * len(branch.pending_responses.counted))
        if branch.attempt is not None and branch.attempt.connection is None:
            branch.open()  # it waited for a connection

    # Requests

    def new_branch(self, backend: Backend, model: bytes) -> Branch:
        """One more upstream stream, not open yet. Its first request is for `model`."""
        branch = self._new_branch(backend, model)
        branch.begin(backend)
        branch.keep_accounts()
        return branch

    def _new_branch(self, backend: Backend, model: bytes) -> Branch:
        branch = self.live[backend] = Branch(self._call, self, model)
        self._sources.append(branch)
        return branch

    def expect(
        self, branch: Branch, message: StreamMessage, work: Work | None, backend: Backend
    ) -> None:
        """A request goes to a branch, whose backend is or will be the one given."""
        if branch.note(message, work, backend) and message.has_one_answer:
            self._line_up(branch)

    def send_alike(
        self, branch: Branch, pattern: Ticket, due: Due, payload: bytes, size: int
    ) -> bool:
        """Send a small request to a branch, like others of its model. False when it is to be sent
        as any other.

        Args:
            branch: where it goes.
            pattern: a ticket like that of the request, which never begins.
            due: what is known of its answer.
            payload: all of it, with its prefix.
            size: bytes of that.
        """
        # HOT PATH (benchmarks/bench_stream_relay.py). The reference are `expect` and `Branch.send`.
        portion, request = branch.portion, branch.request
        in_flight = in_flight_messages_of(portion.attempt)
        sink = request.sink
        if (
            sink is None
            or in_flight is None
            or portion.finished
            or request.retained is not None
            or branch.pending_responses.free_models
        ):
            return False
        if size != branch.header_size:
            branch.header = pack_header(size << 8, 0, request.sink_id)
            branch.header_size = size
        if not sink.send_small(request, payload, branch.header, size):
            return False
        portion.bytes_in += size
        if portion.model != due.model:
            portion.is_movable = False
        in_flight.begin_alike(pattern, portion.backend, self._call.relay.now)
        if branch.pending_responses.expect_alike(due, payload, size):
            self._line_up(branch)
        return True

    def _line_up(self, branch: Branch) -> None:
        self._order.append(branch)
        if len(self._order) > MAX_UNANSWERED:
            self._call.fail(Reason.MEMORY, "too many requests wait for their answers")

    def refuse(self, message: StreamMessage, text: str) -> None:
        """Answer a request with an error in its turn; the rest of it goes nowhere."""
        local = self._local
        if local is None:
            local = self._local = Branch(self._call, self, b"")
            local.portion.finished = True
            self._sources.append(local)
        self.target = local
        if local.pending_responses.expect(message):
            self._line_up(local)
        if not self._call.finished and local.response.push(error_answer(message.id, text)):
            self.pump()

    def half_close(self, trailers: bytes) -> None:
        """The client has sent all."""
        self._half_closed = trailers
        for branch in self._open:
            branch.half_close(trailers)
        self.pump()

    # Other attempts

    @property
    def _open(self) -> tuple[Branch, ...]:
        """All upstream streams that have not ended."""
        return (*self.live.values(), *self._aside)

    def set_aside(self, branch: Branch) -> None:
        """A branch gets no new requests, as long as it has no other backend."""
        self._close(branch)
        self._aside.append(branch)

    def has_asked(self, model: bytes) -> bool:
        """See `Merging`."""
        return self._router.has_asked(model)

    def leave(self, backends: Collection[Backend]) -> None:
        """Ask nothing more of some backends over the streams that there are. These end when all is
        answered that they were asked; sequences go on where they are."""
        for backend, branch in tuple(self.live.items()):
            is_bound = branch.portion.has_steps and backend.open_sequences
            if backend in backends and not is_bound:
                self.set_aside(branch)
                branch.is_leaving = self._has_left = True
                branch.half_close(b"")

    def placed(self, branch: Branch, backend: Backend) -> None:
        """It has another backend. Its answers keep their turns, so it stays a branch of its own
        where that has one already, until it has answered."""
        if branch.is_leaving:
            return
        if backend in self.live:
            branch.is_leaving = True
            if branch is not self.target or self._single.is_between:
                branch.half_close(b"")
        else:
            self._aside.remove(branch)
            self.live[backend] = branch

    def message_sent(self) -> None:
        """All of a message has gone where it goes that came in more than one piece."""
        if self.target is not None and self.target.is_leaving:
            self.target.half_close(b"")

    def split_branch(self, branch: Branch, models: Collection[bytes], outcome: Outcome) -> None:
        """Have requests of some models go again that a branch has not answered, whose backend is
        lost. Those of each model have a branch of their own from now on, so that they are placed
        and wait for a load without the others; answers keep their turns. What else the branch owes
        becomes errors."""
        call, relay = self._call, self._call.relay
        whole, count = self._split(branch)
        pending_responses, response = branch.pending_responses, branch.response
        owed = [due.model for due in pending_responses.counted]
        said = b"".join(response.queue or ())[:whole]
        response.clear()
        if not response.push(said):
            return
        is_incoming = pending_responses.is_incoming
        parts = {model: branch.part(model) for model in models}
        self._sources.extend(parts.values())
        self._aside.extend(parts.values())
        pending_responses.move(count, {m: part.pending_responses for m, part in parts.items()})
        if call.finished:
            return
        owners = [branch] * count + [parts.get(model, branch) for model in owed[count:]]
        turns = iter(owners)
        self._order = deque(next(turns, each) if each is branch else each for each in self._order)
        if is_incoming and branch is self.target:
            self.target = owners[-1]
        for part in parts.values():
            if self._half_closed is not None:
                part.half_close(self._half_closed)
        reason, text = relay.retry.failure(branch.portion, outcome)
        self.branch_lost(branch, outcome, text, reason)
        for part in parts.values():
            if not call.finished:
                part.go_again(branch.resumption, outcome)

    def whole_answers(self, branch: Branch) -> tuple[int, int] | None:
        """Count what waits in a branch whose upstream stream was lost: bytes of whole answers, and
        how many of these are counted.

        Returns:
            None where a message has begun to go to the client that is not whole.
        """
        if self._speaker is branch and not self._has_whole(branch):
            return None
        return self._split(branch)

    def owes_nothing(self, branch: Branch) -> bool:
        """Whether all is there that a branch was to answer, as far as is known: then its loss is
        nobody's. Sequences may go on there until the client has sent all."""
        answers, pending_responses = self.whole_answers(branch), branch.pending_responses
        if answers is None:
            return False
        is_bound = branch.portion.has_steps and not branch.request.ended
        return branch.is_done or not (
            is_bound
            or pending_responses.has_uncounted
            or answers != (branch.response.waiting, len(pending_responses.counted))
        )

    # Answers

    def head_came(self, head: ResponseHead) -> None:
        """A branch sent the head of its response: the first one goes to the client."""
        if not self._call.begun:
            self._begin(head.block)

    def _begin(self, block: bytes) -> None:
        call = self._call
        call.begun = True
        call.status = 200
        self.begun_at = call.relay.now
        call.server.send_head(call.client_id, block, end_stream=False)

    def answers_went_out(self) -> None:
        """Nothing waits for the client any more."""
        if not self._is_pumping and not self._is_scheduled:
            # Not from within the drain of the merged response.
            self._is_scheduled = True
            self._call.relay.loop.call_soon(self._pump_later)

    def _pump_later(self) -> None:
        self._is_scheduled = False
        if not self._call.finished:
            self._call.relay.now = self._call.relay.clock()
            self.pump()

    def pump(self) -> None:
        """Pass on what may go out now."""
        call = self._call
        if self._is_pumping or self._has_more or call.finished:
            return
        self._is_pumping = True
        count = 0
        while not self.merged_response.queue and not call.finished:
            if count == _ANSWERS_AT_ONCE:
                self._has_more = True
                break
            branch = self._speaker or self._next()
            if branch is None or not branch.response.queue:
                break
            self._pass_on(branch)
            count += 1
        self._is_pumping = False
        if self._has_more:
            iteration = call.relay.iteration
            iteration.spend(count * _ANSWER_COST)
            iteration.later(self._pump_more)
        elif not call.finished:
            self._end_if_over()

    def _pump_more(self) -> None:
        self._has_more = False
        if not self._call.finished:
            self._call.relay.now = self._call.relay.clock()
            self.pump()

    def _next(self) -> Branch | None:
        """Whose turn it is to begin a message."""
        for branch in tuple(self._sources):
            if branch.errors is not None and not branch.response.queue:
                self._say_errors(branch)
                if self._call.finished:
                    return None
            if not branch.response.queue:
                if branch.finished and branch is not self._local:
                    self._retire(branch)
                continue
            counted = branch.pending_responses.is_counted(
                branch.peek() if branch.pending_responses.is_mixed else b""
            )
            if counted is None and not branch.finished:
                continue  # too little of it has come
            if counted and self._order and self._order[0] is not branch:
                continue
            pending_responses = branch.pending_responses
            if counted:
                if pending_responses.counted[0].is_unserved and not _is_error(branch.peek()):
                    # It was loaded meanwhile, and may well be decoupled.
                    pending_responses.is_unknown = True
                pending_responses.answered(1)
                if self._order:
                    self._order.popleft()
            elif not pending_responses.is_mixed:
                pending_responses.answered(1)  # more than was due, or none is counted
            # Who speaks goes to the end of the line.
            self._sources.remove(branch)
            self._sources.append(branch)
            return branch
        return None

    def _pass_on(self, branch: Branch) -> None:
        call = self._call
        piece = branch.take()
        self._speaker = None if branch.cutter.is_between else branch
        self._say(piece)
        if branch.response.taker is None and branch is not self._local and self._passes_results:
            branch.response.taker = partial(self._take_answer, branch)
        if call.finished and branch.response.queue:
            branch.response.clear()

    def _take_answer(self, branch: Branch, payload: bytes, size: int) -> bool:
        """A small frame of the answers of a branch came. False when it is not a whole result whose
        turn it is, and waits as any other."""
        # HOT PATH (benchmarks/bench_stream_relay.py). The reference are `Branch.shown` and `pump`.
        order, call, response = self._order, self._call, branch.response
        pending_responses = branch.pending_responses
        if (
            not order
            or order[0] is not branch
            or self._speaker is not None
            or self._is_pumping
            or response.queue
            or pending_responses.free_models
            or not pending_responses.counted
            or pending_responses.counted[0].is_unserved
            or size <= PREFIX_SIZE
            or payload[PREFIX_SIZE] == ERROR_TAG
            or int.from_bytes(payload[1:PREFIX_SIZE], "big") + PREFIX_SIZE != size
        ):
            return False
        if size != self._header_size:
            self._header = pack_header(size << 8, 0, call.client_id)
            self._header_size = size
        if not call.server.send_small(self.merged_response, payload, self._header, size):
            return False
        order.popleft()
        pending_responses.first_answered()
        self._mask.completed += 1
        call.bytes_out += size
        branch.portion.bytes_out += size
        now = call.relay.now
        if now != self._times.last_at:
            self._times.on_answer(now)
        in_flight = in_flight_messages_of(branch.portion.attempt)
        if in_flight is not None:
            in_flight.answered_well(now)
        response.owed = owed = response.owed + size
        if owed + owed >= response.window_size:
            branch.credit(0)
        if order and order[0].response.queue:
            self.pump()
        return True

    def _say(self, piece: Payload) -> None:
        call = self._call
        if not call.begun:
            self._begin(OK_HEAD)
        call.bytes_out += len(piece)
        mask = self._mask
        completed, was_between = mask.completed, mask.is_between
        masked = mask.feed(piece)
        if mask.completed != completed:
            is_error = _is_error(bytes(piece[: PREFIX_SIZE + 1])) if was_between else mask.is_error
            if not is_error:
                self._times.on_answer(call.relay.now)
        call.server.send_data(self.merged_response, masked)

    # Ends

    def branch_ended(
        self, branch: Branch, status: int, detail: str, head: ResponseHead | None
    ) -> None:
        """A backend has given its status: all of its answers are here."""
        self._close(branch)
        if not branch.arrival_cutter().is_between:
            outcome = Outcome.PROTOCOL_ERROR
            text = f"backend {branch.name} (grpc) ended the stream within a message"
            self.branch_lost(branch, outcome, text, OUTCOME_REASONS[outcome])
            return
        if status == GrpcStatus.OK or branch.is_done:
            if head is not None and not (head.status or branch.is_leaving):
                self._trailers = head.block
            self._forgive(branch)
            self._go_on()
            return
        text = f"backend {branch.name} (grpc) ended the stream with status {status}: {detail}"
        if _ends_at_first_error(self._call):
            self._note(status, detail, None)
            self._end_all_but(branch)
        elif status in EXITING and (self.has_held or not self._call.request.ended):
            if self.owes_nothing(branch):
                self._has_left = True
            else:
                self._lose(branch, status, text, Reason.UPSTREAM_LOST)
        else:
            self._note(status, detail, None)
            self._mourn(branch, text)
        self._go_on()

    def branch_lost(
        self,
        branch: Branch,
        outcome: Outcome,
        text: str,
        reason: Reason,
        status: GrpcStatus | None = None,
    ) -> None:
        """An upstream stream is gone, and what its backend knew of it."""
        self._close(branch)
        if self._speaker is branch and not self._has_whole(branch):
            self._call.fail(reason, text, outcome, status=status)
            return
        if self.owes_nothing(branch):
            self._has_left = True
            self._go_on()
            return
        self._router.forget_starts(branch.pending_responses, branch.backend, outcome)
        self._lose(branch, grpc_status(reason) if status is None else status, text, reason)
        self._go_on()

    def branch_refused(self, branch: Branch, text: str) -> None:
        """No backend takes requests that were to go again: only they get errors."""
        self._close(branch)
        self._has_left = True
        self._mourn(branch, text)
        self._go_on()

    def _lose(self, branch: Branch, status: int, text: str, reason: Reason) -> None:
        if branch.pending_responses.is_unknown or not (self._open or self.has_held):
            # The stream ends, as it would with one backend.
            self._note(status, text, reason)
        if branch.pending_responses.is_unknown:
            # Nobody can say what is missing.
            self._end_all_but(branch)
        self._mourn(branch, text)

    def _close(self, branch: Branch) -> None:
        if branch.backend is not None and self.live.get(branch.backend) is branch:
            del self.live[branch.backend]
        elif branch in self._aside:
            self._aside.remove(branch)

    def _go_on(self) -> None:
        goes_on = self._status is None and (self._has_left or self.has_held)
        if not (self._open or goes_on):
            self.is_closing = True
        self.pump()

    def _note(self, status: int, detail: str, reason: Reason | None) -> None:
        if self._status is None:
            known = GrpcStatus(status) if status in _STATUSES else GrpcStatus.UNKNOWN
            self._status = known, detail, reason

    def _has_whole(self, branch: Branch) -> bool:
        """Whether all of the message under way has come."""
        cutter = branch.cutter.copy()
        return any(
            cutter.advance(payload, 0) < len(payload) or cutter.is_between
            for payload in branch.response.queue or ()
        )

    def _end_all_but(self, branch: Branch) -> None:
        """The stream ends with what this one has to say."""
        for other in tuple(self._sources):
            if other is not branch:
                self._drop(other)
        self.live.clear()
        self._aside.clear()
        self._order.clear()
        if self._speaker is not branch:
            self._speaker = None

    def _drop(self, branch: Branch) -> None:
        branch.leave(Outcome.CANCELLED)
        self._sources.remove(branch)
        if branch is self._local:
            self._local = None

    def _retire(self, branch: Branch) -> None:
        """A branch that ended has said all."""
        self._forgive(branch)
        branch.leave(Outcome.CANCELLED)
        self._sources.remove(branch)

    def _forgive(self, branch: Branch) -> None:
        """Wait for no more answers of a branch than have come."""
        counted = branch.pending_responses.counted
        spare = len(counted) - self._split(branch)[1]
        if spare <= 0:
            return
        kept = len(counted) - spare
        seen = 0
        order: deque[Branch] = deque()
        for other in self._order:
            seen += other is branch
            if other is not branch or seen <= kept:
                order.append(other)
        self._order = order
        branch.pending_responses.forgive(spare)

    def _split(self, branch: Branch) -> tuple[int, int]:
        """Count what waits in a branch: bytes of whole messages, and how many of these are
        counted."""
        data = b"".join(branch.response.queue or ())
        cutter = branch.cutter.copy()
        whole = count = 0
        at = 0
        is_rest = not cutter.is_between  # of a message that was counted when it began
        while at < len(data):
            start, at = at, cutter.advance(data, at)
            if cutter.is_between:
                whole = at
                count += (
                    not is_rest and branch.pending_responses.is_counted(data[start:at]) is not False
                )
                is_rest = False
        return whole, count

    def _mourn(self, branch: Branch, text: str) -> None:
        """Put errors in the place of all that a branch owes, after what it did say."""
        pending_responses = branch.pending_responses
        response = branch.response
        whole, count = self._split(branch)
        said = b"".join(response.queue or ())[:whole]
        response.clear()
        branch.errors = self._errors(branch, text, list(pending_responses.counted)[count:])
        response.push(said)

    def _errors(self, branch: Branch, text: str, unsaid: list[Due]) -> Iterator[bytes]:
        """Make errors for requests that have one answer, and for all others."""
        pending_responses = branch.pending_responses
        for message in unsaid:
            yield error_answer(message.id, _text(message.step, branch, text))
        for names, times in tuple(pending_responses.unfinished.items()):
            for _ in range(times):
                yield error_answer(names.id, text)
        for key, debt in tuple(pending_responses.sequences.items()):
            if not debt.is_over(self._call.relay.now):
                yield error_answer(debt.id, _text(SequenceStep(key), branch, text))

    def _say_errors(self, branch: Branch) -> None:
        """Have a lost branch, all of whose answers were passed on, say some more errors."""
        assert branch.errors is not None
        errors = b"".join(islice(branch.errors, _ERRORS_AT_ONCE))
        if errors:
            branch.response.push(errors)
        else:
            branch.errors = None

    def _end_if_over(self) -> None:
        call = self._call
        merged_response = self.merged_response
        is_ended = call.request.ended and not (self._open or self.has_held)
        is_over = self.is_closing or is_ended
        if not is_over or self._speaker is not None or merged_response.ended:
            return
        if any(branch.response.queue or branch.errors is not None for branch in self._sources):
            return
        status, detail, call.reason = self._status or (GrpcStatus.OK, "", call.reason)
        call.grpc_status = status
        if not call.begun and status != GrpcStatus.OK:
            call.status = 200
            call.answer_whole(trailers_only(status, detail) + call.facts(), call.reason)
            return
        if not call.begun:
            self._begin(OK_HEAD)
        merged_response.ended = True
        if status == GrpcStatus.OK and self._trailers:
            merged_response.trailers = self._trailers
        else:
            merged_response.trailers = status_trailers(status, detail)
        merged_response.trailers += call.facts()
        call.server.end_stream(merged_response)

    def detach(self, code: ErrorCode | None) -> None:
        """The call ends early: so do the branches."""
        for branch in self._open:
            branch.detach(code)

    def close(self, outcome: Outcome) -> None:
        """The call is over. Nothing is left behind."""
        self.merged_response.merge = None
        for branch in self._sources:
            branch.leave(outcome)
        self._sources.clear()
        self._aside.clear()
        self.live.clear()
        self._order.clear()
        self._speaker = self._local = self.target = None


def _ends_at_first_error(call: Call) -> bool:
    """Whether the client has asked for that (Triton's `triton_grpc_error`)."""
    return any(
        field.name == _ENDS_AT_ERROR and field.value == b"true"
        for field in FieldCache().split(call.head.block)
    )


def _is_error(head: bytes) -> bool:
    """Whether the answer that begins so is surely an error."""
    return len(head) > PREFIX_SIZE and not head[0] and head[PREFIX_SIZE] == ERROR_TAG


def _text(step: SequenceStep | None, branch: Branch, text: str) -> str:
    """What to tell of a request that a lost branch has not answered."""
    if step is None or branch.backend is None:
        return text
    if branch.call.relay.dispatcher.steps.table.is_lost(step.key):
        return f"{lost_text(step.key, branch.backend)} ({text})"
    return f"{sequence_text(step.key)}: {text}"
