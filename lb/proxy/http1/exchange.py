"""One HTTP/1.1 request and its answer: placed, connected, relayed both ways, ended once.

An `Http1Exchange` is the client's half: the request as it comes, what is known of it, where it is
placed and whether again, and answers of ours. An `Http1Attempt` is the half of one backend: its
connection, and what comes over it.

Invariants: an attempt is ended exactly once, however the two sides end; nothing is written to a
side that was ended; once a byte of an answer went to the client there is no other attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Final

from lb.domain.backend import AppProtocol, Backend, BackendKind, Port
from lb.domain.errors import RequestRefused, UpstreamError
from lb.domain.outcome import Outcome, Reason
from lb.domain.schedule import Ending
from lb.kserve.errors import ERROR_BYTES, HTTP_STATUSES, Meaning, http_error_text, meaning
from lb.kserve.faults import LEAST_RESPONSE, lacks_outputs
from lb.kserve.gate import NameMask
from lb.kserve.operations import MODEL_GENERATE_STREAM, answers_once
from lb.net.dial import dial
from lb.net.timers import Timer
from lb.proxy.disclosure import facts_of
from lb.proxy.exchange import Attempt, Exchange
from lb.proxy.failure import http_status, not_run
from lb.proxy.http1.answers import Answer, error
from lb.proxy.http1.answers import refusal as refusal_of
from lb.proxy.http1.client import Http1ClientConnection
from lb.proxy.http1.cors import RESPONSE_FIELDS
from lb.proxy.http1.heads import RequestPlan
from lb.proxy.http1.inspection import (
    ENOUGH,
    LITTLE,
    BodyInspection,
    begin_inspection,
    count_inspected,
    inspect_whole,
    note,
)
from lb.proxy.http1.recorded import RecordedResponse
from lb.proxy.http1.request_body import PORTION, HeldBody, RequestBody
from lb.proxy.http1.shared import Http1Shared
from lb.proxy.http1.short_response import ShortResponse
from lb.proxy.http1.sides import AnswerForm, AnswerSink, ClientSide, RequestHandler
from lb.proxy.lost import abandoned_until, executed_until, report_abandoned
from lb.proxy.retry import Next, outcome_of_silence
from lb.proxy.variants import VariantHints, VariantHolder
from lb.telemetry.meter import AnswerTimes
from lb.telemetry.spans import FIRST_SPAN
from lb.wire.hops import NOT_RUN
from lb.wire.http1.body import (
    LAST_CHUNK,
    BodyDecoder,
    ChunkedDecoder,
    LengthDecoder,
    Payload,
    few,
    forwardable_trailers,
)
from lb.wire.http1.forwarded import drop_fields
from lb.wire.http1.grammar import CRLF
from lb.wire.http1.response import CONTINUE, ResponseHead
from lb.wire.rope import Held, in_memory
from lb.wire.trace_context import TraceContext

_log = logging.getLogger(__name__)

_ANSWERED: Final = Outcome.ANSWERED
_GOOD: Final = Ending.GOOD
_OK: Final = 200
_SUCCESSES: Final = range(200, 300)
_INTERNAL: Final = 500
_UNUSABLE: Final = "an inference answered without a body"


class Http1Exchange(Exchange):
    """A request of a client's connection."""

    __slots__ = (
        "_look", "_span", "_unseen", "_was_continued", "_whole", "body", "form", "handler", "plan",
        "relay", "response_begun", "server",
    )  # fmt: skip

    def __init__(
        self, relay: Http1Shared, server: ClientSide, plan: RequestPlan, now: float
    ) -> None:
        # HOT PATH (benchmarks/bench_http1_relay.py). What `Exchange` sets is set here: its own
        # constructor costs half as much again.
        self.protocol = AppProtocol.HTTP
        self.operation = plan.operation
        self.client = server.client.name
        self.started_at = now
        self.method = plan.method
        self.path = plan.path
        self.model = plan.model
        self.request_id = plan.request_id
        self.token = self.held_for = ""
        self.tried = ()
        self.backend = self.attempt = self.hedge = self.loss = self.suspicion = self.ticket = None
        self.hints = self.permit = self.reason = self.trace = None
        self.placed_at = self.ended_at = self.held_until = self.sent_at = 0.0
        self.attempts = self.bytes_in = self.bytes_out = self.status = 0
        self.grpc_status = -1
        self.finished = self.response_begun = self.may_have_run = self.is_part = False
        self.relay = relay
        self.plan = plan
        self.server = server
        self.body = RequestBody(relay, server, plan.length)
        self.handler = self.form = None

    server: ClientSide | None
    """None once the client's side is over."""
    handler: RequestHandler | None
    """Takes the parts of the request before us, or in our place."""
    form: AnswerForm | None
    """The form of the answer, if the client wants another one."""
    response_begun: bool
    """Some of an answer of a backend has gone to the client."""

    _whole: Http1Exchange
    """What it is a part of; only parts have this and the next one."""
    _span: int

    def be_part(self, whole: Http1Exchange) -> None:
        """Be a part of another request, which alone is counted, logged and traced."""
        self.is_part = True
        self._whole = whole
        self._span = 0 if whole.trace is None else whole.trace.new_span()

    @property
    def whole(self) -> Exchange:
        """See `Exchange`."""
        return self._whole if self.is_part else self

    @property
    def client_connection(self) -> ClientSide | None:
        """See `Exchange`."""
        return self.server

    @property
    def first_span(self) -> int:
        """See `Exchange`."""
        return self._span if self.is_part else FIRST_SPAN

    # The request

    def start_whole(self, head: bytes, body: Payload) -> None:
        """Relay a request that is complete, not in chunks; `head` is for backends."""
        # HOT PATH (benchmarks/bench_http1_relay.py). The slots that only other requests read
        # are set where they are needed first.
        relay = self.relay
        relay.accounts.open_exchanges += 1
        plan = self.plan
        self.bytes_in = plan.length
        if self.body.keep_whole(head, body):
            snapshot = relay.dispatcher.pool.current
            route = snapshot.routes.get(self.model)
            if (route is None or not route.is_plain or snapshot.regions) and (
                plan.is_compressed
                or not inspect_whole(self, plan, route, snapshot.regions, bytes(body))
            ):
                self.expect_parts()
                self._look_and_place([body])
                return
            self.place(self.started_at)

    def start(self, head: bytes, pieces: list[Payload], *, ended: bool) -> None:
        """Relay a request whose head is complete, with what there is of its body."""
        self.expect_parts()
        self.relay.accounts.begin()
        self.pass_on(head, pieces, ended=ended)

    def pass_on(self, head: bytes, pieces: list[Payload], *, ended: bool) -> None:
        """Relay a request that is counted as open already."""
        if self.cut_if_too_large(pieces):
            return
        self.bytes_in = size = sum(map(len, pieces))
        if not ended:
            self.sent_at = inf
        if self.body.keep_first(head, pieces, size, ended=ended):
            self._look_and_place(pieces)

    def hold(self, head: bytes, pieces: Sequence[Held]) -> bool:
        """Take a request that is complete and was held whole. False when memory is so short that it
        was ended instead."""
        self.bytes_in = size = sum(map(len, pieces))
        if size <= PORTION:
            return self.body.keep_first(head, in_memory(pieces), size, ended=True)
        self.body = body = HeldBody(self.relay, self.server, size)
        return body.hold(head, pieces, size)

    def pass_on_held(self, head: bytes, pieces: Sequence[Held]) -> None:
        """Relay a request that is complete, was held whole, and is counted as open already."""
        if self.hold(head, pieces):
            self._look_and_place(pieces)

    def add(self, pieces: list[Payload], *, ended: bool) -> None:
        """Relay a further part of the body."""
        if self.cut_if_too_large(pieces):
            return
        size = sum(map(len, pieces))
        self.bytes_in += size
        if ended:
            self.relay.dispatcher.queue.upload_ended(self, self.relay.clock())
        self.body.add(pieces, size, ended=ended)
        if self._look is not None and (pieces or ended):
            self._look_later(self._look, pieces)

    def on_middle(self, data: bytes) -> bool:
        """Relay a read in the middle of a body of known length. False where that takes more than
        to send it, and `add` is to relay it."""
        # HOT PATH (benchmarks/bench_http1_relay.py). The most of a large request.
        if self.handler is not None or not self.body.send_middle(data):
            return False
        self.bytes_in += len(data)
        return True

    def expect_parts(self) -> None:
        """Set what only a request has that may be held back."""
        self._was_continued = False
        self._look: BodyInspection | None = None
        self._unseen: deque[Payload] = deque()
        """Parts of its body that were not looked at yet."""

    def _look_and_place(self, pieces: Sequence[Held]) -> None:
        """Begin with a request that comes in parts: at once, or when enough of it has come."""
        snapshot = self.relay.dispatcher.pool.current
        route = snapshot.routes.get(self.model)
        if route is None or not route.is_plain or snapshot.regions:
            look = begin_inspection(self.plan, route, has_regions=bool(snapshot.regions))
            if look is not None:
                self._look = look
                self._look_later(look, look.first_of(pieces))
                return
            note(self, self.plan, route, snapshot.regions, None)
        if self.handler is None or self.handler.prepare_placing():
            self.place()

    def _look_later(self, look: BodyInspection, pieces: list[Payload]) -> None:
        """More has come of a request that is held back. Looking at much of it takes a while: each
        part then waits for its turn in an iteration of the loop, and no more is read meanwhile."""
        is_under_way = bool(self._unseen)
        for piece in few(pieces):
            self._unseen += look.slices(piece)
        if is_under_way:
            return
        size = sum(map(len, pieces))
        iteration = self.relay.iteration
        if not look.is_costly(size) or (size <= LITTLE and iteration.has_turn):
            self._look_on()
        else:
            iteration.later(self._look_on)

    def _look_on(self) -> None:
        """Look at the next part of a request that is held back."""
        look, unseen = self._look, self._unseen
        if look is None or self.server is None:
            return
        iteration = self.relay.iteration
        before = look.inspected
        is_decided = False
        stop = look.size + ENOUGH
        while unseen and not is_decided and look.size < stop:
            is_decided = look.feed(unseen.popleft())
            if look.rest:
                unseen.appendleft(look.rest)
        if is_decided:
            unseen.clear()
        count_inspected(iteration, look.inspected - before)
        is_enough = is_decided and self.bytes_in >= look.held_back
        if is_enough or (self.body.ended and not unseen):
            self._look = None
            snapshot = self.relay.dispatcher.pool.current
            note(self, self.plan, snapshot.routes.get(self.model), snapshot.regions, look)
            if self.handler is None or self.handler.prepare_placing():
                self.place()
        elif unseen:
            iteration.later(self._look_on)
        else:
            self.invite_body(self.server)

    def retell(self, span: int) -> None:
        """See `Exchange`."""
        trace = self.whole.trace
        if trace is not None:
            self.body.retell(trace, span)

    def answer_only(self, answer: Answer, *, ended: bool) -> None:
        """Answer a request ourselves from the start."""
        self.body.ended = ended
        self.relay.accounts.begin()
        self.answer(answer)

    def count_request(self, size: int) -> None:
        """Some of the body has come and went to the backend."""
        self.bytes_in += size
        connection = self.body.connection
        if connection is not None:
            connection.port.bytes_sent += size

    def passes(self, server: ClientSide) -> asyncio.Transport | None:
        """Where what is left of the body may go unseen; None where it may not, or not yet."""
        return self.body.passes(server) if self.handler is None else None

    @property
    def wants_body(self) -> bool:
        """Whether the client should send more now: to a backend, to be looked at first, or to be
        held while it waits."""
        handler = self.handler
        if handler is not None and (handler.is_busy or handler.collects):
            return not handler.is_busy
        body = self.body
        connection = body.connection
        if connection is not None:
            return not connection.is_full and body.unsent is None
        if body.ended:
            return False
        return self._may_hold_more() if self._look is None else not self._unseen

    def _may_hold_more(self) -> bool:
        """Whether more is read of a request that waits for its turn. Nobody needs it yet, but a
        client that leaves is noticed at once only while it is read from. Some of the memory for
        what may not be needed is left to bodies that are kept for another attempt."""
        relay = self.relay
        memory_budget = relay.memory_budget
        return (
            memory_budget.held < memory_budget.keep_up_to * 3 // 4
            and self.bytes_in < relay.dispatcher.queue.room(self)
        )

    def cut_if_too_large(self, pieces: Sequence[Held]) -> bool:
        """End the exchange if its body passes the limit with `pieces`. Returns whether it does."""
        options = self.relay.options if self.server is None else self.server.options
        limit = options.body_size
        if limit and self.bytes_in + sum(map(len, pieces)) > limit:
            self.cut(Outcome.CANCELLED, Reason.BODY_TOO_LARGE, "request body too large")
            return True
        return False

    def invite_body(self, server: ClientSide) -> None:
        """There is a place for it: let the client send the rest of the body."""
        if self.plan.expects_continue and not self._was_continued and not self.bytes_in:
            self._was_continued = True
            server.write([CONTINUE])
        server.update_reading()

    # Attempts

    def place(self, now: float | None = None) -> None:
        """Begin an attempt, or have it wait. `now` is the time, where the caller has it."""
        # HOT PATH (benchmarks/bench_http1_relay.py). Nearly always a connection is waiting; only
        # dialing takes a task.
        relay = self.relay
        try:
            attempt = relay.placer.place(self, Http1Attempt, now, self)
        except RequestRefused as refused:
            self.refuse(refused)
            return
        if attempt is None:
            if self.server is not None:
                self.server.update_reading()
            return
        # After a failure other waiting connections may be as dead as the one that failed.
        connection = relay.upstreams.take(attempt.backend) if self.attempts == 1 else None
        if connection is not None:
            attempt.connected_at = attempt.began_at
            attempt.send_over(connection)
            return
        relay.upstreams.make_room(attempt.backend)
        if self.server is not None and not self.body.ended:
            self.server.update_reading()  # what comes could only be kept
        attempt.begin_dial()

    def go_on(self) -> None:
        """See `Waiting`."""
        self._place_anew()

    def _place_anew(self) -> None:
        """Have it placed after it has waited, or after an attempt."""
        holder = self._variant_holder
        if holder is not None:
            holder.keep_ready()
        self.place()

    def leave_variant(self) -> bool:
        """See `Exchange`."""
        holder = self._variant_holder
        return holder is not None and holder.leave()

    @property
    def _variant_holder(self) -> VariantHolder | None:
        """Who has it served by a variant; None: no variant serves it."""
        hints = self.hints
        return hints.holder if isinstance(hints, VariantHints) else None

    def refuse(self, refusal: RequestRefused) -> None:
        """Answer that the request is not placed. See also `Waiting`."""
        self.answer(refusal_of(refusal))

    @property
    def context(self) -> TraceContext | None:
        """See `Exchange`."""
        return self.plan.context

    @property
    def deadline(self) -> float:
        """See `Exchange`."""
        options = self.relay.options if self.server is None else self.server.options
        timeout_s, own_s = self.plan.timeout_s, options.request_timeout_s
        if own_s and own_s < timeout_s:
            timeout_s = own_s
        return self.started_at + timeout_s

    def hint(self, name: bytes) -> bytes:
        """See `Exchange`."""
        return next((value for field, value in self.plan.noted if field == name), b"")

    @property
    def running(self) -> Http1Attempt | None:
        """The attempt under way, unless it is the one beside the first."""
        attempt = self.attempt
        if isinstance(attempt, Http1Attempt) and attempt.outcome is None:
            return attempt
        return None

    @property
    def backlog(self) -> int:
        """Bytes of the answer that the kernel has taken and the client has not."""
        attempt = self.running
        connection = None if attempt is None else attempt.connection
        return connection.pump.held if connection is not None and connection.pump is not None else 0

    def attempt_failed(self, outcome: Outcome, detail: str) -> None:
        """The attempt that the client waited for ended without a complete answer."""
        follows = self.take_next(outcome)
        if follows is not Next.NOTHING:
            self.go_on_after(follows, outcome)
            return
        reason, text = self.relay.retry.failure(self, outcome)
        if outcome is Outcome.PROTOCOL_ERROR:
            text = f"{text}: {detail}"
        self._fail(reason, text)

    def take_next(self, outcome: Outcome) -> Next:
        """Decide what follows the attempt that the client waits for, which ended, or will. To be
        called once for each outcome: a re-run is taken out of the budget."""
        hedge = self.hedge
        return self.relay.retry.after_failure(
            self,
            outcome,
            body_retained=self.body.is_retained,
            response_begun=self.response_begun,
            is_hedge_sent=isinstance(hedge, Http1Attempt)
            and hedge.is_sent
            and self.body.unsent is None,
        )

    def go_on_after(self, follows: Next, outcome: Outcome) -> None:
        """Have that follow an attempt that has ended."""
        attempt = self.running
        if follows is Next.AGAIN:
            self.go_again(outcome)
        elif follows is Next.HEDGE and attempt is not None:
            attempt.take_over()

    def go_again(self, outcome: Outcome) -> None:
        """Have it placed again, now or a little later."""
        self.relay.retry.go_again(self, outcome, self._place_anew)
        server = self.server
        if not self.is_under_way and server is not None and not self.body.ended:
            server.update_reading()  # what comes meanwhile could only be kept

    def attempt_late(self) -> None:
        """See `Exchange`."""
        self.leave_backend(Outcome.LATE)

    def leave_backend(self, outcome: Outcome) -> None:
        """Fail over, if that is allowed and there is another backend. Otherwise the attempt goes
        on, unless nothing is to be expected of it (`outcome_of_silence`)."""
        attempt = self.running
        if attempt is None or self.response_begun or self.finished:
            return
        follows = self.take_next(outcome)
        if follows is not Next.NOTHING:
            attempt.end(outcome)
            self.go_on_after(follows, outcome)
        elif outcome is Outcome.SILENT:
            self.cut(outcome, *self.relay.retry.failure(self, outcome))

    @property
    def is_sent(self) -> bool:
        """See `Exchange`."""
        return self.body.ended and not self.response_begun and self.server is not None

    @property
    def is_uploading(self) -> bool:
        """See `Exchange`."""
        server = self.server
        return (
            not self.body.ended
            and not self.response_begun
            and server is not None
            and server.is_reading
        )

    @property
    def is_downloading(self) -> bool:
        """See `Exchange`."""
        attempt = self.running
        connection = None if attempt is None else attempt.connection
        return (
            self.response_begun
            and connection is not None
            and answers_once(self.operation)
            and (not connection.is_reading or self.backlog > 0)
        )

    def begin_hedge(self) -> Http1Attempt | None:
        """Send it to a second backend as well, see `lb.proxy.hedging`; None where that cannot
        be."""
        body = self.body
        if self.server is None or not body.is_retained or body.unsent is not None:
            return None
        relay = self.relay
        try:
            hedge = relay.placer.place_beside(self, Http1Attempt, relay.clock())
        except RequestRefused:
            return None
        hedge.client = None
        hedge.body = body.again()
        trace = self.whole.trace
        if trace is not None:
            hedge.body.retell(trace, trace.number_of(hedge, self.first_span))
        connection = relay.upstreams.take(hedge.backend)
        if connection is not None:
            hedge.connected_at = hedge.began_at
            hedge.send_over(connection)
        else:
            hedge.begin_dial()
        return hedge

    def cancel_hedge(self) -> None:
        """The client has its answer, or does not want one. What a Triton computes it computes: the
        second answer is read and dropped."""
        hedge, self.hedge = self.hedge, None
        if isinstance(hedge, Http1Attempt) and hedge.outcome is None:
            hedge.leave(Outcome.OVERTAKEN)

    # Pressure

    def pause_answer(self) -> None:
        """The client is slow: let the backend wait."""
        self._set_reading(wanted=False)

    def resume_answer(self) -> None:
        """The client has caught up."""
        self._set_reading(wanted=True)

    def _set_reading(self, *, wanted: bool) -> None:
        attempt = self.running
        if attempt is not None and attempt.connection is not None:
            attempt.connection.set_reading(wanted)

    # Ends before the answer is complete

    def answer(self, answer: Answer) -> None:
        """Answer ourselves; there is no attempt under way."""
        self.status = answer.status
        self.bytes_out = answer.size
        answer.not_run = not_run(self, answer.reason, self.plan.hops)
        answer.lines += self.own_lines
        server = self._leave_client(answer.reason)
        if server is not None:
            server.send_answer(answer, self.plan)

    @property
    def own_lines(self) -> bytes:
        """Lines that we add to the head of the response: for browsers, and for those who may know
        how the request was served. Nothing for most clients."""
        plan = self.plan
        lines = b"" if plan.cross_origin is None else plan.cross_origin.lines
        if plan.discloses:
            relay = self.relay
            facts = facts_of(self, relay.options.disclosure, plan.credentials, relay.clock())
            lines += b"".join(b"%b: %b\r\n" % fact for fact in facts)
        return lines

    def cut(self, outcome: Outcome, reason: Reason, detail: str, *, status: int = 0) -> None:
        """End the exchange from our side.

        Args:
            outcome: of the attempt under way, if there is one.
            reason: for the client and the log.
            detail: what to tell the client.
            status: where the reason alone does not say it.
        """
        self._end_attempt(outcome)
        if self.server is not None:
            self._fail(reason, detail, status=status)

    def client_gone(self, reason: Reason) -> None:
        """There is nobody left to answer.

        A plain inference on a Triton runs on: it cannot be stopped, so it stays in flight until
        its answer, which is dropped, and the connection is used again. If the answer takes far
        longer than expected the connection is closed. An answer for which the client was too slow
        is long computed, and too long to be read for nobody.
        """
        self._leave_client(reason)
        self._leave_attempt(Outcome.CANCELLED)

    def deadline_passed(self) -> None:
        """It took too long. A Triton that executes it goes on, as when the client leaves."""
        self._leave_attempt(Outcome.DEADLINE)
        if self.server is not None:
            self._fail(Reason.DEADLINE, "request took too long")

    def _leave_attempt(self, outcome: Outcome) -> None:
        """Wait no longer for the attempt under way, or for a place."""
        attempt = self.running
        if attempt is not None:
            attempt.leave(outcome)
        else:
            self.relay.accounts.stop(self, outcome)

    def _end_attempt(self, outcome: Outcome) -> None:
        """End the attempt under way, or its waiting."""
        attempt = self.running
        if attempt is not None:
            attempt.end(outcome)
        else:
            self.relay.accounts.stop(self, outcome)

    def _fail(self, reason: Reason, detail: str, *, status: int = 0) -> None:
        """Tell the client: by an answer of ours, or by cutting the one that has begun."""
        if not self.response_begun:
            self.answer(error(status or http_status(reason), reason, detail))
            return
        server = self._leave_client(reason)
        if server is not None:
            server.truncate(reset=self.plan.is_http10)

    def end_upload(self) -> None:
        """Drop everything that is held of the request: nobody needs it any more."""
        if self.handler is not None:
            self.handler.close()
            self.handler = None
        self.body.end()

    def _leave_client(self, reason: Reason | None) -> ClientSide | None:
        self.reason = reason or self.reason
        self.end_upload()
        attempt = self.running
        if attempt is not None:
            attempt.client = attempt.chunks_to = None
            if attempt.connection is not None:
                attempt.connection.end_pump()
        server = self.server
        self.server = self.body.client = None
        self.relay.accounts.finish(self, reason)
        return server


