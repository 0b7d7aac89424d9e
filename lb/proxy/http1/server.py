"""A client's connection: requests come in one after the other, answers go out in that order.

Bounded in every state: a head by its limits, a body by what the backend takes, pipelined
requests by `buffer_size`, answers by the water mark of the transport; and each of them by time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from math import inf
from typing import Final, cast

from lb.domain.client import NOBODY, Client, ClientKey, key_of_client
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Outcome, Reason
from lb.kserve.operations import HTTP_MODEL_READY
from lb.net.client import client_of
from lb.net.intake import Intake
from lb.net.sockets import acknowledged_bytes, reset_on_close, unsent_bytes
from lb.net.splice import LEAST, Pump, is_plain
from lb.net.timers import Timer
from lb.proxy.disclosure import REQUEST_ID, new_request_id
from lb.proxy.failure import http_status
from lb.proxy.http1.answers import LONG_ANSWER, REASONS, Answer, error, model_ready, own, refusal
from lb.proxy.http1.asked import AskedRequest
from lb.proxy.http1.client import JOIN_BYTES, PIECE_COST, write_pieces
from lb.proxy.http1.deadline_timer import DeadlineTimer
from lb.proxy.http1.exchange import Http1Exchange
from lb.proxy.http1.front import Front, FrontDecision
from lb.proxy.http1.heads import ORDINARY_HEAD, UNREADABLE, UNREADABLE_HEAD, RequestPlan
from lb.proxy.http1.recorded import RecordedRequest
from lb.proxy.http1.request_body import UNCOUNTED
from lb.proxy.http1.shared import Http1Shared, know_nothing
from lb.proxy.http1.sides import ClientSide
from lb.proxy.http1.split_request import SplitRequest, split_request, stays_whole
from lb.proxy.http1.variants import VariantHandler
from lb.proxy.http1.watched import guard
from lb.wire.http1.body import (
    FEW,
    PIECES_AT_ONCE,
    BodyDecoder,
    LengthDecoder,
    Payload,
    make_decoder,
)
from lb.wire.http1.collect import END, HeadCollector
from lb.wire.http1.errors import MessageError
from lb.wire.http1.forwarded import (
    CLAIMS,
    ClientOrigin,
    add_field,
    add_forwarded,
    add_x_forwarded,
    drop_fields,
)
from lb.wire.http1.trace_fields import with_context
from lb.wire.memory_budget import Payer
from lb.wire.rope import Held
from lb.wire.trace_context import Traces


class State(Enum):
    """What a client's connection does."""

    READY = "ready"
    """No request is under way and none has begun to arrive."""
    HEAD = "head"
    """A part of a head has arrived."""
    BODY = "body"
    """A request is under way and its body is still arriving."""
    BUSY = "busy"
    """A request has arrived as a whole and is under way."""
    LINGER = "linger"
    """All is said; what the client still sends is thrown away so that it can hear it."""
    CLOSED = "closed"


_READY: Final = State.READY
_HEAD: Final = State.HEAD
_BODY: Final = State.BODY
_BUSY: Final = State.BUSY
_LINGER: Final = State.LINGER
_STEPS_AT_ONCE: Final = 16
"""Requests, or parts of a body, of one connection in one iteration of the loop: a read may bring
5,000 requests that we answer ourselves."""
_STEP_COST: Final = 60
"""Units of `IterationBudget` for one of them."""


