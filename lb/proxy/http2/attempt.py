"""A gRPC call at one backend: a stream of one of its connections, and what it answers.

An answer goes to its `ResponseSink`: to the client as it comes, but for those of streams. While
nothing of it has gone there, another attempt may take the place of this one, with what the pipe of
the request has retained: when this one ends, when its backend is silent, or when it answers that it
cannot serve the call. Beside it there may be a second one (`lb.proxy.http2.hedge`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Final

from lb.domain.backend import Backend, BackendKind, Port
from lb.domain.operation import OperationKind
from lb.domain.outcome import Outcome, Reason
from lb.domain.schedule import Ending
from lb.kserve.errors import GRPC_STATUSES, NOT_READY, Meaning, meaning
from lb.kserve.operations import MODEL_INFER
from lb.kserve.pending_responses import PendingResponses
from lb.proxy.exchange import Attempt, Exchange
from lb.proxy.http2.call import Call
from lb.proxy.http2.connection import Http2Connection
from lb.proxy.http2.replies import not_run, status_trailers
from lb.proxy.lost import abandoned_until, report_abandoned
from lb.proxy.retry import Next, outcome_of_silence
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.grpc.status import GrpcStatus, decode_message, status_of_http, status_of_reset
from lb.wire.http2.flow import UNCOUNTED, Payload, Pipe
from lb.wire.http2.frames import ErrorCode, StreamError, pack_header, window_update
from lb.wire.http2.heads import NO_STATUS, ResponseHead

_ANSWERED: Final = Outcome.ANSWERED
_GOOD: Final = Ending.GOOD
_INFERENCE: Final = OperationKind.INFERENCE
_OK: Final = 200
_TOO_MANY: Final = 429
_UNUSABLE: Final = "status OK without exactly one whole message"
_FOREIGN: Final = "HTTP status 200 with a content-type that is not gRPC's"
_ALL_CANCELLED: Final = "Cancelling all calls"
_UNSEEN: Final = "CANCELLED"
"""What gRPC's library says of a call that it drops before the server has seen it."""
_HELD_AT_MOST: Final = UNCOUNTED
"""Bytes of a message that are held while it is not whole, so that another backend may be asked
instead. They are as few as the memory budget does not count, and never so many that the backend
waits for its window."""
EXITING: Final = frozenset({GrpcStatus.CANCELLED, GrpcStatus.UNAVAILABLE})
"""What a server says that shuts down, to streams that were not half-closed."""
_MAX_EARLY_HEADS: Final = 10
"""Informational responses to one request."""


class ResponseSink:
    """Where the response of an attempt goes: here to the client, as it comes. What streams do with
    it beside that extends this."""

    __slots__ = ()

    noun: ClassVar[str] = "request"
    """What a backend resets, to clients."""

    def take_head(self, attempt: GrpcAttempt, head: ResponseHead, end_stream: bool) -> bool:
        """The head of the response arrived, or its trailers. False: they go to the client."""
        return False

    def shown(self, attempt: GrpcAttempt, payload: Payload, end_stream: int) -> Payload | None:
        """Payload of the response arrived. Returns what goes to the client for it; None: nothing
        does now."""
        return payload

    def owed(self) -> PendingResponses | None:
        """What the backend owes, where the requests of a stream are known one by one."""
        return None

    def has_asked(self, model: bytes) -> bool:
        """Whether it is a stream that has asked for a model."""
        return False

    @property
    def fails_over(self) -> bool:
        """Whether another backend may be asked, where this one answers with an error."""
        return True

    def will_fail(self, attempt: GrpcAttempt, outcome: Outcome) -> None:
        """The attempt ends so; whether there is another one is not known yet."""

    def may_retry(self, outcome: Outcome) -> bool:
        """Whether there may be another attempt, as far as the sink knows."""
        return True

    def retry(self, attempt: GrpcAttempt, outcome: Outcome, *, is_unsent: bool) -> None:
        """There is another attempt."""
        attempt.call.go_again(outcome, is_unsent=is_unsent)

    def give_place(self, attempt: GrpcAttempt) -> None:
        """The attempt beside it has taken its place."""
        hedge = attempt_of(attempt.call)
        if hedge is not None:
            hedge.take_over()

    def take_resumption(self, attempt: GrpcAttempt, outcome: Outcome) -> bool | None:
        """Take another attempt for the requests of a stream that have no answer yet, which goes on
        where this one has ended.

        Returns:
            False where they may have none; None where this is no such stream, or some of these
            requests cannot be sent again.
        """
        return None

    def resume(self, attempt: GrpcAttempt, outcome: Outcome) -> None:
        """There is such an attempt."""

    def failed(
        self,
        attempt: GrpcAttempt,
        outcome: Outcome,
        reason: Reason,
        detail: str,
        status: GrpcStatus | None,
    ) -> None:
        """There is no response, and no other attempt."""
        attempt.call.fail(reason, detail, status=status)

    def backend_hung(self, attempt: GrpcAttempt) -> None:
        """The backend is silent."""
        attempt.leave_backend(outcome_of_silence(attempt))

    def give_way(self, attempt: GrpcAttempt) -> None:
        """The memory budget wants the bytes back that are held for the attempt."""
        attempt.call.evict()

    def cut_off(self, attempt: GrpcAttempt, code: int) -> None:
        """The backend reset the stream within the response: so ends the client's."""
        call = attempt.call
        call.grpc_status = status_of_reset(code)
        call.close(Outcome.RESET, Reason.UPSTREAM_RESET, None)
        call.server.reset(call.client_id, code)