class HeldAnswer:
    """The answer of a backend, as far as it has come; nothing of it has gone on. What a form of the
    answer withholds of it is with that."""

    __slots__ = ("head", "pieces", "size")

    def __init__(self, head: ResponseHead, pieces: list[Payload]) -> None:
        self.head = head
        self.pieces: list[Payload] = []
        self.size = 0
        self.add(pieces)

    def add(self, pieces: list[Payload]) -> None:
        """More of its body."""
        self.pieces += pieces
        self.size += sum(map(len, pieces))


class Http1Attempt(Attempt, AnswerSink):
    """One try of a request at one backend, and what that answers: framed again, or passed on as it
    was read.

    Once a byte of it went to the client there is no other attempt. An error may send the request to
    another backend instead. Where it has no client, since that has left or another attempt was
    faster, the answer is read and dropped, so that the connection can be used again.
    """

    __slots__ = (
        "_abandoned", "_answer_times", "_backend_keeps", "_begun", "_client_keeps",
        "_frames_chunks", "_held_answer", "_mask", "body", "chunks_to", "client", "connection",
        "owner", "plan", "status",
    )  # fmt: skip

    def __init__(
        self, exchange: Http1Exchange, backend: Backend, port: Port, began_at: float
    ) -> None:
        # HOT PATH (benchmarks/bench_http1_relay.py). What `Attempt` sets is set here: its own
        # constructor costs as much again.
        self.exchange = self.owner = exchange
        self.backend = backend
        self.port = port
        self.began_at = began_at
        self.connected_at = self.first_byte_at = 0.0
        self.erred = self._begun = self.is_set_aside = False
        self.outcome = self.ticket = self.in_flight_messages = None
        self.plan = exchange.plan
        self.body = exchange.body
        self.client = exchange.server
        self.connection = self._abandoned = None

    owner: Http1Exchange
    """As `exchange`."""
    plan: RequestPlan
    body: RequestBody
    """What it sends: a second attempt beside the first sends by itself."""
    client: ClientSide | None
    """Who gets its answer; None: nobody."""
    status: int
    """The status of the answer, once it has begun."""
    connection: Http1ClientConnection | None
    _abandoned: Timer | None
    """Ends it when nobody waits for it any more."""
    _begun: bool
    """The answer has, and goes on as it comes."""
    _frames_chunks: bool
    """The client gets the answer in chunks."""
    chunks_to: asyncio.Transport | None
    """Where chunks go on as they came: to the client. None: they are decoded first, or nobody gets
    them."""
    _held_answer: HeldAnswer
    """Set with the first that is held, since nearly none is: an error, or an answer of which its
    form lets nothing go on yet."""
    _mask: NameMask | None
    _answer_times: AnswerTimes | None
    """Counts when answers of a stream come. Set with the head of the answer, as is `_mask`."""

    # The request

    def begin_dial(self) -> None:
        """Have it sent over a connection of its own, once there is one."""
        name = f"dial-http:{self.backend.name}"
        self.owner.relay.parts.tasks.spawn(self._dial(self.owner.relay), name=name)

    async def _dial(self, relay: Http1Shared) -> None:
        backend, port = self.backend, self.port
        connection: Http1ClientConnection | None
        relay.find_descriptor()
        relay.dialling += 1
        renewals = relay.upstreams.renewals
        try:
            _, connection = await dial(
                relay.loop,
                port.address,
                lambda: Http1ClientConnection(relay, backend, port),
                relay.options.connect_timeout_s,
                tls=relay.parts.tls.find(port.tls, AppProtocol.HTTP),
                handshake_s=relay.options.handshake_timeout_s,
                iteration=relay.iteration,
            )
        except UpstreamError as failure:
            port.connect_failures += 1
            outcome, detail = failure.outcome, failure.detail
            connection = None
        else:
            port.connects += 1
            relay.upstreams.dialled(connection, renewals)
            outcome, detail = Outcome.CONNECT_FAILED, "closed as soon as it was open"
        finally:
            relay.dialling -= 1
        is_wanted = self.outcome is None
        if connection is None or connection.transport is None:
            if is_wanted:
                self.failed(outcome, detail)
        elif is_wanted and port.is_given_up:
            # Its kernel accepts connections all the same, and nobody would look at this one again.
            connection.close()
            self.failed(Outcome.CONNECT_FAILED, "the backend is silent")
        elif is_wanted:
            self.connected_at = relay.clock()
            self.send_over(connection)
        else:
            connection.release(reusable=True)

    def send_over(self, connection: Http1ClientConnection) -> None:
        """Send what there is of the request; more goes the same way as it comes."""
        # HOT PATH (benchmarks/bench_http1_relay.py). `Port` counts are bumped in place.
        self.connection = connection
        connection.attempt = self
        owner = self.owner
        self.port.bytes_sent += owner.bytes_in
        body = self.body
        body.send(connection)
        if not body.ended and self.client is not None:
            owner.invite_body(self.client)

    @property
    def sent_at(self) -> float:
        """See `AnswerSink`."""
        return self.connected_at

    def upload_changed(self) -> None:
        """The backend takes the request more slowly than it comes, or has caught up."""
        self.body.upload_changed()

    # Ends

    def failed(self, outcome: Outcome, detail: str) -> None:
        """It ended without a complete answer; its connection is closed."""
        owner = self.owner
        client = self.client
        self.connection = self.body.connection = None
        if client is not None:
            client.end_pump()
        owner.relay.accounts.attempt_ended(self, outcome)
        extra = {"backend": self.backend.name, "outcome": outcome.value, "detail": detail}
        _log.debug("attempt failed", extra=extra)
        self._over()
        if client is not None:
            owner.attempt_failed(outcome, detail)

    def backend_hung(self) -> None:
        """The backend is silent: fail over, if that is allowed and there is another one."""
        if self.client is not None and self.is_hung:
            self.owner.leave_backend(outcome_of_silence(self))

    def leave(self, outcome: Outcome) -> None:
        """Nobody wants the answer: let a Triton compute it, or end the attempt with `outcome`."""
        self.client = self.chunks_to = None
        if self.body is not self.owner.body:
            self.body.forget()  # a hedge sends by itself
        connection = self.connection
        if (
            connection is not None
            and self.body.ended
            and self.body.unsent is None
            and self.plan.is_inference
            and self.backend.spec.kind is BackendKind.TRITON
            and (connection.is_reading or not self._begun)
        ):
            connection.set_reading(True)
            relay = self.owner.relay
            relay.abandoned[self] = outcome
            left_s = abandoned_until(self) - relay.clock()
            give_up = partial(self._give_up, outcome)
            self._abandoned = relay.timers.after(max(left_s, 0.0), give_up)
        else:
            self.end(outcome)

    def disconnect(self, outcome: Outcome) -> None:
        """It is abandoned, and others need its descriptor. A Triton executes it all the same, so it
        stays in flight until it is expected to be executed, and ends with `outcome`."""
        relay = self.owner.relay
        connection = self.connection
        self.connection = self.body.connection = None
        if connection is not None:
            relay.upstreams.drop(connection)
        left_s = executed_until(self) - relay.clock()
        if left_s <= 0.0 or self._begun:
            self.end(outcome)
            return
        del relay.abandoned[self]
        if self._abandoned is not None:
            self._abandoned.cancel()
        self._abandoned = relay.timers.after(left_s, partial(self.end, outcome))

    def _give_up(self, outcome: Outcome) -> None:
        """Nobody waits for the answer, and it will probably never come."""
        report_abandoned(self, self.owner.relay.clock())
        self.end(outcome)

    def end(self, outcome: Outcome) -> None:
        """End it before it is answered."""
        connection = self.connection
        self.connection = self.body.connection = None
        if connection is not None:
            connection.close()
        self.owner.relay.accounts.attempt_ended(self, outcome)
        self._over()

    def _over(self) -> None:
        """It has ended, and was counted: leave nothing behind."""
        if self._abandoned is not None:
            self._abandoned.cancel()
            self._abandoned = None
            self.owner.relay.abandoned.pop(self, None)
        if self.owner.hedge is self:
            self.owner.hedge = None

    # The answer

    def on_whole_answer(self, head: ResponseHead, data: bytes, end: int) -> None:
        """Relay an answer that came in one read, `data`, with its body from `end` on."""
        # HOT PATH (benchmarks/bench_http1_relay.py). Does for the common case what `on_answer`,
        # `_end` and `_over` do for all; the bytes go out as they came where the head may stay.
        client = self.client
        owner = self.owner
        plan = owner.plan
        body = self.body
        if (
            client is None
            or not (plan.is_plain or plan.is_plain_whole)
            or not body.ended
            or client.is_leaving
            or owner.form is not None
            or (head.length < LEAST_RESPONSE and plan.is_inference)
        ):
            is_sure = head.length >= LEAST_RESPONSE or not plan.is_inference
            if client is None and is_sure and self._try_overtake(head):
                self.on_whole_answer(head, data, end)
            else:
                self._on_answer_slowly(head, data, end)
            return
        accounts = owner.relay.accounts
        now = accounts.clock()
        self.first_byte_at = now
        owner.status = status = head.status
        owner.bytes_out = size = head.length
        port = self.port
        port.last_byte_at = now
        port.bytes_received += size
        if body.charged:
            body.forget()
        transport = client.transport
        if transport is not None:
            transport.write(data if head.is_clean else head.plain + data[end:])
        owner.server = body.client = None
        connection = self.connection
        if connection is not None:
            connection.release(reusable=head.keep_alive)
        hints = owner.hints
        if owner.permit is None and (hints is None or hints.step is None):
            accounts.answered_whole(self, status, now, are_bytes_counted=True)
            if self.ticket is not None:
                if status == _OK:
                    accounts.queue.scheduler.complete(self.ticket, now, _GOOD)
                else:
                    accounts.queue.ended(self, _ANSWERED, status, now)
        else:
            accounts.attempt_ended(self, _ANSWERED, status)
            accounts.finish(owner)
        client.exchange_over(keep_alive=True)

    def _on_answer_slowly(self, head: ResponseHead, data: bytes, end: int) -> None:
        pieces: list[Payload] = []
        decoder = LengthDecoder(head.length)
        decoder.decode(data, end, pieces)
        self.on_answer(head, pieces, decoder, reusable=True)

    def _try_overtake(self, head: ResponseHead) -> bool:
        """Take the place of the first attempt if this is a second one beside it, and no error.
        Returns whether it does."""
        owner = self.owner
        if owner.hedge is not self:
            return False
        first = owner.running
        if (
            head.is_error
            or first is None
            or first.first_byte_at
            or not owner.is_sent
            or self.body.unsent is not None
        ):
            owner.hedge = None
            return False
        owner.relay.accounts.overtake(owner)
        own_body = self.body
        self.take_over()
        if first.is_sent:
            # It may run on, and the request may have to be sent again: each needs a body.
            first.body = own_body
        first.leave(Outcome.OVERTAKEN)
        return True

    @property
    def _runs_on(self) -> bool:
        """Whether it is under way although nobody wants its answer."""
        return self.client is None and self.outcome is None

    @property
    def is_sent(self) -> bool:
        """Whether its connection has all of the request."""
        return self.connection is not None and self.body.unsent is None

    def take_over(self) -> None:
        """Its answer goes to the client from now on."""
        owner = self.owner
        self.client = owner.server
        self.body = owner.body
        self.body.connection = self.connection

    def on_interim(self, head: ResponseHead) -> None:
        """Pass a 1xx answer on. 100 (Continue) is ours to give, HTTP/1.0 knows none of them."""
        if self.client is not None and head.status != 100 and not self.plan.is_http10:
            self.client.write([head.plain])

    def on_answer(
        self,
        head: ResponseHead | None,
        pieces: list[Payload],
        decoder: BodyDecoder,
        *,
        reusable: bool,
    ) -> None:
        """Relay a part of the answer as it was read.

        Args:
            head: the final head, with the first part.
            pieces: payload.
            decoder: says whether this was the end, and holds the trailers.
            reusable: nothing came behind the end.
        """
        if (
            head is not None
            and self.client is None
            and not self._says_nothing(head, pieces, decoder)
            and not self._lacks_outputs(head, pieces, decoder)
        ):
            self._try_overtake(head)
        form = self.owner.form
        if form is not None and self.client is not None:
            taken = form.take(head, pieces, ended=decoder.ended)
            if taken is None:
                if head is not None:
                    self._held_answer = HeldAnswer(head, [])
                    if not head.is_error:
                        self.first_byte_at = self.owner.relay.clock()
                self._bar_short_ways()
                if not (decoder.ended and self._runs_on):
                    return
                head = None  # the end of the answer made its batch give way: nobody wants it
            else:
                head, pieces = taken
        if form is not None and self.client is None and head is None and not self._begun:
            # Its client has left within an answer of which nothing had gone on.
            held_head = self._held_answer.head
            if not held_head.is_error:
                self._begin_answer(held_head, self.owner.relay.clock(), [])
        if not self._begun and (head is None or head.is_error):
            held = self._hold(head, pieces)
            if self._await_rest(held, decoder) or self._on_error(held, decoder, reusable=reusable):
                return
            head, pieces = held.head, held.pieces
        elif head is not None and self._lacks_outputs(head, pieces, decoder):
            reusable = reusable and decoder.ended
            if self._try_replace(reusable=reusable and head.keep_alive):
                return
        if head is not None and self._says_nothing(head, pieces, decoder):
            if self.connection is not None:
                self.connection.close()
            self.failed(Outcome.PROTOCOL_ERROR, _UNUSABLE)
            return
        now = self.owner.relay.clock()
        size = sum(map(len, pieces))
        port = self.port
        port.last_byte_at = now
        port.bytes_received += size
        message: list[Payload] = []
        if head is not None:
            self._begin_answer(head, now, message)
            if not decoder.ended and self._may_be_short(head):
                self._mask = ShortResponse(self._mask)
        client = self.client
        if client is not None:
            self.owner.bytes_out += size
            if size and self._answer_times is not None:
                self._answer_times.on_answer(now)
            mask = self._mask
            if mask is not None:
                pieces = [mask.feed(bytes(piece)) for piece in pieces]
            self._frame(message, pieces, size, decoder)
            if message:
                client.write(message)
        if decoder.ended:
            if isinstance(self._mask, ShortResponse) and self._mask.lacks_outputs:
                self.owner.relay.dispatcher.blame.answered_otherwise(self)
            self._tell_of_last(pieces)
            self._end(reusable=reusable)
        elif client is None and self._abandoned is None:
            # The error of a second attempt, which nobody waits for any more.
            self.leave(Outcome.OVERTAKEN)

    def _says_nothing(
        self, head: ResponseHead, pieces: list[Payload], decoder: BodyDecoder
    ) -> bool:
        """Whether an answer to an inference says that all is well and is empty: then nothing of it
        goes to the client, and another backend may be asked."""
        is_good = head.status in _SUCCESSES
        return decoder.ended and is_good and self.plan.is_inference and not any(pieces)

    def _lacks_outputs(
        self, head: ResponseHead, pieces: list[Payload], decoder: BodyDecoder
    ) -> bool:
        """Whether an answer to an inference has a good status and is something else, as far as its
        first read tells without parsing: a page for people, a redirection, or a few bytes of JSON
        without outputs."""
        if head.is_error or not self.plan.is_inference:
            return False
        if head.is_foreign:
            return True
        if not (decoder.ended and self._may_be_short(head)):
            return False
        return sum(map(len, pieces)) < LEAST_RESPONSE and lacks_outputs(b"".join(pieces))

    def _may_be_short(self, head: ResponseHead) -> bool:
        """Whether an answer to an inference may have a good status and be too short for a result,
        as far as its head tells."""
        return (
            self.plan.is_inference
            and head.length < LEAST_RESPONSE
            and not (head.is_error or head.is_encoded)
        )

    def needs_payload(self, head: ResponseHead) -> bool:
        """See `AnswerSink`."""
        return self.plan.is_inference and head.status in _SUCCESSES

    def on_middle(self, data: bytes) -> bool:
        """Relay a read in the middle of a body of known length. False as `on_whole_chunks`."""
        # HOT PATH (benchmarks/bench_http1_relay.py). The most of a large answer, without a list.
        client = self.client
        transport = None if client is None else client.transport
        if transport is None or self._mask is not None:
            return False
        size = len(data)
        owner = self.owner
        port = self.port
        port.last_byte_at = owner.relay.clock()
        port.bytes_received += size
        owner.bytes_out += size
        transport.write(data)
        return True

    @property
    def answer_passes(self) -> bool:
        """Whether what is left of the answer may pass unseen."""
        return self._mask is None

    def count_answer(self, size: int) -> None:
        """Some of the body of an answer has passed unseen."""
        port = self.port
        port.last_byte_at = self.owner.relay.clock()
        port.bytes_received += size
        self.owner.bytes_out += size

    def on_whole_chunks(self, data: bytes, size: int) -> bool:
        """Relay a part of the answer that was read as whole chunks, with so much payload. False
        when it cannot go on as it came, and `on_answer` is to relay it."""
        # HOT PATH (benchmarks/bench_http1_relay.py). One or several events of a stream: does what
        # `on_answer` does for them, without taking them apart and putting them together again.
        # Several chunks end a line each, and no name of a region goes on in the next line.
        transport = self.chunks_to
        if transport is None:
            return False
        mask = self._mask
        if mask is not None and not mask.passes(data):
            return False
        owner = self.owner
        port = self.port
        port.last_byte_at = now = owner.relay.clock()
        times = self._answer_times
        if times is not None:
            times.on_answer(now)
        port.bytes_received += size
        owner.bytes_out += size
        transport.write(data)
        return True

    def _hold(self, head: ResponseHead | None, pieces: list[Payload]) -> HeldAnswer:
        """An error, or more of it, has come."""
        if head is not None:
            return HeldAnswer(head, pieces)
        self._held_answer.add(pieces)
        return self._held_answer

    def _await_rest(self, held: HeldAnswer, decoder: BodyDecoder) -> bool:
        """Hold an error whose rest is to come, since the request may fail over because of it. False
        where nothing is awaited."""
        body = self.body
        if (
            decoder.ended
            or held.size > ERROR_BYTES
            or self.client is None
            or not (body.ended and body.is_retained)
        ):
            return False
        self._held_answer = held
        self._bar_short_ways()
        return True

    def _bar_short_ways(self) -> None:
        """Some of the answer has come, and nothing of it may go on yet."""
        self._mask = NameMask()
        self.chunks_to = None

    def _on_error(self, held: HeldAnswer, decoder: BodyDecoder, *, reusable: bool) -> bool:
        """A backend answers with an error. Returns whether the request fails over."""
        head = held.head
        text = http_error_text(b"".join(held.pieces)) if decoder.ended else ""
        is_broken = self.owner.relay.dispatcher.blame.answered_with_error(self, head.status, text)
        return bool(text) and self._try_failover(head, text, is_broken=is_broken, reusable=reusable)

    def _try_replace(self, *, reusable: bool) -> bool:
        """A backend answers an inference without a result: have another attempt follow. False:
        the client gets that answer."""
        owner = self.owner
        outcome = Outcome.PROTOCOL_ERROR
        follows = Next.NOTHING
        if self.client is not None and self.body.ended:
            follows = owner.take_next(outcome)
        if follows is Next.NOTHING:
            owner.relay.dispatcher.blame.answered_otherwise(self)
            if owner.hedge is self:
                owner.hedge = None
            return False
        self._leave_for(follows, outcome, reusable=reusable)
        return True

    def _leave_for(self, follows: Next, outcome: Outcome, *, reusable: bool) -> None:
        """Have another attempt follow this one, nothing of whose answer has gone on."""
        owner = self.owner
        connection = self.connection
        self.connection = self.body.connection = None
        if connection is not None:
            connection.release(reusable=reusable)
        owner.relay.accounts.attempt_ended(self, outcome)
        self._over()
        owner.go_on_after(follows, outcome)

    def _tell_of_last(self, pieces: list[Payload]) -> None:
        """A stream of events may end with one that is an error."""
        if pieces and self.plan.operation is MODEL_GENERATE_STREAM and self.status == _OK:
            text = http_error_text(bytes(pieces[-1][: ERROR_BYTES + 1]))
            if text:
                self.owner.relay.dispatcher.blame.answered_with_error(self, _INTERNAL, text)

    def _try_failover(
        self, head: ResponseHead, text: str, *, is_broken: bool, reusable: bool
    ) -> bool:
        """Have the request fail over if this backend says that it cannot serve it. False: the error
        is for the client."""
        body = self.body
        if self.client is None or not body.ended:
            return False
        owner = self.owner
        relay = owner.relay
        known: Meaning | None = None
        if head.not_run:
            known = Meaning.NOT_RUN
        elif head.status in HTTP_STATUSES:
            known = meaning(text)
        follows = Next.NOTHING
        if known is None:
            outcome = Outcome.BROKEN
            if is_broken:
                follows = owner.take_next(outcome)
            if follows is Next.NOTHING:
                return False
        else:
            outcome = Outcome.NOT_HERE
            if not relay.retry.take_failover(owner, known, body_retained=body.is_retained):
                return False
        reusable = reusable and head.keep_alive
        if known is None:
            self._leave_for(follows, outcome, reusable=reusable)
            return True
        connection = self.connection
        self.connection = body.connection = None
        if connection is not None:
            connection.release(reusable=reusable)
        self.failed(outcome, known.value)
        return True

    def _begin_answer(self, head: ResponseHead, now: float, message: list[Payload]) -> None:
        body = self.body
        body.forget()
        if not self.first_byte_at:  # its form may have withheld the beginning
            self.first_byte_at = now
        self.status = status = head.status
        self._begun = True
        self._backend_keeps = head.keep_alive
        plan = self.plan
        is_stream = plan.operation is MODEL_GENERATE_STREAM
        self._mask = NameMask() if head.is_error or is_stream else None
        self._answer_times = (
            AnswerTimes(self.owner.relay.traffic, self.owner, self.owner.started_at)
            if is_stream and not head.is_error
            else None
        )
        self._frames_chunks = head.length < 0 and not plan.is_http10
        client = self.client
        if client is None:
            self.chunks_to = None
            return
        form = self.owner.form
        passes_chunks = self._frames_chunks and (form is None or not form.changes_all)
        self.chunks_to = client.transport if passes_chunks else None
        # A client that is still sending may never end; one of HTTP/1.0 takes the end of the
        # connection for the end of a body without a length.
        self._client_keeps = (
            plan.keep_alive
            and body.ended
            and not client.is_leaving
            and (head.length >= 0 or not plan.is_http10)
        )
        shown = head.downstream(to_http10=plan.is_http10, keep_alive=self._client_keeps)
        owner = self.owner
        if head.not_run and plan.hops and not owner.may_have_run:
            shown = b"%b%b: %b\r\n\r\n" % (shown[:-2], NOT_RUN, head.not_run)
        if plan.cross_origin is not None:
            shown = drop_fields(shown, RESPONSE_FIELDS)
        if plan.discloses or plan.cross_origin is not None:
            shown = shown[:-2] + owner.own_lines + CRLF
        if owner.form is not None:
            status, shown = owner.form.rewrite(head, shown)
        self.status = owner.status = status
        owner.response_begun = True
        if plan.is_sampled:
            recording = owner.relay.parts.payloads.recording_of(owner)
            if recording is not None:
                self._mask = RecordedResponse(recording, shown, self._mask)
        if plan.has_variants:
            recording = owner.relay.parts.shadows.recording_of(owner)
            if recording is not None:
                self._mask = RecordedResponse(recording, shown, self._mask)
        message.append(shown)

    def _frame(
        self, message: list[Payload], pieces: list[Payload], size: int, decoder: BodyDecoder
    ) -> None:
        """Add a part of the body as the client gets it: all of one read is one chunk."""
        if not self._frames_chunks:
            message += few(pieces)
            return
        if size:
            message.append(b"%x\r\n" % size)
            message += few(pieces)
            message.append(CRLF)
        if decoder.ended:
            trailers = b""
            if isinstance(decoder, ChunkedDecoder) and decoder.trailers:
                trailers = forwardable_trailers(decoder.trailers)
            message.append(b"0\r\n%b\r\n" % trailers if trailers else LAST_CHUNK)

    def _end(self, *, reusable: bool) -> None:
        """The answer is complete."""
        owner = self.owner
        body = self.body
        client = self.client
        if body.charged or not body.ended or owner.handler is not None:
            if client is not None:
                owner.end_upload()
            else:
                body.end()
        connection = self.connection
        self.connection = None
        if connection is not None:
            connection.release(reusable=reusable and self._backend_keeps and body.ended)
        accounts = owner.relay.accounts
        if client is None:
            accounts.attempt_ended(self, _ANSWERED, self.status)
            self._over()
            return
        owner.server = self.client = body.client = body.connection = None
        accounts.attempt_ended(self, _ANSWERED, self.status)
        accounts.finish(owner)
        self._over()
        client.exchange_over(keep_alive=self._client_keeps)