class Http1ServerConnection(ClientSide):
    """A client's connection with its requests.

    Whatever a client can hold up is bounded by time: a head, a body, taking its answer, closing.
    """

    __slots__ = (
        "_age_timer",
        "_at",
        "_backlog",
        "_charged",
        "_collector",
        "_deadline_timer",
        "_decoder",
        "_found",
        "_goes_on",
        "_identity",
        "_is_processing",
        "_known_plan",
        "_lingered",
        "_pending",
        "_plan",
        "_taken",
        "_turn",
        "_unsent",
        "_unsent_since",
        "client",
        "closes",
        "eof",
        "exchange",
        "front",
        "held",
        "is_full",
        "is_leaving",
        "is_plain",
        "is_reading",
        "options",
        "pump",
        "relay",
        "served",
        "since",
        "state",
        "transport",
    )  # fmt: skip

    def __init__(self, relay: Http1Shared, front: Front | None = None) -> None:
        """
        Args:
            relay: its options, memory budget and timers hold.
            front: says what the requests mean, where they are not those of the v2 protocol.
        """
        self.relay = relay
        self.front = front
        self._turn: FrontDecision | None = None
        """What the front said of the request under way."""
        self.options = relay.options
        """The options in force when its request began, or else now."""
        self.is_leaving = relay.draining
        """It closes after the next answer, which says so."""
        self.closes = relay.draining
        """It closes after the answer under way, even if that could not say so."""
        self.transport: asyncio.Transport | None = None
        """None before it is connected and once it is lost."""
        self.client: Client = NOBODY
        self._identity: tuple[bytes, bytes] | None = None
        """Name and value of the field that tells whose certificate the client has shown."""
        self.exchange: Http1Exchange | None = None
        """The request under way."""
        self.state = State.READY
        self.since = 0.0
        """When the client last did what the state waits for."""
        self.served = False
        """At least one request was read."""
        self.eof = False
        """The client sends nothing more."""
        self.is_plain = False
        """What passes the transport is what passes its socket."""
        self.is_reading = True
        self.is_full = False
        """The client takes its answers more slowly than they come."""
        self._lingered = 0
        # How much of an answer the client left waiting, and since when.
        self._unsent = 0
        self._unsent_since = 0.0
        self._taken = 0
        self._age_timer: Timer | None = None
        self._deadline_timer = DeadlineTimer(relay.timers, relay.clock, self._look_at_time)
        self.held = 0
        """For the memory budget, which writes it."""
        self._look_up_heads()
        # What was read and not used yet: `_pending` from `_at` on.
        self._pending = b""
        self._at = 0
        self._charged = 0
        """Bytes of it in the memory budget."""
        self._backlog = 0
        """Bytes of answers in the memory budget that the client does not take."""
        self._found: tuple[bytes, RequestPlan] | None = None
        """The head that `_pending` begins with, and what it means, where it was read already and
        is so long that no cache keeps it, or the payload log takes a sample of such."""
        self._collector = HeadCollector(self.options.head, of_request=True)
        self._decoder: BodyDecoder | None = None
        """Decodes the request's body while it arrives."""
        self._is_processing = False
        self._goes_on = False
        """Some of what was read is used in a later iteration of the loop."""
        self.pump: Pump | Intake | None = None
        """Moves a body, or reads it, in place of the transport's reading."""

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client connected."""
        relay = self.relay
        relay.servers.add(self)
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=self.options.buffer_size)
        self.is_plain = is_plain(self.transport)
        self.client = client_of(transport, self.options.trusted_proxies)
        self._identity = transport.get_extra_info("identity_field")
        relay.traffic.accepted += 1
        relay.traffic.connections += 1
        self.since = relay.clock()
        self._deadline_timer.expire_by(self.since + self.options.head_timeout_s)
        if not relay.parts.connection_limiter.enter(self.client.address):
            relay.traffic.connection_failed(Reason.TOO_MANY_CONNECTIONS)
            self.state = State.CLOSED
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the client is gone."""
        relay = self.relay
        relay.servers.discard(self)
        relay.paused_clients.discard(self)
        self._drop_backlog()
        self.transport = None
        self.state = State.CLOSED
        self._deadline_timer.cancel()
        self.limit_age(0.0)
        relay.traffic.connections -= 1
        relay.parts.connection_limiter.leave(self.client.address)
        exchange = self.exchange
        self.exchange = None
        if exchange is not None:
            exchange.client_gone(Reason.CLIENT_GONE)
        self.drop_pending()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        # HOT PATH (benchmarks/bench_http1_relay.py). A whole request in one read takes neither
        # decoder nor buffer, and most reads in the middle of a body no list. Everything else takes
        # `_process`, the plain form.
        if self.state is _READY and not self._pending and not self.is_full:
            end = data.find(END) + 4
            if end > 3:
                head = data[:end]
                plan = self._known_plan(head)
                if plan is None and (end <= ORDINARY_HEAD or self.relay.iteration.left > 0):
                    plan = self._plan(head)
                if (
                    plan is not None
                    and (plan.is_plain or plan.is_plain_whole)
                    and plan.length == len(data) - end
                ):
                    relay = self.relay
                    now = relay.clock()
                    exchange = Http1Exchange(relay, self, plan, now)
                    if plan.is_plain or stays_whole(exchange, data, end):
                        self.state = _BUSY
                        self.exchange = exchange
                        if self.options.request_timeout_s:
                            self._deadline_timer.expire_by(now + self.options.request_timeout_s)
                        head = plan.upstream
                        if relay.draw is not None and (relay.draw() or plan.context is not None):
                            # Where the context does not decide, it is drawn anew: that is as good.
                            is_drawn = plan.context is None or relay.draw() != 0
                            head = self._trace(exchange, head, is_drawn=is_drawn)
                        exchange.start_whole(
                            head, data[end:] if len(data) <= JOIN_BYTES else memoryview(data)[end:]
                        )
                        return
                if plan is not None and (end > ORDINARY_HEAD or plan.share):
                    self._found = (head, plan)
        if self.state is _LINGER:
            self.throw_away(data)
            return
        decoder, under_way = self._decoder, self.exchange
        if (
            type(decoder) is LengthDecoder
            and under_way is not None
            and len(data) < decoder.remaining
            and not self._pending
            and under_way.on_middle(data)
        ):
            decoder.remaining -= len(data)
            self.since = self.relay.clock()
            if self.is_plain:
                self._start_pump()
            return
        self._pending = self._pending[self._at :] + data if self._pending else data
        self._at = 0
        self._process()

    def eof_received(self) -> bool:
        """asyncio: the client sends nothing more (FIN, or the goodbye of TLS)."""
        self.eof = True
        self._handle_eof()
        return True

    def pause_writing(self) -> None:
        """asyncio: more waits to be written than should."""
        self.is_full = True
        self.watch_unsent()
        if self.exchange is not None:
            self.exchange.pause_answer()
        if not self._backlog:
            # Not at once: whoever is writing must not find itself evicted.
            self.relay.loop.call_soon(self._charge_backlog)

    def resume_writing(self) -> None:
        """asyncio: the client has caught up."""
        self._drop_backlog()
        self.is_full = False
        if self.exchange is not None:
            self.exchange.resume_answer()
        if self.exchange is None and self._pending:
            self._process()

    def write(self, pieces: list[Payload]) -> None:
        """Send a part of an answer."""
        if self.transport is not None:
            write_pieces(self.transport, pieces)

    # Reading

    def _process(self) -> None:
        """Use what was read as far as the state allows, but not very much of it at once."""
        if self._is_processing:
            return  # further down on the stack, which goes on with the loop
        if not self._goes_on:
            self._use_pending()
        if self._pending or self._charged:
            self._charge_pending()
        self.update_reading()
        if self.eof and not self._goes_on:
            self._handle_eof()

    def _use_pending(self) -> None:
        self._is_processing = True
        iteration = self.relay.iteration
        steps = 0
        try:
            while (
                self._pending
                and not self._goes_on
                and (self._read_body() if self.state is _BODY else self._read_head())
            ):
                steps += 1
                if (steps >= _STEPS_AT_ONCE or iteration.left <= 0) and self._pending:
                    self._let_others_go_first()
        except MessageError as fault:
            self._refuse(fault)
        finally:
            self._is_processing = False
        if steps > 1:
            iteration.spend(steps * _STEP_COST)

    def _let_others_go_first(self) -> None:
        """Go on with what was read, and read more, in a later iteration of the loop."""
        if not self._goes_on:
            self._goes_on = True
            self.relay.iteration.later(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        if self.transport is not None and self.state is not State.CLOSED:
            self._process()

    def _handle_eof(self) -> None:
        """End the connection of a client that sends nothing more, now or once it is answered."""
        if self._pending or self.state is _BUSY:
            if self.options.aborts_on_half_close:
                self.give_up()
        elif self.state is _BODY:
            self._refuse(MessageError(400, "request ended before its body was complete"))
        elif self.state is _HEAD:
            self._refuse(MessageError(400, "request ended before its head was complete"))
        else:
            self.close()

    @property
    def is_waiting(self) -> bool:
        """Whether its request waits for its turn, or for a backend."""
        exchange = self.exchange
        return exchange is not None and self.relay.dispatcher.queue.has(exchange)

    def give_up(self) -> None:
        """The client is gone: its requests end, and nothing more is sent to it."""
        exchange = self.exchange
        self.exchange = None
        if exchange is None:
            self.close()
            return
        exchange.client_gone(Reason.CLIENT_GONE)
        self.truncate(reset=exchange.response_begun and exchange.plan.is_http10)

    def _read_head(self) -> bool:
        """Read a head and begin its request. False when there is nothing more to do now."""
        if self.state not in (_READY, _HEAD) or self.is_full:
            return False
        collected_size = len(self._collector)
        end = -1 if collected_size else self._pending.find(END, self._at)
        size = collected_size + (end if end >= 0 else len(self._pending)) - self._at
        if size > ORDINARY_HEAD and self._found is None and self.relay.iteration.left <= 0:
            self._let_others_go_first()
            return False
        if end >= 0:
            head = self._pending[self._at : end + 4]
            self._advance(end + 4)
            # RFC 9112 2.2: one empty line before a request; some clients end bodies with it.
            head = head.removeprefix(b"\r\n")
        else:
            collected = self._collector.feed(self._pending[self._at :])
            self._pending = self._collector.rest
            self._at = 0
            if collected is None:
                self._wait_for_head()
                return False
            head = collected
        self._begin(self._read_plan(head))
        return True

    def _look_up_heads(self) -> None:
        """Look heads up among those that were seen before. No head means to a front what it says,
        so none is known there."""
        relay = self.relay
        is_v2 = self.front is None
        self._known_plan = relay.known_plan if is_v2 else know_nothing
        self._plan = relay.plan if is_v2 else know_nothing

    def _read_plan(self, head: bytes) -> RequestPlan:
        if self.front is not None:
            self._turn = turn = self.front.turn(head)
            return self.relay.heads.drawn(turn.plan)
        found = self._found
        self._found = None
        if found is not None and found[0] == head:
            return found[1]
        return self.relay.heads.request(head)

    def _wait_for_head(self) -> None:
        if self.state is _READY and len(self._collector):
            self.state = _HEAD
            self.since = self.relay.clock()
            self._deadline_timer.expire_by(self.since + self.options.head_timeout_s)

    def _begin(self, plan: RequestPlan) -> None:
        """Begin a request: its head is complete."""
        relay = self.relay
        options = self.options
        if options.body_size and plan.length > options.body_size:
            raise MessageError(413, "request body too large", to_head=plan.is_head)
        decoder = make_decoder(plan.length)
        pieces = self._decode(decoder) if self._pending and not decoder.ended else []
        self.since = now = relay.clock()
        self.served = True
        exchange = self._new_exchange(plan, now, pieces)
        self.exchange = exchange
        if decoder.ended:
            self.state = _BUSY
        else:
            self.state = _BODY
            self._decoder = decoder
            self._deadline_timer.expire_by(now + options.body_timeout_s)
        if exchange.deadline < inf:
            self._deadline_timer.expire_by(exchange.deadline)
        answer = self._own_answer(exchange)
        if answer is None and self._turn is not None and self._turn.answer is not None:
            answer = self._turn.answer()
        if answer is not None:
            exchange.answer_only(answer, ended=decoder.ended)
        else:
            taker = exchange.handler or exchange
            taker.start(self._upstream_head(exchange), pieces, ended=decoder.ended)
            if self.is_plain:
                self._start_pump()

    def _new_exchange(self, plan: RequestPlan, now: float, pieces: list[Payload]) -> Http1Exchange:
        relay = self.relay
        exchange = Http1Exchange(relay, self, plan, now)
        turn = self._turn
        if turn is not None:
            exchange.method, exchange.path = turn.method, turn.path
        if turn is not None and turn.arrange is not None:
            turn.arrange(exchange)
        elif (
            plan.route.is_asked
            and relay.parts.fan_out is not None
            and plan.operation.asks in relay.kinds
        ):
            exchange.handler = AskedRequest(exchange, relay.parts.fan_out)
        elif plan.is_inference and relay.dispatcher.gate.guards_regions:
            guard(exchange)
        if plan.has_variants:
            front = self.front
            by_platform = front is not None and front.chooses_variants
            exchange.handler = VariantHandler(exchange, by_platform=by_platform)
        elif plan.may_split and exchange.handler is None:
            exchange.handler = split_request(exchange, pieces)
        if plan.is_sampled and not plan.may_split:
            recording = relay.parts.payloads.record(exchange, plan.upstream)
            if recording is not None:
                exchange.handler = RecordedRequest(recording, exchange, exchange.handler)
        return exchange

    def _own_answer(self, exchange: Http1Exchange) -> Answer | None:
        """What we say to a request ourselves; None where it is for a backend."""
        plan = exchange.plan
        dispatcher = self.relay.dispatcher
        if plan.cross_origin is not None and plan.cross_origin.preflight:
            preflight = Answer(200)
            preflight.lines = plan.cross_origin.preflight
            return preflight
        if plan.loop:
            return error(http_status(Reason.LOOP), Reason.LOOP, plan.loop)
        if plan.credentials is not None:
            try:
                dispatcher.admit(exchange, plan.credentials, self.client)
            except RequestRefused as refused:
                return refusal(refused)
        if plan.has_variants and plan.operation is HTTP_MODEL_READY:
            is_ready = dispatcher.variants.is_ready(plan.model, exchange.protocol)
            return Answer(200) if is_ready else None
        if plan.operation is HTTP_MODEL_READY:
            return model_ready(plan, dispatcher.pool.current)
        if not plan.route.is_ours:
            return None
        return own(
            plan,
            dispatcher.pool.current,
            draining=dispatcher.exiting,
            identity=dispatcher.identity,
        )

    def _upstream_head(self, exchange: Http1Exchange) -> bytes:
        plan = exchange.plan
        head = plan.upstream
        options = self.options
        if options.disclosure.request_ids and not plan.request_id:
            exchange.request_id = new_request_id()
            head = add_field(head, REQUEST_ID, exchange.request_id)
        if options.private_fields:
            head = drop_fields(head, options.private_fields)
        if self._identity is not None:
            head = add_field(head, *self._identity)
        if options.x_forwarded or options.forwarded:
            head = self._add_origin(head, plan.host)
        draw = self.relay.draw
        return head if draw is None else self._trace(exchange, head, is_drawn=draw() != 0)

    def _trace(self, exchange: Http1Exchange, head: bytes, *, is_drawn: bool) -> bytes:
        """Trace a request, if it is to be. Returns its head for backends."""
        context = exchange.plan.context
        tracer = self.relay.dispatcher.tracer
        trace = tracer.begin(exchange, context, self.client, is_drawn=is_drawn)
        if trace is not None:
            return trace.tell(head)
        if context is not None and context.is_sampled and self.options.traces is Traces.PASS:
            return with_context(head, context)
        return head

    def _add_origin(self, head: bytes, host: bytes) -> bytes:
        options, client = self.options, self.client
        scheme = b"https" if client.is_encrypted else b"http"
        origin = ClientOrigin(str(client.address or "unknown").encode(), scheme)
        if not client.is_trusted_proxy:
            head = drop_fields(head, CLAIMS)
        if options.x_forwarded:
            head = add_x_forwarded(head, origin, host)
        if options.forwarded:
            head = add_forwarded(head, origin, host)
        return head

    def _read_body(self) -> bool:
        decoder, exchange = self._decoder, self.exchange
        if decoder is None or exchange is None:
            return False
        pieces = self._decode(decoder)
        self.since = self.relay.clock()
        if decoder.ended:
            self.state = _BUSY
            self._decoder = None
        (exchange.handler or exchange).add(pieces, ended=decoder.ended)
        if self.is_plain:
            self._start_pump()
        return True

    def _decode(self, decoder: BodyDecoder) -> list[Payload]:
        """Payload from what was read."""
        pieces: list[Payload] = []
        iteration = self.relay.iteration
        most = PIECES_AT_ONCE if iteration.left > 0 else FEW
        self._advance(decoder.decode(self._pending, self._at, pieces, most))
        if len(pieces) >= FEW:
            iteration.spend(len(pieces) * PIECE_COST)
            if self._pending and not decoder.ended:
                self._let_others_go_first()
        return pieces

    def _start_pump(self) -> None:
        """Have most of what is left of a long body moved to the backend, if that is possible."""
        decoder, exchange = self._decoder, self.exchange
        if (
            not isinstance(decoder, LengthDecoder)
            or decoder.remaining < LEAST
            or exchange is None
            or self.transport is None
            or not self.is_reading
            or self.eof
        ):
            return
        handler = exchange.handler
        if isinstance(handler, SplitRequest) and handler.is_decided:
            self.pump = self.relay.pumps.collect(
                self.transport,
                decoder.remaining,
                take=partial(self._collected, handler),
                over=self._pump_over,
            )
            return
        sink = exchange.passes(self)
        if sink is not None:
            self.pump = self.relay.pumps.start(
                self.transport,
                sink,
                decoder.remaining,
                high=self.options.buffer_size,
                moved=self._moved,
                over=self._pump_over,
            )

    def _moved(self, size: int) -> None:
        self.since = self.relay.clock()
        if isinstance(self._decoder, LengthDecoder):
            self._decoder.remaining -= size
        if self.exchange is not None:
            self.exchange.count_request(size)

    def _collected(self, request: SplitRequest, piece: Held) -> None:
        """Some of a body has come that is held whole."""
        self.since = self.relay.clock()
        if isinstance(self._decoder, LengthDecoder):
            self._decoder.remaining -= len(piece)
        if self.exchange is not None:
            request.add([piece], ended=False)

    def _pump_over(self) -> None:
        self.pump = None

    def end_pump(self) -> None:
        """The body has nowhere to go any more."""
        if self.pump is not None:
            self.pump.end()

    def _advance(self, at: int) -> None:
        if at == len(self._pending):
            self._pending = b""
            at = 0
        self._at = at

    def update_reading(self) -> None:
        """Read from the client exactly when what it sends can go somewhere."""
        if self.transport is None or self.eof:
            return
        if self.state is _BODY and self.exchange is not None:
            wanted = self.exchange.wants_body
        else:
            wanted = len(self._pending) - self._at <= self.options.buffer_size
        wanted = wanted and not self._goes_on
        if wanted is self.is_reading:
            return
        self.is_reading = wanted
        if wanted:
            self.since = self.relay.clock()
            if self.state is _BODY:
                # It may have rung while nothing was to come.
                self._deadline_timer.expire_by(self.since + self.options.body_timeout_s)
        if self.pump is not None:
            self.pump.set_reading(wanted)
        elif wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()
            self.relay.paused_clients.add(self)

    def _refuse(self, fault: MessageError) -> None:
        """The client broke a rule: say which, and close."""
        self.drop_pending()
        reason = REASONS.get(fault.status, Reason.BAD_REQUEST)
        exchange = self.exchange
        if exchange is not None:
            exchange.cut(Outcome.CANCELLED, reason, fault.text, status=fault.status)
            return
        relay = self.relay
        self.state = _BODY  # there may be more of it, so no other request can follow
        to_head = fault.to_head or self._collector.is_of_head_request
        plan = UNREADABLE_HEAD if to_head else UNREADABLE
        self.exchange = exchange = Http1Exchange(relay, self, plan, relay.clock())
        exchange.answer_only(error(fault.status, reason, fault.text), ended=False)

    def _refuse_late_head(self) -> None:
        """The client took too long to send a head."""
        self._refuse(MessageError(408, "request head took too long"))

    # Answers

    def send_answer(self, answer: Answer, plan: RequestPlan) -> None:
        """Send an answer of ours, which ends the exchange."""
        if answer.reason is Reason.BAD_REQUEST:
            self.state = _BODY  # nothing that follows a bad request is served
        keep_alive = self.state is _BUSY and plan.keep_alive and not self.is_leaving
        # A long body, which may be that of many answers, is not copied.
        is_long = len(answer.body) > LONG_ANSWER and not plan.is_head
        message = answer.encode(
            keep_alive=keep_alive, is_http10=plan.is_http10, is_head=plan.is_head or is_long
        )
        self.write([message, answer.body, *answer.rest] if is_long else [message, *answer.rest])
        self.exchange_over(keep_alive=keep_alive)

    def exchange_over(self, *, keep_alive: bool) -> None:
        """The answer is complete: on to the next request, or close."""
        # HOT PATH (benchmarks/bench_http1_relay.py). The timer nearly always ends early enough, so
        # it is asked before it is called.
        self.exchange = None
        if self.state is not _BUSY or self.transport is None:
            self._decoder = None
            self.linger()
        elif not keep_alive or self.closes:
            self.close()
        else:
            self.state = _READY
            self.served = True
            relay = self.relay
            self.since = now = relay.clock()
            if relay.options is not self.options:
                self.adopt()
            idle_until = now + self.options.client_idle_s
            if idle_until < self._deadline_timer.due:
                self._deadline_timer.expire_by(idle_until)
            if self.transport.get_write_buffer_size():
                self.watch_unsent()
            if self._pending or self.eof or not self.is_reading:
                self._process()

    def begin_drain(self, *, gently: bool = False) -> None:
        """Close as soon as no request is under way; gently, see `leave`."""
        self.leave()
        if not gently:
            self.closes = True
            if self.state is _READY and not self._pending:
                self.close()

    # Ends

    def limit_age(self, limit_s: float) -> None:
        """Have the client connect anew in `limit_s` seconds; 0: when it likes."""
        if self._age_timer is not None:
            self._age_timer.cancel()
        self._age_timer = self.relay.timers.after(limit_s, self.leave) if limit_s else None

    def leave(self) -> None:
        """Have the client connect anew after its next answer, which says so: it may be about to
        use a connection that it thinks is open."""
        self._age_timer = None
        self.is_leaving = True

    def abort(self) -> None:
        """Close now; a request that is under way ends."""
        if self.transport is not None:
            self.transport.abort()

    def discard(self) -> None:
        """Close now, and drop what the client has not taken: otherwise the kernel keeps it for
        minutes, for a reader that does not come."""
        if self.transport is not None:
            reset_on_close(self.transport)
            self.transport.abort()

    def truncate(self, *, reset: bool) -> None:
        """End an answer that cannot be completed, so that the client notices.

        Args:
            reset: the end of the connection would look like the end of the answer.
        """
        self.exchange = None
        if reset:
            self.discard()
        else:
            self.close()

    def close(self) -> None:
        """Close once everything is written, which the client must let happen in time."""
        self.state = State.CLOSED
        self.drop_pending()
        if self.transport is not None:
            self.watch_unsent()
            self.transport.close()

    def linger(self) -> None:
        """Say that nothing more comes, and let the client finish what it is sending: closing with
        unread bytes would reset the connection and take the answer from it (RFC 9112 9.6)."""
        self.drop_pending()
        if self.eof or self.transport is None:
            self.close()
            return
        self.state = State.LINGER
        self.since = self.relay.clock()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if not self.is_reading:
            self.is_reading = True
            self.transport.resume_reading()
        self._deadline_timer.expire_by(self.since + self.options.linger_s)

    def throw_away(self, data: bytes) -> None:
        """Something came while lingering."""
        self._lingered += len(data)
        if self._lingered > self.options.linger_size:
            self.close()

    # Time

    def watch_unsent(self) -> None:
        """Some of an answer waits to be taken: it must go on in time."""
        if self.transport is not None and self.transport.get_write_buffer_size():
            self._unsent = unsent_bytes(self.transport)
            self._taken = acknowledged_bytes(self.transport)
            self._unsent_since = self.relay.clock()
            self._deadline_timer.expire_by(self._unsent_since + self.options.body_timeout_s)

    def _look_at_time(self) -> None:
        """Do what is due, and set the timer for what is due next."""
        now = self.relay.clock()
        for due, act in self._deadlines():
            if due <= now:
                act()
                break
        for due, _ in self._deadlines():
            self._deadline_timer.expire_by(due)

    def _deadlines(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """What is due when, as things are now."""
        options = self.options
        if self.transport is None:
            return
        if self._unsent:
            self._note_progress(self.transport)
        if self._unsent:
            yield self._unsent_since + options.body_timeout_s, self._give_client_up
        if self.exchange is not None and self.exchange.deadline < inf:
            yield self.exchange.deadline, self._end_late_exchange
        match self.state:
            case State.READY:
                idle_s = options.client_idle_s if self.served else options.head_timeout_s
                yield self.since + idle_s, self.close
            case State.HEAD:
                yield self.since + options.head_timeout_s, self._refuse_late_head
            case State.BODY if self.is_reading:
                yield self.since + options.body_timeout_s, self._end_late_body
            case State.LINGER:
                yield self.since + options.linger_s, self.close

    def _note_progress(self, transport: asyncio.Transport) -> None:
        if not transport.get_write_buffer_size():
            self._unsent = 0
            return
        unsent, taken = unsent_bytes(transport), acknowledged_bytes(transport)
        # More may wait than before although much was taken: a backend may be faster.
        if unsent < self._unsent or taken > self._taken:
            self._unsent_since = self.relay.clock()
        self._unsent, self._taken = unsent, taken

    def _give_client_up(self) -> None:
        exchange = self.exchange
        self.exchange = None
        if exchange is not None:
            exchange.client_gone(Reason.CLIENT_STALLED)
        self.discard()

    def _end_late_exchange(self) -> None:
        if self.exchange is not None:
            self.exchange.deadline_passed()

    def _end_late_body(self) -> None:
        if self.exchange is not None:
            self.exchange.cut(
                Outcome.CANCELLED, Reason.BODY_TIMEOUT, "request body stopped arriving"
            )

    # Settings

    def configured(self) -> None:
        """The relay has other options: they hold from the next request on."""
        if self.exchange is None:
            self.adopt()

    def adopt(self) -> None:
        """Go by the relay's options from now on. No request is under way."""
        relay = self.relay
        self.options = options = relay.options
        self._look_up_heads()
        self._found = None
        self._collector.limits = options.head
        if self.state is _READY:
            self._deadline_timer.expire_by(self.since + options.client_idle_s)

    # Memory

    def charge(self, size: int) -> bool:
        """Put bytes in the memory budget, or take them off when `size` is negative.

        Returns:
            False when this connection was evicted instead.
        """
        if size > 0:
            return self.relay.memory_budget.take(self, size)
        self.relay.memory_budget.release(self, -size)
        return True

    def evict(self) -> None:
        """The memory budget needs the memory: end what is under way and close."""
        exchange = self.exchange
        is_slow = self._backlog > 0
        self.drop_pending()
        self._drop_backlog()
        if exchange is None:
            self.close()
        else:
            self.state = _BODY  # pipelined requests were dropped, so nothing can follow
            exchange.cut(Outcome.CANCELLED, Reason.MEMORY, "out of memory for requests")
        if is_slow:
            self.discard()

    @property
    def charged_to(self) -> Payer:
        """See `lb.wire.memory_budget.Holder`. It may hold bytes beyond its requests."""
        return self if self.exchange is None else self.exchange.whole

    @property
    def client_key(self) -> ClientKey:
        """See `Payer`."""
        return key_of_client(self.client.address)

    @property
    def client_connection(self) -> Http1ServerConnection:
        """See `Payer`."""
        return self

    def _charge_backlog(self) -> None:
        if self.transport is None or not self.is_full or self._backlog:
            return
        size = self.transport.get_write_buffer_size()
        if self.exchange is not None:
            size += self.exchange.backlog
        if size and self.charge(size):
            self._backlog = size

    def _drop_backlog(self) -> None:
        if self._backlog:
            self.charge(-self._backlog)
            self._backlog = 0

    def _charge_pending(self) -> None:
        owed = len(self._pending) - self._at
        if owed <= UNCOUNTED:
            owed = 0
        if owed != self._charged and self.charge(owed - self._charged):
            self._charged = owed

    def drop_pending(self) -> None:
        """Forget what was read and not used."""
        self._pending = b""
        self._at = 0
        self._found = None
        if self._charged:
            self.charge(-self._charged)
            self._charged = 0
