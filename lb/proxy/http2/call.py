"""A gRPC call: what its client asks, and how it ends; what backends answer is its attempts'.

Phases: the first message may be awaited to learn the model; then the call is placed, and an attempt
(`lb.proxy.http2.attempt`) waits for a connection or has one; a call that we answer ourselves has no
attempt. What is done with a request beside relaying it is for its `CallPart`. Whatever ends a call,
nothing is left behind on either connection, in timers and in the memory budget.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from typing import Any, Final, Protocol, cast

from lb.access.gate import Credentials
from lb.domain.backend import AppProtocol, Backend
from lb.domain.errors import RequestRefused
from lb.domain.operation import ModelIn, OperationKind
from lb.domain.outcome import Outcome, Reason
from lb.kserve.operations import MODEL_INFER, answers_once
from lb.proxy import failure
from lb.proxy.disclosure import facts_of, new_request_id
from lb.proxy.exchange import Exchange
from lb.proxy.http2.admission import refusal_of
from lb.proxy.http2.connection import Http2Connection
from lb.proxy.http2.inspection import NAME_AT, SEQUENCE_ID, inspect_first
from lb.proxy.http2.memory_guard import MemoryGuard, guard_of
from lb.proxy.http2.replies import (
    ANSWER_HEAD,
    BACKEND_FAILED,
    RESET_CODES,
    UNPARSABLE,
    not_run,
    pushback,
    status_trailers,
    trailers_only,
)
from lb.proxy.http2.shared import Http2Shared
from lb.wire.grpc.message import PREFIX_SIZE, MessageMeter, model_name, nested_name
from lb.wire.grpc.status import GrpcStatus
from lb.wire.http2.codec import COPY_BELOW
from lb.wire.http2.fields import encode_field
from lb.wire.http2.flow import UNCOUNTED, Payload, Pipe
from lb.wire.http2.frames import ErrorCode, Malformed, StreamError, window_update
from lb.wire.http2.heads import NO_LENGTH, NO_STATUS, RequestHead
from lb.wire.rope import Held
from lb.wire.trace_context import TraceContext

_GRPC: Final = AppProtocol.GRPC
_DEPTHS: Final = {ModelIn.MESSAGE: 0, ModelIn.SPEC: 1, ModelIn.TASK: 2}
"""How many messages deep the name of the model stands; TF Serving has it in one of its own."""
_MAY_STREAM: Final = frozenset({OperationKind.STREAM, OperationKind.OTHER})
"""A backend may execute these calls before their clients have sent all of them."""
_MODEL_PEEK: Final = 2048
"""Bytes of the first message that are looked at before a call is placed without a model."""


class BackendSide(Protocol):
    """An attempt, as its call sees it: what ends it, or takes the call elsewhere."""

    def detach(self, code: ErrorCode | None) -> None:
        """Leave the backend's connection, resetting the stream there."""
        ...

    def run_on(self, outcome: Outcome) -> bool:
        """Let a Triton compute an answer that nobody wants. False: this is no such attempt."""
        ...

    def give_up(self, outcome: Outcome, code: ErrorCode | None) -> None:
        """End it, beside another one that goes on."""
        ...

    def leave_backend(self, outcome: Outcome) -> None:
        """Have the call fail over, if that is allowed and there is another backend."""
        ...

    def backend_stalled(self) -> None:
        """The backend has taken nothing of the request that waits for it."""
        ...

    @property
    def is_between(self) -> bool:
        """Whether no message of its response is under way to the client, as far as is known."""
        ...


