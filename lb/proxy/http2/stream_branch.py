"""The part of a client's stream that one of several backends serves. See `stream_merge`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, ClassVar, Protocol

from lb.domain.backend import AppProtocol, Backend, Port
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Outcome, Reason
from lb.kserve.errors import GRPC_STATUSES
from lb.kserve.gate import ERROR_TAG
from lb.kserve.pending_responses import PendingResponses, StreamMessage
from lb.kserve.stream_answers import ANSWER_HEAD_BYTES, error_text, whole_error
from lb.proxy.exchange import Exchange, RoutingHints
from lb.proxy.http2.attempt import GrpcAttempt, ResponseSink, attempt_of, credit_backend
from lb.proxy.http2.call import Call
from lb.proxy.http2.stream_pipes import BackendPipe, move_queue, move_retained
from lb.proxy.http2.stream_resumption import Resumption
from lb.proxy.http2.stream_router import StreamRouter
from lb.proxy.http2.stream_single import SingleBackend
from lb.proxy.http2.stream_work import (
    InFlightMessages,
    Work,
    in_flight_messages_of,
    keep_no_accounts,
)
from lb.proxy.retry import SAME_BACKEND_WILL_DO
from lb.wire.grpc.cutter import MessageCutter
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.grpc.status import GrpcStatus, decode_message, status_of_http
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import ErrorCode, StreamError
from lb.wire.http2.heads import NO_STATUS, ResponseHead


class Merging(Protocol):
    """What a branch tells of its backend."""

    def head_came(self, head: ResponseHead) -> None:
        """The head of its response came."""
        ...

    def pump(self) -> None:
        """Some of an answer waits."""
        ...

    def has_asked(self, model: bytes) -> bool:
        """Whether the stream has asked for a model."""
        ...

    def whole_answers(self, branch: Branch) -> tuple[int, int] | None:
        """Bytes of the whole answers that wait in it once its backend is lost, and how many of
        these are counted; None where the client has the beginning of one that is not whole."""
        ...

    def split_branch(self, branch: Branch, models: Collection[bytes], outcome: Outcome) -> None:
        """Its backend is lost: what it has not answered of some models goes again."""
        ...

    def owes_nothing(self, branch: Branch) -> bool:
        """Whether all is there that it was to answer, as far as is known."""
        ...

    def set_aside(self, branch: Branch) -> None:
        """It has no backend until it is placed anew."""
        ...

    def placed(self, branch: Branch, backend: Backend) -> None:
        """It has another backend."""
        ...

    def branch_refused(self, branch: Branch, text: str) -> None:
        """No backend takes it."""
        ...

    def branch_ended(
        self, branch: Branch, status: int, detail: str, head: ResponseHead | None
    ) -> None:
        """Its backend gave its status."""
        ...

    def branch_lost(
        self,
        branch: Branch,
        outcome: Outcome,
        text: str,
        reason: Reason,
        status: GrpcStatus | None = None,
    ) -> None:
        """There will be no status."""
        ...


class Portion(Exchange):
    """The requests of a stream that go to one backend, for the dispatcher: they are placed again,
    and wait for a load, without the others."""

    __slots__ = ("_call", "has_steps", "is_movable", "runs_once")

    def __init__(self, call: Call, model: bytes) -> None:
        super().__init__(AppProtocol.GRPC, call.operation, call.client, call.relay.now)
        self._call = call
        self.model = model
        self.hints = RoutingHints()
        self.is_movable = True
        """Another backend can serve all of them: they are for the same model, and belong to no
        sequence."""
        self.runs_once = False
        """Some of them must not run twice."""
        self.has_steps = False
        """Some belong to sequences."""

    def part(self, model: bytes) -> Portion:
        """Requests of one model among them, to be placed again: they were where these were."""
        part = Portion(self._call, model)
        part.attempt, part.backend, part.attempts = self.attempt, self.backend, self.attempts
        part.tried, part.loss = self.tried, self.loss
        return part

    def note(self, message: StreamMessage, *, is_once: bool) -> None:
        """A request belongs to them, which perhaps must not run twice."""
        is_bound = message.step is not None or message.version or message.regions
        self.is_movable &= message.model == self.model and not is_bound
        self.runs_once |= is_once
        self.has_steps |= message.step is not None

    @property
    def whole(self) -> Exchange:
        """See `Exchange`."""
        return self._call

    @property
    def may_run_twice(self) -> bool:
        """See `Exchange`."""
        return self.is_movable and not self.runs_once


class Branch(ResponseSink):
    """The part of a stream that one backend serves: requests, an attempt at a time, and answers.

    What has come of answers waits in `response` until `StreamMerge` takes it. Without a backend it
    holds errors of our own. Implements `Waiting` for its requests.
    """

    __slots__ = (
        "_going",
        "call",
        "cutter",
        "errors",
        "header",
        "header_size",
        "is_leaving",
        "merge",
        "pending_responses",
        "portion",
        "request",
        "response",
        "resumption",
    )  # fmt: skip

    noun: ClassVar[str] = "stream"

    def __init__(self, call: Call, merge: Merging, model: bytes) -> None:
        self.call = call
        self.merge = merge
        self.portion = Portion(call, model)
        self.is_leaving = False
        """Its backend is to become empty, so nothing more is asked of it."""
        options = call.relay.options
        self.pending_responses = PendingResponses(
            call, call.relay.memory_budget, options.retained_size
        )
        self.cutter = MessageCutter()
        """At the first byte that waits in `response`."""
        self.errors: Iterator[bytes] | None = None
        """What it says in place of the answers that it owes, once its backend is lost: made when
        all before was passed on."""
        self.header = b""
        """The header of the frame in which a request of `header_size` goes to the backend. They
        belong to the merge."""
        self.header_size = 0
        self.resumption = Resumption()
        """How often its requests were lost."""
        self._going: Collection[bytes] = ()
        """Models whose requests go again, from the decision until they do."""
        self.request: Pipe[Any] = BackendPipe(self, call.request)
        self.request.retained = []
        self.response: Pipe[Any] = Pipe(
            call, call.relay.memory_budget, options.answer_window, options.stream_window_max
        )
        self._couple()

    def _couple(self) -> None:
        self.request.opposite = self.response
        self.response.opposite = self.request

    def adopt(
        self,
        inbound: Pipe[Any],
        single: SingleBackend,
        router: StreamRouter,
        resumption: Resumption,
    ) -> None:
        """Take over the one upstream stream that the call has had so far. It may still be to be
        opened.

        Args:
            inbound: the pipe of its response.
            single: what is known of its backend.
            router: what is known of its requests.
            resumption: of these.
        """
        self.resumption = resumption
        call, portion = self.call, self.portion
        attempt = attempt_of(call)
        assert attempt is not None
        self.pending_responses = single.pending_responses
        self.cutter = single.mask.cutter()
        self._take_accounts(attempt, single.mask.cutter())
        attempt.exchange, attempt.sink = portion, self
        portion.attempt, portion.backend = attempt, attempt.backend
        portion.attempts = call.attempts
        # As near as makes no difference: the message under way goes elsewhere.
        portion.bytes_in, portion.bytes_out = call.bytes_in, call.bytes_out
        portion.is_movable, portion.runs_once = router.is_stateless, router.runs_once
        portion.has_steps = router.has_steps
        portion.tried, portion.loss = call.tried, call.loss
        whole, request = call.request, self.request
        request.sink, request.sink_id, request.credit = whole.sink, whole.sink_id, whole.credit
        whole.sink = None
        move_queue(whole, request)
        move_retained(whole, request)
        request.replayed, whole.replayed = whole.replayed, 0
        self.response = inbound
        attempt.request, attempt.response = request, inbound
        self._couple()
        connection = attempt.connection
        if connection is not None and whole in connection.waiting:
            del connection.waiting[whole]
            connection.waiting[request] = None

    @property
    def attempt(self) -> GrpcAttempt | None:
        """The last one, whether it is under way or over."""
        attempt = self.portion.attempt
        return attempt if isinstance(attempt, GrpcAttempt) else None

    @property
    def backend(self) -> Backend | None:
        """The one of that; None before the first."""
        return self.portion.backend

    @property
    def name(self) -> str:
        """The backend's."""
        return self.backend.name if self.backend is not None else "-"

    @property
    def finished(self) -> bool:
        """Nothing more is asked of a backend, nor answered by one."""
        return self.portion.finished

    # Accounts of single requests

    def _take_accounts(self, attempt: GrpcAttempt, cutter: MessageCutter) -> None:
        in_flight_messages = in_flight_messages_of(attempt)
        if in_flight_messages is None:
            in_flight_messages = InFlightMessages(
                self.call.relay, len(self.pending_responses.counted)
            )
        in_flight_messages.follow(cutter)
        attempt.in_flight_messages = in_flight_messages

    def keep_accounts(self, before: int = 0) -> None:
        """Keep accounts of all requests from the next one on.

        Args:
            before: requests without answers that came before it.
        """
        if self.attempt is not None:
            self.attempt.in_flight_messages = InFlightMessages(self.call.relay, before)

    def _account(self, message: StreamMessage, work: Work | None, backend: Backend) -> None:
        in_flight_messages = in_flight_messages_of(self.attempt)
        if in_flight_messages is None:
            return
        if message.has_one_answer and not self.pending_responses.free_models:
            in_flight_messages.begin(work, backend, self.call.relay.now)
        else:
            keep_no_accounts(self.attempt, self.call.relay.now)

    # Attempts

    def begin(self, backend: Backend) -> None:
        """Begin an attempt. What it is asked waits until it is opened."""
        relay = self.call.relay
        relay.placer.begin_attempt(self.portion, self._make_attempt, backend, relay.now)

    def _make_attempt(
        self, portion: Portion, backend: Backend, port: Port, began_at: float
    ) -> GrpcAttempt:
        attempt = GrpcAttempt(self.call, backend, port, began_at)
        attempt.exchange, attempt.sink = portion, self
        self.header_size = 0  # the next connection has another number for the stream
        attempt.request, attempt.response = self.request, self.response
        return attempt

    def open(self) -> None:
        """Start the stream at its backend. A message follows at once."""
        assert self.attempt is not None
        self.call.relay.start(self.attempt)

    def backend_hung(self, attempt: GrpcAttempt) -> None:
        """See `ResponseSink`. Nobody waits for trailers alone."""
        if attempt.begun and attempt.is_given_up and self.merge.owes_nothing(self):
            attempt.detach(ErrorCode.CANCEL)
            attempt.failed(Outcome.SILENT)
        else:
            super().backend_hung(attempt)

    def may_retry(self, outcome: Outcome) -> bool:
        """See `ResponseSink`: elsewhere, or what must stay at the same backend, which it does not
        wait for."""
        portion = self.portion
        has_attempt = portion.attempts < self.call.relay.retry.rules.max_attempts
        return portion.is_movable or (has_attempt and outcome in SAME_BACKEND_WILL_DO)

    def retry(self, attempt: GrpcAttempt, outcome: Outcome, *, is_unsent: bool) -> None:
        """See `ResponseSink`."""
        if not (is_unsent or self.request.rewind()):
            return  # the call had to give way
        if self.portion.is_movable:
            self.merge.set_aside(self)
            self.call.relay.retry.go_again(self.portion, outcome, self._place)
        else:
            self.begin(attempt.backend)
            self.open()

    def take_resumption(self, attempt: GrpcAttempt, outcome: Outcome) -> bool | None:
        """See `ResponseSink`. The requests of each model go again for themselves, those that have
        nowhere to go and those of decoupled models become errors. A backend that goes on, or may
        do so, is left only if nothing of it does."""
        portion, pending_responses = self.portion, self.pending_responses
        resumption = self.resumption
        is_new = not (attempt.begun or resumption.has_begun)
        if portion.finished or portion.has_steps or (is_new and portion.is_movable):
            return None
        answers = self.merge.whole_answers(self)
        if answers is None or pending_responses.is_unknown:
            return None
        count = answers[1]
        models = [due.model for due in pending_responses.counted][count:]
        if not models or pending_responses.unanswered(count) is None:
            return None
        retry = self.call.relay.retry
        going = retry.movable_models(portion, outcome, set(models))
        is_left = bool(pending_responses.unfinished) or len(going) < len(set(models))
        may_go_on = attempt.outcome is None and outcome in (Outcome.SILENT, Outcome.NOT_HERE)
        if not going or (is_left and may_go_on):
            return None
        self._going = going
        completed = pending_responses.completed + count
        lost = [model for model in models if model in going]
        return resumption.take(retry, portion, outcome, lost, completed)

    def resume(self, attempt: GrpcAttempt, outcome: Outcome) -> None:
        """See `ResponseSink`."""
        self.response.source = None
        self._drop_request()
        going, self._going = self._going, ()
        self.merge.split_branch(self, going, outcome)

    def part(self, model: bytes) -> Branch:
        """A branch for the requests of one model that go again."""
        part = Branch(self.call, self.merge, model)
        part.portion = self.portion.part(model)
        return part

    def go_again(self, resumption: Resumption, outcome: Outcome) -> None:
        """Have requests placed that were lost with another branch, which knows how often."""
        request, pending_responses = self.request, self.pending_responses
        self.resumption = resumption.part(len(pending_responses.counted))
        for payload in pending_responses.unanswered() or ():
            if request.retained is not None:
                request.retain(payload, self.call.relay.options.retained_size)
            if not request.push(payload):
                return
            self.portion.bytes_in += len(payload)
        request.replayed = request.waiting  # the other branch has credited them
        self.call.relay.retry.go_again(self.portion, outcome, self._place)

    def _place(self) -> None:
        relay, portion = self.call.relay, self.portion
        relay.now = relay.clock()
        try:
            attempt = relay.placer.place(portion, self._make_attempt, relay.now, self)
        except RequestRefused as refusal:
            self.refuse(refusal)
            return
        if attempt is None:
            self.call.held_for = self.call.held_for or portion.held_for
            return
        self.merge.placed(self, attempt.backend)
        if self.resumption.has_begun and not self.response.queue:
            self.keep_accounts(len(self.pending_responses.counted))
        relay.start(attempt)

    def go_on(self) -> None:
        """See `Waiting`."""
        if self.call.server.parted:
            self.call.client_gone()
        else:
            self._place()

    def refuse(self, refusal: RequestRefused) -> None:
        """See `Waiting`."""
        self.call.relay.now = self.call.relay.clock()
        self._drop_request()
        self.merge.branch_refused(self, refusal.detail)

    # Requests

    def note(self, message: StreamMessage, work: Work | None, backend: Backend) -> bool:
        """A request goes here, to a backend that it has or will have. False when the call had to
        give way."""
        is_once = message.model in self.call.relay.retry.rules.never
        self.portion.note(message, is_once=is_once)
        self._account(message, work, backend)
        pending_responses = self.pending_responses
        if not (message.has_one_answer or pending_responses.follows_answers):
            pending_responses.follow_answers(self.arrival_cutter())
        return pending_responses.note(message, self.call.relay.now)

    def send(self, payload: Payload) -> None:
        """Bytes of the client."""
        portion, request = self.portion, self.request
        if portion.finished:
            self.call.drop_upload(len(payload))
            return
        portion.bytes_in += len(payload)
        if request.retained is not None:
            request.retain(payload, self.call.relay.options.retained_size)
        if request.sink is None:
            request.push(payload)
        else:
            request.sink.send_data(request, payload)

    def half_close(self, trailers: bytes) -> None:
        """Nothing more is asked here."""
        request = self.request
        if request.ended:
            return
        request.trailers = trailers
        request.ended = True
        if request.sink is not None:
            request.sink.end_stream(request)

    # What connections tell the owner of the requests' pipe

    @property
    def bytes_in(self) -> int:
        """Payload of the requests."""
        return self.portion.bytes_in

    def pipe_finished(self, pipe: Pipe[Any]) -> None:
        """END_STREAM went out: nothing depends on it."""

    def backend_stalled(self) -> None:
        """The backend has taken nothing of the requests that wait for it."""
        if self.attempt is not None:
            self.attempt.backend_stalled()

    @property
    def charged_to(self) -> Exchange:
        """See `Call`."""
        return self.call

    def evict(self) -> None:
        """The memory budget wants these bytes back: the whole call ends."""
        self.call.evict()

    # Answers as they come

    def take_head(self, attempt: GrpcAttempt, head: ResponseHead, end_stream: bool) -> bool:
        """See `ResponseSink`."""
        if attempt.begun:
            if head.status or not end_stream:
                raise StreamError(ErrorCode.PROTOCOL_ERROR, "second head in a response")
        elif head.status < 200:
            attempt.early_head(head, end_stream)
            return True
        elif not head.is_answer or (head.status != 200 and not end_stream):
            raise StreamError(ErrorCode.PROTOCOL_ERROR, f"HTTP status {head.status} without gRPC")
        else:
            is_error = end_stream and head.grpc_status in GRPC_STATUSES
            if is_error and attempt.try_failover_not_here(head):
                return True
            attempt.begun = True
            self.portion.status = head.status
            self.request.drop_retained()
        if not end_stream:
            self.merge.head_came(head)
            return True
        status = head.grpc_status
        if attempt.try_outlive_exit(status):
            return True
        if status == NO_STATUS:
            status = status_of_http(self.portion.status)
        self._answered(attempt, status)
        self.merge.branch_ended(self, status, decode_message(head.grpc_message), head)
        return True

    def shown(self, attempt: GrpcAttempt, payload: Payload, end_stream: int) -> Payload | None:
        """See `ResponseSink`: nothing, until it is its turn."""
        if not attempt.begun:
            attempt.broken_response("DATA before the head of a response")
            return None
        error = whole_error(payload)
        if error and self.arrival_cutter().is_between and attempt.try_leave_for(error):
            return None
        self.portion.bytes_out += len(payload)
        in_flight_messages = in_flight_messages_of(attempt)
        if in_flight_messages is not None:
            in_flight_messages.arrived(payload, self.call.relay.now)
        if not self.response.push(payload):
            return None
        self.pending_responses.arrived(payload)
        if end_stream:
            self._answered(attempt, GrpcStatus.UNKNOWN)
            self.merge.branch_ended(self, GrpcStatus.UNKNOWN, "no status", None)
        else:
            self.merge.pump()
        return None

    def _answered(self, attempt: GrpcAttempt, status: int) -> None:
        """The backend's part is over."""
        portion, relay = self.portion, self.call.relay
        self.response.ended = True
        attempt.port.bytes_sent += portion.bytes_in
        attempt.port.bytes_received += portion.bytes_out
        relay.accounts.attempt_ended(attempt, Outcome.ANSWERED, status, relay.now)
        attempt.detach(None if self.request.finished else ErrorCode.NO_ERROR)
        self._drop_request()

    def failed(
        self,
        attempt: GrpcAttempt,
        outcome: Outcome,
        reason: Reason,
        detail: str,
        status: GrpcStatus | None,
    ) -> None:
        """See `ResponseSink`."""
        self._drop_request()
        self.merge.branch_lost(self, outcome, detail, reason, status)

    def cut_off(self, attempt: GrpcAttempt, code: int) -> None:
        """See `ResponseSink`: others may go on."""
        if attempt.end_and_resume(Outcome.RESET):
            return
        self.failed(attempt, Outcome.RESET, *attempt.told_of_reset(code))

    def owed(self) -> PendingResponses | None:
        """See `ResponseSink`."""
        return self.pending_responses

    def has_asked(self, model: bytes) -> bool:
        """See `ResponseSink`: perhaps another branch has."""
        return self.merge.has_asked(model)

    @property
    def is_done(self) -> bool:
        """Whether it may end however it does: all is answered, and nothing more is asked."""
        pending_responses = self.pending_responses
        return self.is_leaving and not (
            pending_responses.counted or pending_responses.has_uncounted
        )

    # Answers on their way to the client

    def arrival_cutter(self) -> MessageCutter:
        """What cuts the answers that are still to come into messages."""
        cutter = self.cutter.copy()
        for payload in self.response.queue or ():
            at = 0
            while at < len(payload):
                at = cutter.advance(payload, at)
        return cutter

    def peek(self) -> bytes:
        """The first bytes that wait, as many as tell what the next answer is."""
        data = b""
        for payload in self.response.queue or ():
            data += bytes(payload[: ANSWER_HEAD_BYTES - len(data)])
            if len(data) >= ANSWER_HEAD_BYTES:
                break
        return data

    def take(self) -> Payload:
        """What comes next of the message under way. Its sender gets the room back."""
        response, attempt = self.response, self.attempt
        assert response.queue
        cutter = self.cutter
        is_start = cutter.is_between
        piece = response.pull(cutter.advance(response.queue[0], 0))
        if is_start and len(piece) > PREFIX_SIZE and piece[PREFIX_SIZE] == ERROR_TAG:
            # Only what is certain counts: of good answers nobody is told.
            text = "" if piece[0] else error_text(bytes(piece))
            if attempt is not None:
                relay = self.call.relay
                relay.retry.note_error(attempt.backend, text)
                relay.dispatcher.blame.answered_with_error(attempt, GrpcStatus.UNAVAILABLE, text)
        self.credit(len(piece))
        return piece

    def credit(self, size: int) -> None:
        """Some bytes of answers went out, beside those that `response.owed` knows of: their sender
        gets the room back."""
        credit_backend(self.attempt, self.response, size)

    # Ends

    def detach(self, code: ErrorCode | None) -> None:
        """Leave the backend's connection, resetting the stream there."""
        if self.attempt is not None:
            self.attempt.detach(code)

    def _drop_request(self) -> None:
        """The backend takes no more: what waits for it is dropped."""
        self.portion.finished = True
        request = self.request
        waited = request.waiting
        unpaid = waited - min(request.replayed, waited)
        request.clear()
        request.sink = None
        self.call.drop_upload(unpaid)

    def leave(self, outcome: Outcome) -> None:
        """The call is over, or everything of this branch was said."""
        self.detach(ErrorCode.CANCEL)
        self.call.relay.accounts.stop(self.portion, outcome)
        keep_no_accounts(self.attempt, self.call.relay.now)  # it may never have begun
        self.portion.finished = True
        self.portion.attempt = None  # they point at each other
        self.request.clear()
        self.response.clear()
        self.response.taker = self.errors = None
        self.pending_responses.close()
        self.request.owner = self.response.owner = None
        self.response.opposite = self.call.relay.no_pipe