TO_CLIENT: Final = ResponseSink()


class UnwantedAnswer(ResponseSink):
    """The response of an attempt that nobody waits for any more: it is dropped."""

    __slots__ = ("_outcome", "_timer")

    def __init__(self, attempt: GrpcAttempt, outcome: Outcome) -> None:
        """`outcome`: of the attempt, if it is not answered."""
        relay = attempt.call.relay
        left_s = abandoned_until(attempt) - relay.clock()
        self._outcome = outcome
        self._timer = relay.timers.after(max(left_s, 0.0), partial(self._give_up, attempt))

    def take_head(self, attempt: GrpcAttempt, head: ResponseHead, end_stream: bool) -> bool:
        """See `ResponseSink`."""
        if end_stream:
            self._end(attempt, Outcome.ANSWERED, status_in(head))
        return True

    def shown(self, attempt: GrpcAttempt, payload: Payload, end_stream: int) -> Payload | None:
        """See `ResponseSink`."""
        credit_backend(attempt, attempt.response, len(payload))
        if end_stream:
            self._end(attempt, self._outcome)
        return None

    def may_retry(self, outcome: Outcome) -> bool:
        """See `ResponseSink`."""
        return False

    def will_fail(self, attempt: GrpcAttempt, outcome: Outcome) -> None:
        """See `ResponseSink`."""
        self._end(attempt, self._outcome)

    def failed(
        self,
        attempt: GrpcAttempt,
        outcome: Outcome,
        reason: Reason,
        detail: str,
        status: GrpcStatus | None,
    ) -> None:
        """See `ResponseSink`: it is over."""

    def backend_hung(self, attempt: GrpcAttempt) -> None:
        """See `ResponseSink`: that is waited for until it counts as lost."""

    def cut_off(self, attempt: GrpcAttempt, code: int) -> None:
        """See `ResponseSink`."""
        self._end(attempt, self._outcome)

    def _give_up(self, attempt: GrpcAttempt) -> None:
        """The answer will probably never come."""
        report_abandoned(attempt, attempt.call.relay.clock())
        attempt.detach(ErrorCode.CANCEL)
        self._end(attempt, self._outcome)

    def _end(self, attempt: GrpcAttempt, outcome: Outcome, status: int = 0) -> None:
        self._timer.cancel()
        attempt.call.relay.accounts.attempt_ended(attempt, outcome, status)
        attempt.detach(None)
        attempt.drop_pipes()