class Call(Exchange):
    """A gRPC call in the relay: a stream of a client."""

    __slots__ = (
        "begun", "client_id", "guard", "head", "held_back", "look_again_at", "message_end",
        "messages", "part", "relay", "request", "response", "server", "timer",
    )  # fmt: skip

    begun: bool
    """Some of the response has gone to the client."""
    guard: MemoryGuard | None
    """Looks into the request, where its client may not use shared memory."""
    part: CallPart | None
    """Takes the request in the place of the call, where it is not just relayed."""
    timer: Any
    held_back: bool
    """The first message is awaited before the call is placed."""
    look_again_at: int
    """Bytes of the request that must have come before they are looked at again."""
    message_end: int
    """Where its first message ends, as far as that is known. A request that has begun may not end
    before."""

    def __init__(
        self, relay: Http2Shared, server: Http2Connection, stream_id: int, head: RequestHead
    ) -> None:
        # HOT PATH (benchmarks/load). One object and two pipes per call, beside its attempt. What
        # `Exchange` sets is set here, most of it once: its own constructor costs as much again.
        self.protocol = _GRPC
        facts = head.facts
        self.operation = facts.route or relay.decide(head)
        self.client = server.client.name
        self.started_at = relay.now
        self.method = facts.method
        self.path = facts.path
        self.request_id = facts.request_id
        self.model = b""
        self.token = self.held_for = ""
        self.backend = self.attempt = self.hedge = self.hints = self.ticket = None
        self.permit = self.reason = self.loss = self.suspicion = self.trace = None
        self.tried = ()
        self.attempts = self.bytes_in = self.bytes_out = self.status = self.look_again_at = 0
        self.message_end = 0
        self.grpc_status = NO_STATUS
        self.placed_at = self.ended_at = self.held_until = self.sent_at = 0.0
        self.finished = self.begun = self.held_back = self.may_have_run = self.is_part = False
        options = relay.options
        self.relay = relay
        self.server = server
        self.client_id = stream_id
        self.head = head
        self.messages = MessageMeter(options.message_size) if options.message_size else None
        self.guard = self.timer = self.part = None
        request: Pipe[Any] = Pipe(
            self, relay.memory_budget, server.options.stream_window, options.stream_window_max
        )
        response: Pipe[Any] = Pipe(
            self, relay.memory_budget, options.answer_window, options.stream_window_max
        )
        self.request: Pipe[Any] = request
        self.response: Pipe[Any] = response
        request.opposite = response
        response.opposite = request
        request.source = response.sink = server
        request.source_id = response.sink_id = stream_id
        response.credit = server.peer_window

    # The client's side

    def begin(self, end_stream: bool) -> None:
        """The head is complete."""
        # HOT PATH (benchmarks/load).
        relay = self.relay
        relay.accounts.open_exchanges += 1
        self.request.retained = []
        facts = self.head.facts
        if facts.is_plain and not end_stream:
            if facts.timeout_s or relay.options.request_timeout_s:
                self.set_timer()
            self.held_back = True
        else:
            self._begin_other(end_stream)

    def _begin_other(self, end_stream: bool) -> None:
        """Begin a call of which something needs a second look."""
        relay = self.relay
        facts = self.head.facts
        if end_stream:
            self.request.ended = True
            if not self.check_length():
                return
        if facts.timeout_s is not None and facts.timeout_s <= 0:
            self.fail(Reason.DEADLINE, "deadline exceeded")
            return
        if facts.timeout_s or relay.options.request_timeout_s:
            self.set_timer()
        if not self._admit():
            return
        if relay.options.disclosure.request_ids and not facts.request_id:
            self.request_id = new_request_id()
        gate = relay.dispatcher.gate
        if gate.guards_regions:
            self.guard = guard_of(self.operation, facts.credentials, self.server.client, gate)
        self._proceed(end_stream)

    def _admit(self) -> bool:
        """Check its head, and who its client is. False: it was refused, and has been answered."""
        facts, server = self.head.facts, self.server
        refusal = refusal_of(facts, self.relay.options)
        if refusal is not None:
            if refusal.block:
                self.status = refusal.status
                self.answer_whole(refusal.block, refusal.reason)
            else:
                self.fail(refusal.reason, refusal.detail)
            if refusal.spends is not None:
                server.spend(refusal.spends)
        elif facts.credentials is not None:
            try:
                self.relay.dispatcher.admit(
                    self, cast("Credentials", facts.credentials), server.client
                )
            except RequestRefused as refused:
                self.refuse(refused)
        return not self.finished

    def _proceed(self, end_stream: bool) -> None:
        """The head may pass."""
        if self.part is not None:
            self.part.begin(end_stream)
        elif self.operation.model_in in _DEPTHS and not end_stream:
            self.held_back = True
        else:
            self._place()

    def begin_whole(self, payload: bytes, size: int) -> None:
        """The request is complete, small and plain; its head may have come before."""
        # HOT PATH (benchmarks/bench_http2_relay.py). `begin` and `request_data` in one for the
        # common unary call; those are the reference. What such a message says is looked up by how
        # it begins; the reference of that is `inspect_first`.
        relay = self.relay
        if self.held_back:
            self.held_back = False
        else:
            relay.accounts.open_exchanges += 1
            if self.head.facts.timeout_s or relay.options.request_timeout_s:
                self.set_timer()
        self.bytes_in = size
        request = self.request
        request.ended = True
        request.retained = [payload]
        request.retained_size = size
        prefixes = relay.prefixes
        if (
            prefixes.snapshot is not relay.dispatcher.pool.current
            or size <= NAME_AT
            or (known := prefixes.find(payload[: payload[NAME_AT - 1] + NAME_AT])) is None
        ):
            if not self._find_model(payload, size):
                return
        elif known.size > size:
            self._refuse_cut()
            return
        elif known.is_plain:
            self.model = known.model
        elif (
            (hints := known.hints) is not None
            and payload.startswith(known.head)
            and self.operation is MODEL_INFER
        ):
            self.model = known.model
            self.hints = hints
        elif known.hints is None and SEQUENCE_ID not in payload:
            self.model = known.model
        elif not self._find_model(payload, size):
            return
        relay.place_whole(self, payload, size)

    def _find_model(self, payload: bytes, size: int) -> bool:
        """Look for what a whole small message says. False when the call has gone its way."""
        relay = self.relay
        if relay.split_models and self._recall_whole_batch(payload, size):
            return True
        if size and (
            size < PREFIX_SIZE
            or payload[1]
            or payload[2]
            or size < PREFIX_SIZE + (payload[3] << 8 | payload[4])
        ):
            self._refuse_cut()
            return False
        self.model = model_name(payload) or b""
        inspect_first(self, self.server, payload, is_all=True)
        if self.model in relay.options.variant_names and relay.begin_variant(
            self, payload, end_stream=True
        ):
            return False
        if self.model in relay.split_models and relay.begin_split(self, payload, is_all=True):
            return False
        if self.hints is not None and self.hints.step is not None:
            if self.request.push(payload):
                self._place()
            return False
        return True

    def _recall_whole_batch(self, payload: bytes, size: int) -> bool:
        """Recall the model and the hints of a request by how it begins, if it is known as one whose
        batch may be cut and stays whole. False where it is not."""
        relay = self.relay
        prefixes = relay.prefixes
        if prefixes.snapshot is not relay.dispatcher.pool.current or size <= NAME_AT:
            return False
        known = prefixes.find_batch(payload[: payload[NAME_AT - 1] + NAME_AT])
        if (
            known is None
            or known.size > size
            or (hints := known.hints) is None
            or not payload.startswith(known.head)
            or self.operation is not MODEL_INFER
            or not relay.dispatcher.splits.stays_whole(known.model, hints.rows)
        ):
            return False
        self.model = known.model
        self.hints = hints
        return True

    def request_data(self, payload: Payload, end_stream: int) -> None:
        """Payload of the request arrived."""
        # HOT PATH (benchmarks/load). Once per DATA frame, or part of one.
        if self.guard is not None and not self.pass_guard(self.guard, payload, end_stream):
            return
        size = len(payload)
        if (
            self.held_back
            and end_stream
            and size < COPY_BELOW
            and self.head.facts.is_plain
            and not self.bytes_in
            and self.head.facts.content_length in (NO_LENGTH, size)
        ):
            self.begin_whole(payload, size)  # type: ignore[arg-type]  # below COPY_BELOW: bytes
            return
        self.bytes_in += size
        request = self.request
        retained = request.retained
        if retained is not None and size:
            if retained:
                request.retain(payload, self.relay.options.retained_size)
            elif size < UNCOUNTED:
                retained.append(payload)
                request.retained_size = size
            else:
                self.retain(payload)
        if self.messages is not None and not self.check_message(payload):
            return
        if self.held_back and not self._peek(payload, end_stream):
            return
        if end_stream:
            request.ended = True
            if not self.check_length():
                return
            if self.sent_at:
                self.upload_ended()
        sink = request.sink
        if sink is not None:
            sink.send_data(request, payload)
        else:
            self._keep(payload)

    def pass_guard(self, guard: MemoryGuard, payload: Payload, end_stream: int) -> bool:
        """Have the guard inspect the payload. False where it may not go on: the call has ended, or
        the payload comes again in a later iteration of the loop."""
        wrong = guard.inspect(payload)
        if wrong is None:
            self.server.postpone(self.request, payload, end_stream)
            return False
        self.server.inspected += guard.frames
        if wrong:
            self.fail(Reason.CONTROL_REFUSED, wrong)
        return not wrong

    def resume_request(self, payload: Payload, end_stream: int) -> None:
        """Payload that was postponed comes again (`Http2Codec.postpone`)."""
        self.request_data(payload, end_stream)

    def passes(self, _pipe: Pipe[Any]) -> bool:
        """Whether payload of the request goes on as it comes, but for being counted."""
        return not self.held_back and self.messages is None and self.guard is None

    def retain(self, payload: Payload) -> None:
        """Keep payload for another attempt."""
        request = self.request
        limit = self.relay.options.retained_size
        if not request.retained and len(payload) >= PREFIX_SIZE:
            announced = int.from_bytes(payload[1:PREFIX_SIZE], "big")
            if announced + PREFIX_SIZE > limit:
                # It will not fit, so do not copy the first part of it.
                request.drop_retained()
                return
        request.retain(payload, limit)

    def _peek(self, payload: Payload, end_stream: int) -> bool:
        """Look for the model's name in the first bytes and place the call when it is known.

        False when the call is over.
        """
        # Looked at anew only when there is much more, or the whole message: crumbs must not cost
        # the square of the size.
        size = self.bytes_in
        if size < self.look_again_at and size != self.message_end and not end_stream:
            return True
        queue = self.request.queue
        head = bytes(payload[:_MODEL_PEEK])
        if queue:
            head = b"".join((*queue, head))[:_MODEL_PEEK]
        if size < PREFIX_SIZE:
            message_end = PREFIX_SIZE
        else:
            message_end = (head[1] << 24 | head[2] << 16 | head[3] << 8 | head[4]) + PREFIX_SIZE
        if not end_stream:
            self.message_end = message_end
        elif size < message_end and size:
            self._refuse_cut()
            return False
        depth = _DEPTHS[self.operation.model_in]
        name = nested_name(head, depth) if depth else model_name(head)
        if name is None and not end_stream and len(head) < _MODEL_PEEK:
            self.look_again_at = 2 * size
            return True
        self.model = name = name or b""
        snapshot = self.relay.dispatcher.pool.current
        route = snapshot.routes.get(name)
        if (
            not depth
            and (route is None or not route.is_plain or snapshot.regions)
            and not self._look(payload, end_stream)
        ):
            return True
        if self.model in self.relay.options.variant_names:
            data = b"".join((*(queue or ()), payload))
            is_taken = self.relay.begin_variant(self, data, end_stream)
            if is_taken is None and not end_stream:
                return True
            if is_taken:
                self.held_back = False
                return False
        if self.model in self.relay.split_models:
            is_split = self.relay.begin_split(self, payload, is_all=bool(end_stream))
            if is_split is not False:
                self.look_again_at = 2 * size
                return is_split is None
        self.held_back = False
        self._place()
        return not self.finished

    def _look(self, payload: Payload, end_stream: int) -> bool:
        """Inspect what has come. False while that is too little."""
        self.look_again_at = 2 * self.bytes_in
        queue = self.request.queue or ()
        data = b"".join((*queue, payload))
        return inspect_first(self, self.server, data, is_all=bool(end_stream))

    def check_message(self, payload: Held) -> bool:
        """Check that no message is longer than allowed; to be called where there are `messages`.
        False: one is, and the call is over."""
        assert self.messages is not None
        self.messages.feed(payload)
        limit = self.messages.limit
        if self.messages.largest <= limit:
            return True
        self.fail(Reason.BODY_TOO_LARGE, f"message is larger than the limit of {limit} bytes")
        return False

    def check_length(self) -> bool:
        """Check that the request, which is complete, is as long as its head says, and its first
        message as long as its prefix says. False: it is not, and the call is over."""
        # Only the end shows it, so the backend has seen most of it.
        size = self.bytes_in
        if self.head.facts.content_length not in (NO_LENGTH, size):
            error = Malformed(ErrorCode.PROTOCOL_ERROR, "content-length differs from the data")
            self.server.on_stream_error(self.client_id, error)
            return False
        if size < self.message_end and size:
            self._refuse_cut()
            return False
        return True

    def _refuse_cut(self) -> None:
        """The request ends within its first message. Triton says the same, but servers on grpcio
        wait for the rest, and hold a place, until the client is gone."""
        self.request.ended = True
        self.fail(Reason.BAD_REQUEST, UNPARSABLE)

    def _keep(self, payload: Payload) -> None:
        """Nowhere to send it: not yet, or not any more."""
        request = self.request
        if self.begun:
            self.drop_upload(len(payload))
        else:
            request.push(payload)

    def drop_upload(self, size: int) -> None:
        """Payload that nobody reads: the client may go on sending."""
        if not size or self.finished:
            return
        increment = self.request.went_out(size)
        if increment:
            self._open_window(increment)

    def let_come(self, size: int) -> None:
        """Have the client's window let it send so many bytes more at least: they are held until
        all of them are here, and only what goes out is credited."""
        request = self.request
        increment = size - request.window
        if increment > 0:
            request.window += increment
            request.owed -= increment
            self._open_window(increment)

    def _open_window(self, increment: int) -> None:
        """Tell the client that it may send so many bytes more."""
        self.server.out.append(window_update(self.client_id, increment))
        self.server.mark()

    def request_trailers(self, block: bytes) -> None:
        """The request ended with trailers."""
        request = self.request
        request.trailers = block
        request.ended = True
        if not self.check_length():
            return
        if self.sent_at:
            self.upload_ended()
        if self.held_back:
            self.held_back = False
            self._place()
        elif request.sink is not None:
            request.sink.end_stream(request)

    # Attempts

    @property
    def backend_side(self) -> BackendSide | None:
        """Its attempt, as far as it knows that."""
        return cast("BackendSide | None", self.attempt)

    def _place(self) -> None:
        self.expect_rest()
        self.relay.place(self)

    def expect_rest(self) -> None:
        """Note that it is placed before its client has sent all of it, where that is so."""
        if not self.request.ended and self.operation.kind not in _MAY_STREAM:
            self.sent_at = inf

    def upload_ended(self) -> None:
        """The client has sent the last of a request that was placed before."""
        self.relay.dispatcher.queue.upload_ended(self, self.relay.now)

    def place_anew(self) -> None:
        """Begin the next attempt."""
        self.relay.now = self.relay.clock()
        if self.part is not None:
            self.part.place()
        else:
            self._place()

    def go_on(self) -> None:
        """See `Waiting`."""
        if self.server.parted:
            self.client_gone()
        elif self.part is None:
            self.relay.now = self.relay.clock()
            self.relay.place_in_turn(self)
        else:
            self.place_anew()

    def go_again(self, outcome: Outcome, *, is_unsent: bool) -> None:
        """Have another attempt, which sends what the last one was sent."""
        if self.part is not None:
            self.part.pause()
        if is_unsent or self.request.rewind():
            self.relay.retry.go_again(self, outcome, self.place_anew)

    @property
    def may_run_twice(self) -> bool:
        """See `Exchange`."""
        return super().may_run_twice if self.part is None else self.part.may_run_twice

    def leave_variant(self) -> bool:
        """See `Exchange`."""
        return self.part is not None and self.part.leave_variant()

    @property
    def variant(self) -> str:
        """See `RequestRecord`."""
        return "" if self.part is None else self.part.variant

    @property
    def first_byte_at(self) -> float:
        """See `RequestRecord`."""
        if self.part is not None and self.part.merged_at:
            return self.part.merged_at
        return self.attempt.first_byte_at if self.attempt is not None else 0.0

    @property
    def is_sent(self) -> bool:
        """See `Exchange`."""
        return self.request.ended and not (self.begun or self.finished)

    @property
    def is_uploading(self) -> bool:
        """See `Exchange`."""
        request = self.request
        return request.window > 0 and self.sent_at == inf and not (self.begun or self.finished)

    @property
    def is_downloading(self) -> bool:
        """See `Exchange`."""
        is_held_up = self.begun and not self.finished and self.response.waiting > 0
        return is_held_up and answers_once(self.operation)

    def attempt_late(self) -> None:
        """See `Exchange`."""
        attempt = self.backend_side
        if attempt is not None:
            attempt.leave_backend(Outcome.LATE)

    def cancel_hedge(self) -> None:
        """Nobody waits for the second attempt any more."""
        hedge = cast("BackendSide | None", self.hedge)
        if hedge is not None:
            hedge.give_up(Outcome.OVERTAKEN, ErrorCode.CANCEL)

    # What pipes ask of their owner

    def pipe_finished(self, pipe: Pipe[Any]) -> None:
        """END_STREAM went out on one side."""
        # HOT PATH (benchmarks/load).
        if pipe is not self.response or self.finished:
            return
        request = self.request
        if not request.ended:
            # RFC 9113 8.1: a complete answer, and no need for the rest of the request.
            self.server.reset(self.client_id, ErrorCode.NO_ERROR)
            request.ended = True
        self._leave(None, self.relay.now)

    def backend_stalled(self) -> None:
        """The backend has taken nothing of the request that waits for it."""
        attempt = self.backend_side
        if attempt is not None:
            attempt.backend_stalled()

    # Ends

    def client_gone(self, reason: Reason = Reason.CLIENT_GONE) -> None:
        """The client reset the stream, or its connection is lost."""
        self.close(Outcome.CANCELLED, reason, ErrorCode.CANCEL)

    def client_broke_stream(self, error: StreamError) -> None:
        """The client broke the rules on this stream; it was reset."""
        self.close(Outcome.CANCELLED, Reason.BAD_REQUEST, ErrorCode.CANCEL)

    def tell_client(self, fault: Malformed) -> bool:
        """The request is malformed, as its body or its end shows. False when the client cannot be
        told any more, or not in the way of gRPC."""
        if self.begun or not self.head.facts.is_grpc:
            return False
        self.fail(Reason.BAD_REQUEST, fault.detail)
        return True

    def client_stalled(self) -> None:
        """The client has taken nothing of the answer that waits for it."""
        self.fail(Reason.CLIENT_STALLED, "the client stopped reading")

    @property
    def charged_to(self) -> Exchange:
        """See `lb.wire.memory_budget.Holder`, of its pipes."""
        return self

    @property
    def client_connection(self) -> Http2Connection:
        """See `Exchange`."""
        return self.server

    def evict(self) -> None:
        """The memory budget wants this call's bytes back."""
        self.fail(Reason.MEMORY, "load balancer is out of memory for this request")

    def set_timer(self) -> None:
        """Have the call end when its time is up: its client's, or the configured one."""
        timeout_s = _shorter(self.head.facts.timeout_s, self.relay.options.request_timeout_s)
        self.timer = self.relay.timers.after(timeout_s, self._expire)

    def _expire(self) -> None:
        """The client's deadline, or ours, has passed."""
        self.timer = None
        self.fail(Reason.DEADLINE, "Deadline Exceeded", Outcome.DEADLINE)

    def fail(
        self,
        reason: Reason,
        detail: str,
        outcome: Outcome = Outcome.CANCELLED,
        *,
        status: GrpcStatus | None = None,
        retry_after_s: float = 0.0,
    ) -> None:
        """End the call with an error of ours."""
        if self.finished:
            return
        if reason is Reason.MEMORY:
            self.relay.memory_relief.on_refusal(self)
        code = failure.grpc_status(reason) if status is None else status
        self._end_attempts(outcome, ErrorCode.CANCEL)
        self.grpc_status = code
        if not self.begun:
            self.status = 200
            why = failure.not_run(self, reason, self.head.facts.passed)
            block = trailers_only(code, detail) + not_run(why) + self.facts()
            self.answer_whole(block + pushback(retry_after_s) if retry_after_s else block, reason)
            return
        if self._may_end_response(reason):
            self.end_response(status_trailers(code, detail) + self.facts(), reason)
            return
        self.response.clear()
        self.response.ended = True
        self.server.reset(self.client_id, RESET_CODES.get(reason, ErrorCode.INTERNAL_ERROR))
        self._leave(reason)

    @property
    def credentials(self) -> Credentials | None:
        """What its head says that the gate asks for."""
        return cast("Credentials | None", self.head.facts.credentials)

    def lose_token(self) -> None:
        """See `TokenHolder`."""
        self.relay.now = self.relay.clock()
        self.fail(Reason.UNAUTHENTICATED, "the token of this stream is not valid any more")

    def _may_end_response(self, reason: Reason) -> bool:
        """Whether trailers can say why a response ends that has begun: between two messages. Only
        where a backend has failed, its client still gets the messages that wait for it."""
        response = self.response
        if response.ended or (response.queue and reason not in BACKEND_FAILED):
            return False
        return (self.part or self).is_between

    def end_response(self, trailers: bytes, reason: Reason | None) -> None:
        """End a response that has begun, after the messages that wait for the client."""
        self.reason = reason
        response = self.response
        response.ended = True
        response.trailers = trailers
        self.server.end_stream(response)
        request = self.request
        waited = request.waiting
        if self.part is not None:
            waited += self.part.drop_rest()
        request.clear()
        self.drop_upload(waited)

    @property
    def is_between(self) -> bool:
        """Whether no message is under way to the client, as far as is known."""
        attempt = self.backend_side
        return attempt is None or attempt.is_between

    def refuse(self, refusal: RequestRefused) -> None:
        """Answer that the call is not placed. See also `Waiting`."""
        self.fail(refusal.reason, refusal.detail, retry_after_s=refusal.retry_after_s)

    @property
    def context(self) -> TraceContext | None:
        """See `Exchange`."""
        return self.head.context

    @property
    def deadline(self) -> float:
        """See `Exchange`."""
        if self.timer is None:
            return inf
        timeout_s = _shorter(self.head.facts.timeout_s, self.relay.options.request_timeout_s)
        return self.started_at + timeout_s

    def hint(self, name: bytes) -> bytes:
        """See `Exchange`."""
        return next((value for field, value in self.head.noted if field == name), b"")

    def answer_whole(self, block: bytes, reason: Reason | None) -> None:
        """Send a whole answer in one head."""
        self.begun = True
        self.server.send_head(self.client_id, block, end_stream=True)
        if not self.request.ended:
            self.server.reset(self.client_id, ErrorCode.NO_ERROR)
            self.request.ended = True
        self._leave(reason)

    def finish_answer(
        self, data: bytes, fields: bytes = b"", *, rest: Sequence[Payload] = ()
    ) -> None:
        """Answer the call ourselves: head, one message, status OK.

        Args:
            data: the message with its prefix.
            fields: further ones of the head, encoded.
            rest: the end of the message, where that is long and not worth a copy.
        """
        self.begun = True
        self.status = 200
        self.grpc_status = GrpcStatus.OK
        self.bytes_out = len(data) + sum(map(len, rest))
        response = self.response
        response.ended = True
        response.trailers = status_trailers(GrpcStatus.OK) + self.facts()
        self.server.send_head(self.client_id, ANSWER_HEAD + fields, end_stream=False)
        self.server.send_data(response, data)
        if rest and not self.finished and response.push_run(rest):
            self.server.send_waiting(response)
        if not self.finished and not response.queue and not response.finished:
            self.server.end_stream(response)

    def facts(self) -> bytes:
        """Fields of the trailers that say how the call was served; nothing for most clients."""
        if not self.head.facts.discloses:
            return b""
        relay = self.relay
        facts = facts_of(self, relay.options.disclosure, self.credentials, relay.now)
        return b"".join(encode_field(name, value) for name, value in facts)

    def close(self, outcome: Outcome, reason: Reason, code: ErrorCode | None) -> None:
        """End without telling the client, who knows."""
        if self.finished:
            return
        self._end_attempts(outcome, code)
        if self.grpc_status == NO_STATUS:
            self.grpc_status = GrpcStatus.CANCELLED
        self._leave(reason)

    def _end_attempts(self, outcome: Outcome, code: ErrorCode | None) -> None:
        """End its attempt or its waiting, and reset its streams at backends."""
        if self.part is not None and self.part.end_attempts(code):
            return
        attempt = self.backend_side
        if attempt is not None:
            if code is ErrorCode.CANCEL and attempt.run_on(outcome):
                return
            attempt.detach(code)
        self.relay.accounts.stop(self, outcome)

    def _leave(self, reason: Reason | None, now: float | None = None) -> None:
        """Leave nothing behind on the client's connection, in timers and in the memory budget."""
        # HOT PATH (benchmarks/load).
        if self.hedge is not None:
            self.cancel_hedge()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        part = self.part
        if part is not None:
            part.leave(reason or self.reason)
        request, response = self.request, self.response
        request.ended = response.ended = True
        if request.held or request.retained is not None:
            request.clear()
        if response.held:
            response.clear()
        server = self.server
        if server.waiting:
            server.forget(response)
        server.close_stream(self.client_id)
        # The pipes point at each other and here: break the rings so that no collector is needed.
        request.owner = response.owner = None
        response.opposite = self.relay.no_pipe
        self.relay.accounts.finish(self, reason, now)
        if part is not None:
            self.part = None  # they point at each other


