"""What one of several backends is asked, and answers, of one stream of a client. See
`stream_merge`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lb.domain.backend import AppProtocol, Backend, Port
from lb.domain.errors import RequestRefused
from lb.domain.outcome import OUTCOME_REASONS, Outcome, Reason
from lb.kserve.errors import GRPC_STATUSES, meaning
from lb.kserve.gate import ERROR_TAG
from lb.kserve.stream_answers import ANSWER_HEAD_BYTES, error_text
from lb.kserve.stream_debts import Debts, StreamMessage
from lb.proxy.exchange import Exchange
from lb.proxy.failure import upstream_detail
from lb.proxy.http2.stream_answer import StreamAttempt
from lb.proxy.http2.stream_pipes import Share, move_queue, move_retained
from lb.proxy.http2.stream_work import Underway, Work
from lb.wire.grpc.cutter import MessageCutter
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.grpc.status import GrpcStatus, decode_message, status_of_http, status_of_reset
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import ErrorCode, StreamError, window_update
from lb.wire.http2.heads import NO_STATUS, ResponseHead

if TYPE_CHECKING:
    from lb.proxy.http2.stream_call import StreamCall
    from lb.proxy.http2.stream_merge import StreamMerge

_SAME_AGAIN: Final = frozenset({Outcome.REFUSED, Outcome.STALE})
"""What a fresh connection to the same backend mends, also for sequences."""
_MAX_EARLY_HEADS: Final = 10


class Branch(Exchange):
    """The part of a stream that one backend serves; it has attempts as a request has.

    What it has got of answers waits in `response` until `StreamMerge` takes it. Without a backend
    it holds errors of our own.
    """

    __slots__ = (
        "cutter", "debts", "early_heads", "has_steps", "is_leaving", "is_movable", "merge",
        "relay", "request", "response", "runs_once",
    )  # fmt: skip

    def __init__(self, merge: StreamMerge) -> None:
        call = merge.call
        super().__init__(AppProtocol.GRPC, call.operation, call.client, call.relay.now)
        self.model = call.model
        self.merge = merge
        self.relay = call.relay
        self.early_heads = 0
        self.is_movable = True
        """Another backend can serve all of its requests: they are for the same model, and belong to
        no sequence."""
        self.runs_once = False
        """Some of them must not run twice."""
        self.has_steps = False
        """Some belong to sequences."""
        self.is_leaving = False
        """Its backend is to become empty, so nothing more is asked of it."""
        self.debts = Debts(call, call.relay.ledger)
        self.cutter = MessageCutter()
        """At the first byte that waits in `response`."""
        options = call.relay.options
        self.request: Pipe[Any] = Share(self, call.request)
        self.request.retained = []
        self.response: Pipe[Any] = Pipe(
            self, call.relay.ledger, options.answer_window, options.stream_window_max
        )
        self._couple()

    def _couple(self) -> None:
        self.request.opposite = self.response
        self.response.opposite = self.request

    def adopt(self) -> None:
        """Take over the one upstream stream that the call has had so far."""
        call = self.merge.call
        attempt = call.stream_attempt
        assert attempt is not None
        attempt.exchange = attempt.branch = self
        self.attempt, self.backend = attempt, call.backend
        self.attempts = call.attempts
        # As near as makes no difference: the message under way goes elsewhere.
        self.bytes_in, self.bytes_out = call.bytes_in, call.bytes_out
        self.is_movable, self.runs_once = call.is_stateless, call.runs_once
        self.has_steps = call.has_steps
        self.tried, self.loss = call.tried, call.loss
        whole, request = call.request, self.request
        request.sink, request.sink_id, request.credit = whole.sink, whole.sink_id, whole.credit
        whole.sink = None
        move_queue(whole, request)
        move_retained(whole, request)
        request.replayed, whole.replayed = whole.replayed, 0
        self.response = self.merge.inbound
        attempt.request, attempt.response = request, self.response
        self._couple()
        link = attempt.link
        if link is None:
            self.relay.pool(attempt.backend).start(attempt)  # it waited for a connection
        elif whole in link.waiting:
            del link.waiting[whole]
            link.waiting[request] = None

    @property
    def stream_attempt(self) -> StreamAttempt | None:
        """Its attempt, as what it is."""
        attempt = self.attempt
        return attempt if isinstance(attempt, StreamAttempt) else None

    @property
    def begun(self) -> bool:
        """The head of its response has come."""
        return self.stream_attempt is not None and self.stream_attempt.begun

    # Accounts of single requests

    @property
    def _underway(self) -> Underway | None:
        """Requests without an answer, as long as answers can be told apart by their number."""
        found = self.stream_attempt.underway if self.stream_attempt is not None else None
        return found if isinstance(found, Underway) else None

    def take_accounts(self, call: StreamCall) -> None:
        """Go on with those of the one upstream stream that the call has had so far."""
        attempt = call.stream_attempt
        assert attempt is not None
        underway = attempt.underway
        if not isinstance(underway, Underway):
            underway = Underway(self.relay.dispatcher.queue, len(self.debts.counted))
        underway.follow(call.mask.cutter())
        attempt.underway = underway

    def account(self, message: StreamMessage, work: Work | None, backend: Backend) -> None:
        """A request goes here."""
        underway = self._underway
        if underway is None:
            return
        if message.has_one_answer and not self.debts.free_models:
            underway.begin(work, backend, self.relay.now)
        else:
            self._keep_no_accounts()

    def _keep_no_accounts(self) -> None:
        underway = self._underway
        if underway is not None and self.stream_attempt is not None:
            underway.close(self.relay.now)
            self.stream_attempt.underway = None

    def begin(self, backend: Backend) -> None:
        """Begin an attempt. What it is asked waits until it is opened."""
        self.relay.dispatcher.begin_attempt(self, branch_attempt, backend, self.relay.now)

    def keep_accounts(self) -> None:
        """Of all requests from the first one on."""
        if self.stream_attempt is not None:
            self.stream_attempt.underway = Underway(self.relay.dispatcher.queue)

    def open(self) -> None:
        """Start the stream at its backend. A message follows at once."""
        assert self.stream_attempt is not None
        self.relay.pool(self.stream_attempt.backend).start(self.stream_attempt)

    # The client's side

    def note(self, message: StreamMessage) -> None:
        """A request goes here: what it means for another attempt."""
        is_bound = message.step is not None or message.version or message.regions
        self.is_movable &= message.model == self.model and not is_bound
        self.runs_once |= message.model in self.relay.dispatcher.reruns.never
        self.has_steps |= message.step is not None

    @property
    def may_run_twice(self) -> bool:
        """See `Exchange`."""
        return self.is_movable and not self.runs_once

    def send(self, payload: Payload) -> bool:
        """Bytes of the client. False when the call had to give way."""
        if self.finished:
            self.merge.call.drop_upload(len(payload))
            return True
        self.bytes_in += len(payload)
        request = self.request
        if request.retained is not None:
            request.retain(payload, self.relay.options.retained_size)
        if request.sink is None:
            return request.push(payload)
        request.sink.send_data(request, payload)
        return not self.merge.call.finished

    def half_close(self, trailers: bytes) -> None:
        """Nothing more is asked here."""
        request = self.request
        if request.ended:
            return
        request.trailers = trailers
        request.ended = True
        if request.sink is not None:
            request.sink.end_stream(request)

    # The backend's side: what its connection and its pool call

    def response_head(self, head: ResponseHead, end_stream: bool) -> None:
        """The head of the response arrived, or its trailers."""
        if self.begun:
            if head.status or not end_stream:
                raise StreamError(ErrorCode.PROTOCOL_ERROR, "second head in a response")
        elif head.status < 200:
            self._early_head(head, end_stream)
            return
        elif not head.is_answer or (head.status != 200 and not end_stream):
            raise StreamError(ErrorCode.PROTOCOL_ERROR, f"HTTP status {head.status} without gRPC")
        else:
            if end_stream and head.grpc_status in GRPC_STATUSES and self._is_refused(head):
                return
            assert self.stream_attempt is not None
            self.stream_attempt.begun = True
            self.status = head.status
            self.request.drop_retained()
        if not end_stream:
            self.merge.begin(head)
            return
        status = head.grpc_status
        if status == NO_STATUS:
            status = status_of_http(self.status)
        self._answered(status)
        self.merge.branch_ended(self, status, decode_message(head.grpc_message), head)

    def _is_refused(self, head: ResponseHead) -> bool:
        """Whether the requests go to another backend, since this one says it cannot serve them."""
        known = meaning(decode_message(head.grpc_message))
        is_kept = self.is_movable and self.request.retained is not None
        if known is None or not self.relay.dispatcher.goes_elsewhere(
            self, known, body_retained=is_kept
        ):
            return False
        self.detach(None if self.request.finished else ErrorCode.NO_ERROR)
        self.attempt_failed(Outcome.NOT_HERE)
        return True

    def _early_head(self, head: ResponseHead, end_stream: bool) -> None:
        self.early_heads += 1
        if not head.status or end_stream or head.status == 101:
            raise StreamError(ErrorCode.PROTOCOL_ERROR, "response without a final status")
        if self.early_heads > _MAX_EARLY_HEADS:
            raise StreamError(ErrorCode.PROTOCOL_ERROR, "too many informational responses")

    def response_data(self, payload: Payload, end_stream: int) -> None:
        """Payload of the response arrived."""
        if not self.begun:
            link = self.stream_attempt.link if self.stream_attempt is not None else None
            if link is not None:
                error = StreamError(ErrorCode.PROTOCOL_ERROR, "DATA before the head of a response")
                link.on_stream_error(self.request.sink_id, error)
            return
        self.bytes_out += len(payload)
        underway = self._underway
        if underway is not None:
            underway.arrived(payload, self.relay.now)
        if not self.response.push(payload):
            return
        if end_stream:
            self._answered(GrpcStatus.UNKNOWN)
            self.merge.branch_ended(self, GrpcStatus.UNKNOWN, "no status", None)
        else:
            self.merge.pump()

    def _answered(self, status: int) -> None:
        """The backend's part is over."""
        self.response.ended = True
        attempt = self.stream_attempt
        assert attempt is not None
        attempt.port.bytes_sent += self.bytes_in
        attempt.port.bytes_received += self.bytes_out
        self.relay.dispatcher.attempt_ended(attempt, Outcome.ANSWERED, status, self.relay.now)
        request = self.request
        self.detach(None if request.finished else ErrorCode.NO_ERROR)
        self._drop_request()

    def upstream_reset(self, code: int) -> None:
        """The backend reset the stream; it is off its connection already."""
        if code == ErrorCode.REFUSED_STREAM and not self.begun:
            self.attempt_failed(Outcome.REFUSED)
            return
        if self._goes_again(Outcome.RESET):
            return
        self._drop_request()
        self.merge.branch_lost(
            self,
            Outcome.RESET,
            f"backend {self.name} (grpc) reset the stream with code {code}",
            Reason.UPSTREAM_RESET,
            status_of_reset(code),
        )

    def backend_hung(self) -> None:
        """The backend is silent: go elsewhere, if that is allowed and there is somebody. What has
        begun waits, since the client may have seen some of it."""
        if self.begun or self.finished or not self.is_under_way:
            return
        outcome = Outcome.CONNECT_TIMEOUT if self.request.sink is None else Outcome.STALLED
        if self._may_go(outcome):
            self.detach(ErrorCode.CANCEL)
            self._go(outcome)

    def backend_stalled(self) -> None:
        """The backend has taken nothing of the requests that wait for it."""
        self.detach(ErrorCode.CANCEL)
        self.attempt_failed(Outcome.STALLED)

    def attempt_failed(self, outcome: Outcome, detail: str = "") -> None:
        """The attempt ended without an answer; it is off its connection already."""
        if self.finished:
            return
        backend = self.backend
        assert backend is not None
        if self._goes_again(outcome):
            return
        self._drop_request()
        text = upstream_detail(backend.name, self.protocol, outcome)
        self.merge.branch_lost(
            self, outcome, f"{text}: {detail}" if detail else text, OUTCOME_REASONS[outcome]
        )

    @property
    def is_done(self) -> bool:
        """Whether it may end however it does: all is answered, and nothing more is asked."""
        debts = self.debts
        return self.is_leaving and not (debts.counted or debts.is_unknown or debts.sequences)

    # Another attempt

    def _goes_again(self, outcome: Outcome) -> bool:
        """End the attempt, and begin another one if that may be."""
        attempt = self.stream_attempt
        if attempt is not None and attempt.link is not None:
            attempt.link.forget(self.request)
            attempt.link = None
        if not self._may_go(outcome):
            self.relay.dispatcher.stop(self, outcome)
            return False
        self._go(outcome)
        return True

    def _may_go(self, outcome: Outcome) -> bool:
        """Whether there is another attempt: elsewhere, or of what must stay at the same backend."""
        request = self.request
        is_held = request.sink is None or request.retained is not None
        return (self.is_movable or outcome in _SAME_AGAIN) and self.relay.dispatcher.may_retry(
            self, outcome, body_retained=is_held, response_begun=self.begun
        )

    def _go(self, outcome: Outcome) -> None:
        dispatcher = self.relay.dispatcher
        dispatcher.stop(self, outcome)
        request = self.request
        if request.sink is not None and not request.rewind():
            return  # the call had to give way
        request.sink = None
        if self.is_movable:
            self.merge.set_aside(self)
            dispatcher.go_again(self, outcome, self._place)
        elif self.backend is not None:
            self.begin(self.backend)
            self.open()

    def _place(self) -> None:
        relay = self.relay
        relay.now = relay.clock()
        try:
            attempt = relay.dispatcher.place(self, branch_attempt, relay.now)
        except RequestRefused as refusal:
            self._drop_request()
            self.merge.branch_lost(self, Outcome.CANCELLED, refusal.detail, refusal.reason)
            return
        assert attempt is not None  # streams do not wait
        self.merge.placed(self, attempt.backend)
        relay.pool(attempt.backend).start(attempt)

    def pipe_finished(self, pipe: Pipe[Any]) -> None:
        """END_STREAM went out: nothing depends on it."""

    def evict(self) -> None:
        """The ledger wants these bytes back: the whole call ends."""
        self.merge.call.evict()

    # What `StreamMerge` calls

    @property
    def name(self) -> str:
        """The backend's."""
        return self.backend.name if self.backend is not None else "-"

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
        response = self.response
        assert response.queue
        cutter = self.cutter
        is_start = cutter.is_between
        piece = response.pull(cutter.advance(response.queue[0], 0))
        if is_start and len(piece) > PREFIX_SIZE and piece[PREFIX_SIZE] == ERROR_TAG:
            # Only what is certain counts: of good answers nobody is told.
            text = "" if piece[0] else error_text(bytes(piece))
            if self.stream_attempt is not None:
                dispatcher = self.relay.dispatcher
                dispatcher.answered_with_error(self.stream_attempt, GrpcStatus.UNAVAILABLE, text)
        increment = response.went_out(len(piece))
        link = self.stream_attempt.link if self.stream_attempt is not None else None
        if increment and link is not None:
            link.out.append(window_update(response.source_id, increment))
            link.mark()
        return piece

    def detach(self, code: ErrorCode | None) -> None:
        """Leave the backend's connection, resetting the stream there."""
        if self.stream_attempt is not None:
            self.stream_attempt.detach(code)

    def _drop_request(self) -> None:
        """The backend takes no more: what waits for it is dropped."""
        self.finished = True
        request = self.request
        waited = request.waiting
        unpaid = waited - min(request.replayed, waited)
        request.clear()
        request.sink = None
        self.merge.call.drop_upload(unpaid)

    def leave(self, outcome: Outcome) -> None:
        """The call is over, or everything of this branch was said."""
        self.detach(ErrorCode.CANCEL)
        self.relay.dispatcher.stop(self, outcome)
        self._keep_no_accounts()  # it may never have begun
        self.finished = True
        self.request.clear()
        self.response.clear()
        self.debts.close()
        self.request.owner = self.response.owner = None
        self.response.opposite = self.relay.no_pipe


def branch_attempt(branch: Branch, backend: Backend, port: Port, began_at: float) -> StreamAttempt:
    """An attempt whose answers are merged with those of others."""
    attempt = StreamAttempt(branch.merge.call, backend, port, began_at)
    attempt.exchange = attempt.branch = branch
    attempt.request, attempt.response = branch.request, branch.response
    return attempt