class GrpcAttempt(Attempt):
    """One try of a call. Its pipes are the call's, but for a second attempt, and for one of several
    that a stream has at once: those have their own."""

    __slots__ = (
        "begun",
        "call",
        "connection",
        "early_heads",
        "held_head",
        "held_text",
        "message_size",
        "request",
        "response",
        "sink",
    )  # fmt: skip

    def __init__(self, call: Call, backend: Backend, port: Port, began_at: float) -> None:
        # HOT PATH (benchmarks/load). What `Attempt` sets is set here, most of it at once: its own
        # constructor costs as much again.
        self.exchange = self.call = call
        self.backend = backend
        self.port = port
        self.began_at = began_at
        self.connected_at = self.first_byte_at = 0.0
        self.erred = self.begun = self.is_set_aside = False
        self.outcome = self.ticket = self.in_flight_messages = None
        self.connection = self.held_head = None
        self.message_size = self.early_heads = 0
        self.sink = TO_CLIENT
        self.request = call.request
        self.response = call.response

    call: Call
    """As `exchange`, which is only a part of it where a stream has several attempts at once."""
    begun: bool
    """Some of its response beside the head has gone to the client, or waits for its turn."""
    connection: Http2Connection | None
    """The connection, once it has a stream there."""
    held_head: ResponseHead | None
    """The head of the response to an inference, or to a stream that may move, until a message
    comes."""
    held_text: bytes
    """The beginning of that message; set with `held_head`."""
    message_size: int
    """Bytes of the message that is its answer, once that goes to the client."""
    early_heads: int
    """Informational responses so far."""
    sink: ResponseSink
    """Where its response goes."""
    request: Pipe[Any]
    response: Pipe[Any]

    @property
    def has_stream(self) -> bool:
        """Whether it has, or had, one on a connection."""
        return self.request.sink is not None

    def may_use(self, model: bytes) -> bool:
        """See `Attempt`. A stream uses a model while answers of it may come."""
        owed = self.sink.owed()
        return super().may_use(model) if owed is None else owed.may_owe(model)

    def has_used(self, model: bytes) -> bool:
        """See `Attempt`."""
        return self.sink.has_asked(model)

    def leave_stream(self) -> None:
        """End a stream at its backend, as soon as all is answered that it was asked. What follows
        goes over another one."""
        if self.call.part is not None:
            self.call.part.leave_backend(self.backend)

    # The answer

    def response_head(self, head: ResponseHead, end_stream: bool) -> None:
        """The head of the response arrived, or its trailers."""
        # HOT PATH (benchmarks/load). Twice per call.
        if self.sink is not TO_CLIENT and self.sink.take_head(self, head, end_stream):
            return
        call = self.call
        if not self.begun:
            if self.held_head is not None:
                self._end_held(self.held_head, head, end_stream)
                return
            if not head.is_answer:
                self._other_head(head, end_stream)
                return
            if not end_stream:
                if call.operation.kind is _INFERENCE and head.status == _OK:
                    self.held_head = head
                    self.held_text = b""
                else:
                    self.pass_head(head)
                    self._begin(head.status)
                return
            if self._withhold(head):
                return
            is_first = not call.begun
            self._begin(head.status)
            response = self.response
            response.ended = True
            self._answered(head.grpc_status)
            response.finished = True
            block = head.block if is_first else _as_trailers(head)
            if head.not_run and call.head.facts.passed and not call.may_have_run:
                block += not_run(head.not_run)
            if call.head.facts.discloses:
                block += call.facts()
            call.server.send_head(call.client_id, block, end_stream=True)
            call.pipe_finished(response)
            return
        if head.status or not end_stream:
            raise StreamError(ErrorCode.PROTOCOL_ERROR, "second head in a response")
        response = self.response
        response.ended = True
        status, block = head.grpc_status, head.block
        connection = self.connection
        if (
            not status
            and connection is not None
            and self.sink is TO_CLIENT
            and call.request.finished
            and not (call.request.held or response.queue or call.server.waiting)
            and call.part is None
            and call.permit is None
            and (self.ticket is not None or call.hints is None)
            and self.message_size in (0, call.bytes_out)
            and not call.head.facts.discloses
        ):
            call.server.send_head(call.client_id, block, end_stream=True)
            self._end_with_call(connection)
            return
        if status > 0:
            self.tell_of_error(head)
        if not status and self.message_size not in (0, call.bytes_out):
            block = self._answered_badly(block)
        else:
            self._answered(status)
        if call.head.facts.discloses:
            block += call.facts()
        if response.queue:
            response.trailers = block
            return
        response.finished = True
        call.server.send_head(call.client_id, block, end_stream=True)
        call.pipe_finished(response)

    def _end_with_call(self, connection: Http2Connection) -> None:
        """A good response has gone to the client, and there is nothing left to send: attempt and
        call are over."""
        # HOT PATH (benchmarks/load). `_answered` and `Call.pipe_finished` in one; those are the
        # reference.
        call, response = self.call, self.response
        request, server, relay = call.request, call.server, call.relay
        response.finished = True
        call.grpc_status = 0
        connection.close_stream(request.sink_id)
        self.connection = request.sink = None
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None
        server.close_stream(call.client_id)
        request.owner = response.owner = None
        response.opposite = relay.no_pipe
        now = relay.now
        relay.accounts.answered_whole(self, 0, now)
        ticket = self.ticket
        if ticket is not None:
            relay.accounts.queue.scheduler.complete(ticket, now, _GOOD)

    def end_whole(
        self, head: ResponseHead, payload: bytes, size: int, trailers: ResponseHead
    ) -> bool:
        """The whole answer came: pass it on. False when that takes more than a write. `size` is
        less than each peer takes in a frame."""
        # HOT PATH (benchmarks/bench_http2_relay.py). `response_head` twice and `response_data` in
        # one for the common unary call; those are the reference.
        call, response = self.call, self.response
        server = call.server
        if (
            self.begun
            or call.hedge is not None
            or self.held_head is not None
            or self.sink is not TO_CLIENT
            or size > response.credit
            or size > server.credit
            or server.congested
            or server.fresh
            or call.head.facts.discloses
        ):
            return False
        relay = call.relay
        now = relay.now
        self.begun = call.begun = response.ended = response.finished = True
        call.status, self.first_byte_at, call.bytes_out = head.status, now, size
        server.credit -= size
        if not server.dirty:
            server.mark()
        stream_id = call.client_id
        server.out += (
            pack_header(head.frame, 4, stream_id),
            head.block,
            pack_header(size << 8, 0, stream_id),
            payload,
            pack_header(trailers.frame, 5, stream_id),
            trailers.block,
        )
        request = call.request
        connection = self.connection
        ticket = self.ticket
        status = trailers.grpc_status
        if (
            connection is None
            or not request.finished
            or status
            or (ticket is None and call.hints is not None)
            or call.permit is not None
        ):
            self._end_slowly(trailers)
            return True
        call.grpc_status = status
        connection.close_stream(request.sink_id)
        self.connection = request.sink = None
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None
        if request.held:
            request.clear()  # the memory budget has what was retained
        else:
            request.retained = None
        server.close_stream(stream_id)
        request.owner = response.owner = None
        response.opposite = relay.no_pipe
        relay.accounts.answered_whole(self, status, now)
        if ticket is not None:
            relay.accounts.queue.scheduler.complete(ticket, now, _GOOD)
        return True

    def _end_slowly(self, trailers: ResponseHead) -> None:
        """The whole answer went out, and something is left to be done."""
        if trailers.grpc_status > 0:
            self.tell_of_error(trailers)
        self._answered(trailers.grpc_status)
        self.call.pipe_finished(self.response)

    def _other_head(self, head: ResponseHead, end_stream: bool) -> None:
        """What came is not the head of an answer to a call."""
        if head.status < 200:
            self.early_head(head, end_stream)
            return
        # "gRPC over HTTP2" has clients take this for an error, whatever follows.
        self.detach(None if end_stream and self.request.finished else ErrorCode.CANCEL)
        self.failed(Outcome.PROTOCOL_ERROR, _FOREIGN, status_of_http(head.status))

    def large_response_head(self, end_stream: bool) -> None:
        """The head of the response is too large, or its trailers are; they are skipped."""
        self.detach(None if end_stream and self.request.finished else ErrorCode.CANCEL)
        self.failed(Outcome.HEAD_TOO_LARGE)

    def early_head(self, head: ResponseHead, end_stream: bool) -> None:
        """An informational response, which gRPC has no use for, or none at all."""
        if not head.status or end_stream:
            raise StreamError(ErrorCode.PROTOCOL_ERROR, "response without a final status")
        if head.status == 101:
            raise StreamError(ErrorCode.PROTOCOL_ERROR, "status 101")  # RFC 9113 8.6
        self.early_heads += 1
        if self.early_heads > _MAX_EARLY_HEADS:
            raise StreamError(ErrorCode.PROTOCOL_ERROR, "too many informational responses")

    def response_data(self, payload: Payload, end_stream: int) -> None:
        """Payload of the response arrived."""
        # HOT PATH (benchmarks/load). Once per DATA frame, or part of one.
        if self.sink is not TO_CLIENT:
            shown = self.sink.shown(self, payload, end_stream)
            if shown is None:
                return
            payload = shown
        call = self.call
        if not self.begun:
            head = self.held_head
            if head is None:
                self.broken_response("DATA before the head of a response")
                return
            if self.held_text:
                payload = b"".join((self.held_text, payload))
            size = len(payload)
            self.message_size = int.from_bytes(payload[1:PREFIX_SIZE], "big") + PREFIX_SIZE
            if (
                size < self.message_size
                and not end_stream
                and size <= min(_HELD_AT_MOST, self.response.window_size // 2)
            ):
                self.held_text = bytes(payload)
                self.message_size = 0
                return
            self.pass_head(head)
            self._begin(head.status)
        call.bytes_out += len(payload)
        if end_stream:
            self.response.ended = True
            self._answered(NO_STATUS)
        call.server.send_data(self.response, payload)

    def _withhold(self, head: ResponseHead) -> bool:
        """Keep a response without a message from the client if another backend is to do better, or
        if it claims to be OK. False where it is for the client."""
        if head.grpc_status > 0:
            return self.sink.fails_over and self.try_failover(head)
        if head.grpc_status or self.call.operation.kind is not _INFERENCE or head.status != _OK:
            return False
        self.unusable_answer()
        return True

    def _end_held(self, held: ResponseHead, trailers: ResponseHead, end_stream: bool) -> None:
        """A response to an inference ends without a message: if its status is OK another backend
        may be asked, since nothing of it went to the client."""
        if trailers.status or not end_stream:
            raise StreamError(ErrorCode.PROTOCOL_ERROR, "second head in a response")
        if not trailers.grpc_status:
            self.unusable_answer()
            return
        self.pass_head(held)
        self._begin(held.status)
        if self.held_text:
            self.response_data(self.held_text, 0)
        self.response_head(trailers, end_stream)

    def pass_head(self, head: ResponseHead) -> None:
        """The head of the response goes to the client, unless that has the head of an earlier
        attempt."""
        call = self.call
        if not call.begun:
            call.begun = True
            call.status = head.status
            call.server.send_head(call.client_id, head.block, end_stream=False)

    def _begin(self, status: int) -> None:
        """The response goes to the client from now on: nobody waits for another attempt."""
        call = self.call
        if call.hedge is not None:
            call.cancel_hedge()
        self.begun = call.begun = True
        self.first_byte_at = call.relay.now
        call.status = status
        self.held_head = None
        request = call.request
        if request.held:
            request.drop_retained()
        else:
            request.retained = None
            request.retained_size = 0

    def unusable_answer(self) -> None:
        """The backend says that all is well, but the response contains no whole message; nothing of
        it went to the client."""
        self.end_stream()
        self.failed(Outcome.PROTOCOL_ERROR, _UNUSABLE)

    def _answered_badly(self, block: bytes) -> bytes:
        """As `unusable_answer` where some of it did go to the client. The trailers for it: of more
        than one message clients make what they like."""
        call = self.call
        if call.bytes_out > self.message_size:
            self._answered(GrpcStatus.OK, Outcome.PROTOCOL_ERROR)
            return block
        _, text = call.relay.retry.failure(call, Outcome.PROTOCOL_ERROR)
        call.reason = Reason.UPSTREAM_PROTOCOL
        self._answered(GrpcStatus.INTERNAL, Outcome.PROTOCOL_ERROR)
        return status_trailers(GrpcStatus.INTERNAL, f"{text}: {_UNUSABLE}")

    def broken_response(self, detail: str) -> None:
        """The backend broke the protocol in its response."""
        if self.connection is not None:
            error = StreamError(ErrorCode.PROTOCOL_ERROR, detail)
            self.connection.on_stream_error(self.request.sink_id, error)

    def _answered(self, status: int, outcome: Outcome = _ANSWERED) -> None:
        """The backend's part is over."""
        call = self.call
        call.grpc_status = status
        port = self.port
        port.bytes_sent += call.bytes_in
        port.bytes_received += call.bytes_out
        relay = call.relay
        if status < 0:
            code = status_of_http(call.status)
            # A proxy before the Triton has answered. That the backend is busy only 429 says: what
            # 502 to 504 become over gRPC says so of a Triton, but here it may be dead.
            told = code if call.status == _TOO_MANY else GrpcStatus.UNKNOWN
            relay.dispatcher.blame.answered_with_error(self, told, "")
            status = code
        relay.accounts.attempt_ended(self, outcome, status, relay.now)
        connection = self.connection
        if connection is not None:
            request = self.request
            if not request.finished:
                # The answer is complete and the client still sends: nobody reads that.
                connection.reset(request.sink_id, ErrorCode.NO_ERROR)
                connection.forget(request)
                waited = request.held
                request.clear()
                call.drop_upload(waited)
            connection.close_stream(request.sink_id)
            self.connection = None
            request.sink = None

    # What pipes ask of their owner

    @property
    def bytes_in(self) -> int:
        """Payload of the request."""
        return self.call.bytes_in

    @property
    def bytes_out(self) -> int:
        """Payload of the answer."""
        return self.call.bytes_out

    def count_answer(self, size: int) -> None:
        """Some of the answer goes on unseen."""
        self.call.bytes_out += size

    def passes(self, _pipe: Pipe[Any]) -> bool:
        """Whether payload of the answer goes on as it comes, but for being counted."""
        return self.begun and self.sink is TO_CLIENT

    @property
    def is_between(self) -> bool:
        """See `BackendSide`. Of one message it is known where it ends."""
        return self.call.bytes_out in (0, self.message_size)

    def pipe_finished(self, pipe: Pipe[Any]) -> None:
        """END_STREAM went out on one side."""
        self.call.pipe_finished(pipe)

    def client_stalled(self) -> None:
        """The client has taken nothing of the answer that waits for it."""
        self.call.client_stalled()

    @property
    def charged_to(self) -> Exchange:
        """See `Call`."""
        return self.exchange.whole

    def evict(self) -> None:
        """The memory budget wants these bytes back."""
        self.sink.give_way(self)

    # How it ends without an answer

    def detach(self, code: ErrorCode | None) -> None:
        """Leave the backend's connection, resetting the stream there."""
        connection = self.connection
        if connection is None:
            return
        self.connection = None
        stream_id = self.request.sink_id
        connection.forget(self.request)
        if code is not None and connection.transport is not None:
            connection.reset(stream_id, code)
        connection.close_stream(stream_id)

    def end_stream(self) -> None:
        """The backend has said all; the stream ends there, too."""
        connection, request = self.connection, self.request
        if connection is not None:
            if not request.finished:
                connection.reset(request.sink_id, ErrorCode.NO_ERROR)
            connection.close_stream(request.sink_id)

    def failed(self, outcome: Outcome, detail: str = "", status: GrpcStatus | None = None) -> None:
        """It ended without an answer; it is off its connection already.

        Args:
            outcome: how it ended.
            detail: of that, for the client.
            status: for the client, where it is not that of the outcome.
        """
        exchange = self.exchange
        self.sink.will_fail(self, outcome)
        if not (exchange.finished or self.end_and_retry(outcome)):
            reason, text = self.call.relay.retry.failure(exchange, outcome)
            text = f"{text}: {detail}" if detail else text
            self.sink.failed(self, outcome, reason, text, status)

    def end_and_retry(self, outcome: Outcome) -> bool:
        """End it, and have the call placed again if it may be; the one beside it takes its place
        if that was sent whole. False: nothing follows it."""
        is_unsent = not self.has_stream
        is_resumed = self.end_and_resume(outcome)
        if is_resumed is not None:
            return is_resumed
        follows = self.take_next(outcome, is_unsent=is_unsent)
        self.go_on_after(follows, outcome, is_unsent=is_unsent)
        return follows is not Next.NOTHING

    def end_and_resume(self, outcome: Outcome) -> bool | None:
        """End it, and have a stream go on with what it has not answered, if `take_resumption` of
        its sink says so."""
        self.leave(outcome)
        is_resumed = self.sink.take_resumption(self, outcome)
        if is_resumed:
            self.sink.resume(self, outcome)
        return is_resumed

    def take_next(self, outcome: Outcome, *, is_unsent: bool) -> Next:
        """Decide what follows it, once for each outcome: a re-run is taken out of the budget."""
        if not self.sink.may_retry(outcome):
            return Next.NOTHING
        call = self.call
        hedge = self.exchange.hedge
        return call.relay.retry.after_failure(
            self.exchange,
            outcome,
            body_retained=is_unsent or self.request.retained is not None,
            response_begun=self.begun,
            is_hedge_sent=isinstance(hedge, GrpcAttempt)
            and hedge.request.finished
            and not call.request.queue,
        )

    def go_on_after(self, follows: Next, outcome: Outcome, *, is_unsent: bool) -> None:
        """Have that follow, now that it has ended."""
        if follows is Next.AGAIN:
            self.sink.retry(self, outcome, is_unsent=is_unsent)
        elif follows is Next.HEDGE:
            self.sink.give_place(self)

    def leave(self, outcome: Outcome) -> None:
        """It is over, and off its connection but for what that has noted."""
        request = self.request
        if self.connection is not None:
            self.connection.forget(request)
            self.connection = None
        self.call.relay.accounts.attempt_ended(self, outcome)
        request.sink = None

    def backend_hung(self) -> None:
        """The backend is silent: fail over, if that is allowed and there is another one."""
        # The end of another one may have taken it along.
        if self.outcome is None and self.is_hung:
            relay = self.call.relay
            relay.now = relay.clock()
            self.sink.backend_hung(self)

    def leave_backend(self, outcome: Outcome) -> None:
        """Have the call fail over, if that is allowed and there is another backend. Otherwise the
        attempt goes on, unless nothing is to be expected of it (`outcome_of_silence`). One that has
        begun to answer may answer the rest later."""
        if self.outcome is not None or self.exchange.finished:
            return
        if self.begun:
            if outcome is Outcome.SILENT:
                self.try_resume(outcome)
            return
        ended = outcome if self.has_stream else Outcome.CONNECT_TIMEOUT
        if outcome is Outcome.SILENT:
            self.detach(ErrorCode.CANCEL)
            self.failed(ended)
        else:
            self.try_replace(ended)

    def try_outlive_exit(self, status: int) -> bool:
        """Have a stream go on whose server ends it with this status since it shuts down, if
        `take_resumption` of its sink says so. The server has ended its stream already."""
        outcome = Outcome.CUT_OFF
        if (
            status not in EXITING
            or self.call.request.ended
            or not self.sink.take_resumption(self, outcome)
        ):
            return False
        self.end_stream()
        self.leave(outcome)
        self.sink.resume(self, outcome)
        return True

    def try_resume(self, outcome: Outcome) -> bool:
        """End it, which is under way, if a stream may go on with what it has not answered. False:
        it goes on."""
        if not self.sink.take_resumption(self, outcome):
            return False
        self.detach(ErrorCode.CANCEL)
        self.leave(outcome)
        self.sink.resume(self, outcome)
        return True

    def try_leave_for(self, error: str) -> bool:
        """End it, which is under way, since its server says in place of an answer that it runs no
        request for the model. Only if a stream may go on elsewhere with this one and those behind
        it; False: the error is for the client."""
        if meaning(error) not in NOT_READY:
            return False
        self.call.relay.retry.note_error(self.backend, error)
        return self.try_resume(Outcome.NOT_HERE)

    def try_replace(self, outcome: Outcome) -> bool:
        """End it, which is under way, if another attempt may take its place; that does so then.
        False: it goes on."""
        is_unsent = not self.has_stream
        follows = self.take_next(outcome, is_unsent=is_unsent)
        if follows is Next.NOTHING:
            return False
        self.detach(ErrorCode.CANCEL)
        self.leave(outcome)
        self.go_on_after(follows, outcome, is_unsent=is_unsent)
        return True

    def leave_parting(self) -> None:
        """Its backend is to become empty: a stream asks nothing of it any more, where it may ask
        another one."""
        if self.call.part is not None:
            self.call.part.leave_parting()

    def backend_stalled(self) -> None:
        """The backend has taken nothing of the request that waits for it."""
        self.detach(ErrorCode.CANCEL)
        self.failed(Outcome.STALLED)

    def upstream_reset(self, code: int) -> None:
        """The backend reset the stream; it is off its connection already."""
        call = self.call
        if code == ErrorCode.REFUSED_STREAM and not self.begun and self.held_head is None:
            call.relay.dispatcher.blame.refused(self)
            self.failed(Outcome.REFUSED)
            return
        if self.begun:
            self.sink.cut_off(self, code)
        elif not (self.exchange.finished or self.end_and_retry(Outcome.RESET)):
            self.sink.failed(self, Outcome.RESET, *self.told_of_reset(code))

    def told_of_reset(self, code: int) -> tuple[Reason, str, GrpcStatus]:
        """Why, in which words and with which status a client is told that the backend did that."""
        text = f"backend {self.backend.name} (grpc) reset the {self.sink.noun} with code {code}"
        return Reason.UPSTREAM_RESET, text, status_of_reset(code)

    # Errors that a backend answers

    def try_failover(self, head: ResponseHead) -> bool:
        """Have the call fail over if its answer, nothing but an error, shows that another backend
        may do better. False: the error is for the client."""
        if self._is_cut_off(head) and self._try_failover_as(Outcome.CUT_OFF):
            return True
        is_broken = self.tell_of_error(head)
        says_why = head.not_run or head.grpc_status in GRPC_STATUSES
        if says_why and self.try_failover_not_here(head):
            return True
        return is_broken and self._try_failover_as(Outcome.BROKEN)

    def _is_cut_off(self, head: ResponseHead) -> bool:
        """Whether a server that shuts down ended the call, whose client did not. gRPC's own servers
        answer CANCELLED to what comes after their GOAWAY, and to what comes just before they send
        it: to that in a word of their library. What still ran gets another text."""
        connection = self.connection
        if connection is None:
            return False
        text = decode_message(head.grpc_message)
        if head.grpc_status == GrpcStatus.CANCELLED:
            return connection.going_away or text == _UNSEEN
        return (
            connection.going_away
            and head.grpc_status == GrpcStatus.UNAVAILABLE
            and text == _ALL_CANCELLED
        )

    def try_failover_not_here(self, head: ResponseHead) -> bool:
        """Have the call fail over if this backend says that it cannot serve it. False: it stays."""
        known = Meaning.NOT_RUN if head.not_run else meaning(decode_message(head.grpc_message))
        is_kept = self.request.retained is not None and self.sink.may_retry(Outcome.NOT_HERE)
        if (
            known is None
            or self.connection is None
            or not self.call.relay.retry.take_failover(self.exchange, known, body_retained=is_kept)
        ):
            return False
        self.end_stream()
        self.failed(Outcome.NOT_HERE)
        return True

    def tell_of_error(self, head: ResponseHead) -> bool:
        """The backend answers with an error. Whether that says that it is broken."""
        text = decode_message(head.grpc_message)
        return self.call.relay.dispatcher.blame.answered_with_error(self, head.grpc_status, text)

    def _try_failover_as(self, outcome: Outcome) -> bool:
        """Have the call fail over, with that outcome of this attempt, which its backend has ended.
        False: nothing follows."""
        if self.connection is None:
            return False
        follows = self.take_next(outcome, is_unsent=False)
        if follows is Next.NOTHING:
            return False
        self.end_stream()
        self.leave(outcome)
        self.go_on_after(follows, outcome, is_unsent=False)
        return True

    # Beside another attempt

    def take_over(self) -> None:
        """What was sent is the request of this attempt from now on, and its answer goes to the
        client."""
        call = self.call
        self.sink = call.relay.sink_of(call)
        request, response = call.request, self.response
        request.sink, request.sink_id = self.request.sink, self.request.sink_id
        request.finished = True
        self._drop_pipe(self.request)
        self.request = request
        before = call.response
        response.sink, response.sink_id = before.sink, before.sink_id
        response.credit = before.credit
        response.window_limit = before.window_limit
        request.opposite, response.opposite = response, request
        self._drop_pipe(before)
        call.response = response

    def _drop_pipe(self, pipe: Pipe[Any]) -> None:
        pipe.clear()
        pipe.owner = None
        pipe.opposite = self.call.relay.no_pipe

    def give_up(self, outcome: Outcome, code: ErrorCode | None) -> None:
        """End it, beside another one that goes on."""
        if self.call.hedge is self:
            self.call.hedge = None
        request, response = self.request, self.response
        if code is ErrorCode.CANCEL:
            self.abandon(outcome)
        else:
            self.detach(code)
            self.leave(outcome)
        self._drop_pipe(request)
        self._drop_pipe(response)

    def drop_pipes(self) -> None:
        """It has ended, and its pipes point at it."""
        self._drop_pipe(self.request)
        self._drop_pipe(self.response)

    def abandon(self, outcome: Outcome) -> None:
        """Nobody wants the answer: let a Triton compute it, or end the attempt with `outcome`."""
        if not self.run_on(outcome):
            self.detach(ErrorCode.CANCEL)
            self.leave(outcome)

    def run_on(self, outcome: Outcome) -> bool:
        """Let a Triton compute an answer that nobody wants, where Tritons are not told: some
        versions die when a call is cancelled at the wrong moment (server issues 7368 and 8034).
        The attempt stays in flight until it is answered, or is given up as lost and ends with
        `outcome`. False: this is no such attempt."""
        connection, stream_id = self.connection, self.request.sink_id
        if (
            connection is None
            or not self.call.relay.options.withholds_cancellation
            or self.call.operation is not MODEL_INFER
            or self.backend.spec.kind is not BackendKind.TRITON
            or not self.request.finished
            or stream_id in connection.unwritten
            or connection.transport is None
            or connection.streams.get(stream_id) is not self.response
        ):
            return False
        budget, before = self.call.relay.memory_budget, self.response
        request: Pipe[Any] = Pipe(self, budget, 0, 0)
        response: Pipe[Any] = Pipe(self, budget, before.window_size, 0)
        request.ended = request.finished = True
        request.sink, request.sink_id = connection, stream_id
        response.source, response.source_id = connection, stream_id
        response.window, response.owed = before.window, before.owed
        response.ended = before.ended
        request.opposite, response.opposite = response, request
        connection.forget(self.request)
        self.request.sink = None
        connection.streams[stream_id] = response
        self.request, self.response = request, response
        self.begun = True
        self.sink = UnwantedAnswer(self, outcome)
        return True


def _as_trailers(head: ResponseHead) -> bytes:
    """A response that is nothing but an error, to a client that has a head already."""
    return status_trailers(status_in(head), decode_message(head.grpc_message))


def status_in(head: ResponseHead) -> int:
    """The status of a response that ends with `head`: gRPC's, or the one that its HTTP status
    means."""
    return status_of_http(head.status) if head.grpc_status == NO_STATUS else head.grpc_status


def credit_backend(attempt: GrpcAttempt | None, response: Pipe[Any], size: int) -> None:
    """`size` bytes of a response of `attempt` were taken off it: its backend may send as many more,
    if it is still there."""
    increment = response.went_out(size)
    connection = attempt.connection if attempt is not None else None
    if increment and connection is not None:
        connection.out.append(window_update(response.source_id, increment))
        connection.mark()


def attempt_of(call: Call) -> GrpcAttempt | None:
    """The last attempt of a call; None before the first."""
    attempt = call.attempt
    return attempt if isinstance(attempt, GrpcAttempt) else None