class CallPart:
    """Takes the request of a call in its place: what there is to do with it beside relaying it.

    Connections tell it what comes, as it owns the pipe of the request; what concerns the whole call
    it passes on to that. Where it is the call's `part`, the call asks things of it, too.
    """

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call = call
        call.request.owner = self

    # What the call asks of its part

    def begin(self, end_stream: bool) -> None:
        """The head may pass."""

    def place(self) -> None:
        """Begin the next attempt."""

    def pause(self) -> None:
        """An attempt has ended, and another one follows."""

    def leave_parting(self) -> None:
        """A backend is to become empty: ask nothing of it any more, if another one may be asked."""

    def leave_backend(self, backend: Backend) -> None:
        """A backend is to unload a model: end the stream there. What follows goes over another
        one."""

    def models_used(self) -> Collection[bytes]:
        """Models on demand that a stream has used since this was asked last."""
        return ()

    def take_resumption(self, has_begun: bool, outcome: Outcome) -> bool | None:
        """Take another attempt for what an attempt has not answered of a stream; see
        `ResponseSink`.

        Args:
            has_begun: some of the response of that attempt has gone to the client.
            outcome: of it.
        """
        return None

    def resume(self, outcome: Outcome) -> None:
        """There is such an attempt."""

    def end_attempts(self, code: ErrorCode | None) -> bool:
        """Reset the streams of the attempts that it has. False where the call has one at most."""
        return False

    def drop_rest(self) -> int:
        """Drop what waits of the request beside its pipe, since nobody needs it. Returns how many
        bytes that is."""
        return 0

    def leave(self, reason: Reason | None) -> None:
        """The call is over. Nothing is to be left behind."""

    @property
    def may_run_twice(self) -> bool:
        """See `Exchange`."""
        return False

    def leave_variant(self) -> bool:
        """See `Exchange`."""
        return False

    def new_sink(self) -> Any:
        """Where the response of an attempt goes that takes the place of another one; None: to the
        client as it comes."""
        return None

    @property
    def variant(self) -> str:
        """See `RequestRecord`."""
        return ""

    @property
    def merged_at(self) -> float:
        """When the first answer came, if it was merged with others; else 0.0."""
        return 0.0

    @property
    def is_between(self) -> bool:
        """See `Call`."""
        return self.call.is_between

    # What connections tell the owner of a pipe

    def passes(self, _pipe: Pipe[Any]) -> bool:
        """See `Call`: all of the request is looked at."""
        return False

    def request_data(self, payload: Payload, end_stream: int) -> None:
        """Payload of the request arrived."""

    def resume_request(self, payload: Payload, end_stream: int) -> None:
        """Payload that was postponed comes again."""
        self.request_data(payload, end_stream)

    def request_trailers(self, block: bytes) -> None:
        """The request ended with trailers."""

    @property
    def started_at(self) -> float:
        """See `RequestRecord`."""
        return self.call.started_at

    @property
    def begun(self) -> bool:
        """See `Call`."""
        return self.call.begun

    @property
    def head(self) -> RequestHead:
        """The head of the request."""
        return self.call.head

    @property
    def bytes_in(self) -> int:
        """See `RequestRecord`."""
        return self.call.bytes_in

    @bytes_in.setter
    def bytes_in(self, size: int) -> None:
        self.call.bytes_in = size

    def client_gone(self, reason: Reason = Reason.CLIENT_GONE) -> None:
        """See `Call`."""
        self.call.client_gone(reason)

    def client_broke_stream(self, error: StreamError) -> None:
        """See `Call`."""
        self.call.client_broke_stream(error)

    def tell_client(self, fault: Malformed) -> bool:
        """See `Call`."""
        return self.call.tell_client(fault)

    def pipe_finished(self, pipe: Pipe[Any]) -> None:
        """See `Call`."""
        self.call.pipe_finished(pipe)

    def backend_stalled(self) -> None:
        """See `Call`."""
        self.call.backend_stalled()

    @property
    def charged_to(self) -> Exchange:
        """See `Call`."""
        return self.call

    def evict(self) -> None:
        """See `Call`."""
        self.call.evict()


def _shorter(asked_s: float | None, own_s: float) -> float:
    """How long a call may take for which its client, or the configuration, says so, or both; what
    is not said is None or 0."""
    return min(asked_s, own_s) if asked_s and own_s else asked_s or own_s
