"""A client's connection: requests come in one after the other, answers go out in that order.

Bounded in every state: a head by its limits, a body by what the backend takes, pipelined
requests by `buffer_size`, answers by the water mark of the transport; and each of them by time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Final, cast

from lb.domain.backend import Address
from lb.domain.operation import Treatment
from lb.domain.outcome import Outcome, Reason
from lb.net.sockets import reset_on_close, unsent_bytes
from lb.proxy.http1.alarm import Alarm
from lb.proxy.http1.answers import REASONS, Answer, error, health
from lb.proxy.http1.client import write_pieces
from lb.proxy.http1.exchange import Http1Exchange
from lb.proxy.http1.heads import UNREADABLE, RequestPlan
from lb.proxy.http1.upload import UNCOUNTED
from lb.wire.http1.body import BodyDecoder, Payload, make_decoder
from lb.wire.http1.collect import END, HeadCollector
from lb.wire.http1.errors import MessageError
from lb.wire.http1.forwarded import ClientOrigin, add_forwarded, add_x_forwarded

if TYPE_CHECKING:
    from lb.proxy.http1.relay import Http1Relay


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


class ServerConnection(asyncio.Protocol):
    """One downstream connection."""

    __slots__ = (
        "_alarm", "_at", "_charged", "_collector", "_decoder", "_eof", "_is_processing",
        "_is_reading", "_known_plan", "_lingered", "_origin", "_pending", "_served", "_since",
        "_state", "_unsent", "_unsent_since", "client", "exchange", "held", "is_full", "relay",
        "transport",
    )  # fmt: skip

    def __init__(self, relay: Http1Relay) -> None:
        self.relay = relay
        self.transport: asyncio.Transport | None = None
        """None before it is connected and once it is lost."""
        self.client = ""
        self.exchange: Http1Exchange | None = None
        """The request under way."""
        self.is_full = False
        """The client takes its answers more slowly than they come."""
        self.held = 0
        """For the ledger, which writes it."""
        self._origin: ClientOrigin | None = None
        self._known_plan = relay.known_plan
        self._state = _READY
        self._since = 0.0
        """When the client last did what the state waits for."""
        self._served = False
        """At least one request was read."""
        self._eof = False
        """The client sends nothing more."""
        # What was read and not used yet: `_pending` from `_at` on.
        self._pending = b""
        self._at = 0
        self._charged = 0
        """Bytes of it on the ledger."""
        self._collector = HeadCollector(relay.options.head, of_request=True)
        self._decoder: BodyDecoder | None = None
        """Of the request's body, while it arrives."""
        self._is_processing = False
        self._is_reading = True
        self._lingered = 0
        # How much of an answer the client left waiting, and since when.
        self._unsent = 0
        self._unsent_since = 0.0
        self._alarm = Alarm(relay.timers, relay.clock, self._look_at_time)

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client connected."""
        relay = self.relay
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=relay.options.buffer_size)
        self.client, self._origin = peer_of(self.transport)
        relay.servers.add(self)
        relay.traffic.accepted += 1
        relay.traffic.connections += 1
        self._since = relay.clock()
        self._alarm.ring_by(self._since + relay.options.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the client is gone."""
        relay = self.relay
        self.transport = None
        self._state = State.CLOSED
        self._alarm.cancel()
        relay.servers.discard(self)
        relay.traffic.connections -= 1
        exchange = self.exchange
        self.exchange = None
        if exchange is not None:
            exchange.client_gone(Reason.CLIENT_GONE)
        self._drop_pending()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        # HOT PATH (benchmarks/bench_http1_relay.py). A whole request with a head that is known,
        # in one read, takes no decoder. Everything else takes `_process`, the plain form.
        if self._state is _READY and not self._pending and not self.is_full:
            end = data.find(END) + 4
            if end > 3:
                plan = self._known_plan(data[:end])
                if plan is not None and plan.is_plain and plan.length == len(data) - end:
                    self._state = _BUSY
                    relay = self.relay
                    now = relay.clock()
                    exchange = Http1Exchange(relay, self, plan, now)
                    self.exchange = exchange
                    if relay.options.request_timeout_s:
                        self._alarm.ring_by(now + relay.options.request_timeout_s)
                    exchange.start_whole(
                        data if plan.is_clean else plan.upstream + data[end:], plan.length
                    )
                    return
        if self._state is _LINGER:
            self._throw_away(data)
            return
        self._pending = self._pending[self._at :] + data if self._pending else data
        self._at = 0
        self._process()

    def eof_received(self) -> bool:
        """asyncio: the client sends nothing more, but may well wait for its answer."""
        self._eof = True
        if self._state is _BODY:
            self._refuse(MessageError(400, "request ended before its body was complete"))
        elif self._state is _HEAD:
            self._refuse(MessageError(400, "request ended before its head was complete"))
        elif self._state is not _BUSY and not self._pending:
            self._close()
        # TLS cannot be closed by halves (and asyncio would log that it is not).
        return self.transport is None or self.transport.get_extra_info("sslcontext") is None

    def pause_writing(self) -> None:
        """asyncio: more waits to be written than should."""
        self.is_full = True
        self._watch_unsent()
        if self.exchange is not None:
            self.exchange.pause_answer()

    def resume_writing(self) -> None:
        """asyncio: the client has caught up."""
        self.is_full = False
        if self.exchange is not None:
            self.exchange.resume_answer()
        elif self._pending:
            self._process()

    # Reading

    def _process(self) -> None:
        """Use what was read as far as the state allows."""
        if self._is_processing:
            return  # further down on the stack, which goes on with the loop
        self._is_processing = True
        try:
            while self._pending and (
                self._read_body() if self._state is _BODY else self._read_head()
            ):
                pass
        except MessageError as fault:
            self._refuse(fault)
        finally:
            self._is_processing = False
        if self._pending or self._charged:
            self._charge_pending()
        self.update_reading()
        if self._eof and not self._pending and self._state is _READY:
            self._close()

    def _read_head(self) -> bool:
        """Read a head and begin its request. False when there is nothing more to do now."""
        if self._state not in (_READY, _HEAD) or self.is_full:
            return False
        if len(self._collector) == 0 and (end := self._pending.find(END, self._at)) >= 0:
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
        self._begin(self.relay.heads.request(head))
        return True

    def _wait_for_head(self) -> None:
        if self._state is _READY and len(self._collector):
            self._state = _HEAD
            self._since = self.relay.clock()
            self._alarm.ring_by(self._since + self.relay.options.head_timeout_s)

    def _begin(self, plan: RequestPlan) -> None:
        """Begin a request: its head is complete."""
        relay = self.relay
        options = relay.options
        if options.body_size and plan.length > options.body_size:
            raise MessageError(413, "request body too large")
        decoder = make_decoder(plan.length)
        pieces: list[Payload] = []
        if self._pending and not decoder.ended:
            self._advance(decoder.decode(self._pending, self._at, pieces))
        self._since = now = relay.clock()
        self._served = True
        exchange = Http1Exchange(relay, self, plan, now)
        self.exchange = exchange
        if decoder.ended:
            self._state = _BUSY
        else:
            self._state = _BODY
            self._decoder = decoder
            self._alarm.ring_by(now + options.body_timeout_s)
        if options.request_timeout_s:
            self._alarm.ring_by(now + options.request_timeout_s)
        if plan.operation.treatment is Treatment.ANSWER:
            snapshot = relay.dispatcher.pool.current
            exchange.answer_only(
                health(plan, snapshot, draining=relay.dispatcher.exiting), ended=decoder.ended
            )
        else:
            exchange.start(self._upstream_head(plan), pieces, ended=decoder.ended)

    def _upstream_head(self, plan: RequestPlan) -> bytes:
        head = plan.upstream
        options = self.relay.options
        if self._origin is not None:
            if options.x_forwarded:
                head = add_x_forwarded(head, self._origin, plan.host)
            if options.forwarded:
                head = add_forwarded(head, self._origin, plan.host)
        return head

    def _read_body(self) -> bool:
        decoder, exchange = self._decoder, self.exchange
        if decoder is None or exchange is None:
            return False
        pieces: list[Payload] = []
        self._advance(decoder.decode(self._pending, self._at, pieces))
        self._since = self.relay.clock()
        if decoder.ended:
            self._state = _BUSY
            self._decoder = None
        exchange.add(pieces, ended=decoder.ended)
        return True

    def _advance(self, at: int) -> None:
        if at == len(self._pending):
            self._pending = b""
            at = 0
        self._at = at

    def update_reading(self) -> None:
        """Read from the client exactly when what it sends can go somewhere."""
        if self.transport is None or self._eof:
            return
        if self._state is _BODY and self.exchange is not None:
            wanted = self.exchange.wants_body
        else:
            wanted = len(self._pending) - self._at <= self.relay.options.buffer_size
        if wanted is self._is_reading:
            return
        self._is_reading = wanted
        if wanted:
            self._since = self.relay.clock()
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def _refuse(self, fault: MessageError) -> None:
        """The client broke a rule: say which, and close."""
        self._drop_pending()
        reason = REASONS.get(fault.status, Reason.BAD_REQUEST)
        exchange = self.exchange
        if exchange is not None:
            exchange.cut(Outcome.CANCELLED, reason, fault.text, status=fault.status)
            return
        relay = self.relay
        self._state = _BODY  # there may be more of it, so no other request can follow
        self.exchange = exchange = Http1Exchange(relay, self, UNREADABLE, relay.clock())
        exchange.answer_only(error(fault.status, reason, fault.text), ended=False)

    # Answers

    def write(self, pieces: list[Payload]) -> None:
        """Send a part of an answer."""
        if self.transport is not None:
            write_pieces(self.transport, pieces)

    def send_answer(self, answer: Answer, plan: RequestPlan) -> None:
        """Send an answer of ours, which ends the exchange."""
        keep_alive = self._state is _BUSY and plan.keep_alive and not self.relay.draining
        self.write([
            answer.encode(
                keep_alive=keep_alive, is_http10=plan.is_http10, is_head=plan.is_head
            )
        ])  # fmt: skip
        self.exchange_over(keep_alive=keep_alive)

    def exchange_over(self, *, keep_alive: bool) -> None:
        """The answer is complete: on to the next request, or close."""
        # HOT PATH (benchmarks/bench_http1_relay.py). The alarm is nearly always early enough, so
        # it is asked before it is called.
        self.exchange = None
        if self._state is not _BUSY or self.transport is None:
            self._decoder = None
            self._linger()
        elif not keep_alive:
            self._close()
        else:
            self._state = _READY
            self._served = True
            self._since = now = self.relay.clock()
            idle_until = now + self.relay.options.client_idle_s
            if idle_until < self._alarm.due:
                self._alarm.ring_by(idle_until)
            if self.transport.get_write_buffer_size():
                self._watch_unsent()
            if self._pending or self._eof or not self._is_reading:
                self._process()

    def truncate(self, *, reset: bool) -> None:
        """End an answer that cannot be completed, so that the client notices.

        Args:
            reset: the end of the connection would look like the end of the answer.
        """
        self.exchange = None
        if reset and self.transport is not None:
            reset_on_close(self.transport)
            self.transport.abort()
        else:
            self._close()

    # Ends

    def begin_drain(self) -> None:
        """Close as soon as no request is under way."""
        if self._state is _READY and not self._pending:
            self._close()

    def abort(self) -> None:
        """Close now; a request that is under way ends."""
        if self.transport is not None:
            self.transport.abort()

    def _linger(self) -> None:
        """Say that nothing more comes, and let the client finish what it is sending: closing with
        unread bytes would reset the connection and take the answer from it (RFC 9112 9.6)."""
        self._drop_pending()
        if self._eof or self.transport is None:
            self._close()
            return
        self._state = _LINGER
        self._since = self.relay.clock()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.update_reading()
        self._alarm.ring_by(self._since + self.relay.options.linger_s)

    def _throw_away(self, data: bytes) -> None:
        self._lingered += len(data)
        if self._lingered > self.relay.options.linger_size:
            self._close()

    def _close(self) -> None:
        """Close once everything is written, which the client must let happen in time."""
        self._state = State.CLOSED
        self._drop_pending()
        if self.transport is not None:
            self._watch_unsent()
            self.transport.close()

    # Time

    def _watch_unsent(self) -> None:
        """Some of an answer waits to be taken: it must go on in time."""
        if self.transport is not None and self.transport.get_write_buffer_size():
            self._unsent = unsent_bytes(self.transport)
            self._unsent_since = self.relay.clock()
            self._alarm.ring_by(self._unsent_since + self.relay.options.body_timeout_s)

    def _look_at_time(self) -> None:
        """Do what is due, and have the alarm ring for what is due next."""
        now = self.relay.clock()
        for due, act in self._deadlines():
            if due <= now:
                act()
                break
        for due, _ in self._deadlines():
            self._alarm.ring_by(due)

    def _deadlines(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """What is due when, as things are now."""
        options = self.relay.options
        if self.transport is None:
            return
        if self._unsent:
            self._note_progress(self.transport)
        if self._unsent:
            yield self._unsent_since + options.body_timeout_s, self._give_client_up
        if self.exchange is not None and options.request_timeout_s:
            yield self.exchange.started_at + options.request_timeout_s, self._end_late_exchange
        match self._state:
            case State.READY:
                idle_s = options.client_idle_s if self._served else options.head_timeout_s
                yield self._since + idle_s, self._close
            case State.HEAD:
                yield self._since + options.head_timeout_s, self._end_late_head
            case State.BODY if self._is_reading:
                yield self._since + options.body_timeout_s, self._end_late_body
            case State.LINGER:
                yield self._since + options.linger_s, self._close

    def _note_progress(self, transport: asyncio.Transport) -> None:
        if not transport.get_write_buffer_size():
            self._unsent = 0
            return
        unsent = unsent_bytes(transport)
        if unsent < self._unsent:
            self._unsent_since = self.relay.clock()
        self._unsent = unsent

    def _give_client_up(self) -> None:
        exchange = self.exchange
        self.exchange = None
        if exchange is not None:
            exchange.client_gone(Reason.CLIENT_STALLED)
        self.abort()

    def _end_late_exchange(self) -> None:
        if self.exchange is not None:
            self.exchange.cut(Outcome.DEADLINE, Reason.DEADLINE, "request took too long")

    def _end_late_head(self) -> None:
        self._refuse(MessageError(408, "request head took too long"))

    def _end_late_body(self) -> None:
        if self.exchange is not None:
            self.exchange.cut(
                Outcome.CANCELLED, Reason.BODY_TIMEOUT, "request body stopped arriving"
            )

    # Memory

    def charge(self, size: int) -> bool:
        """Put bytes on the ledger, or take them off when `size` is negative.

        Returns:
            False when this connection was evicted instead.
        """
        if size > 0:
            return self.relay.ledger.take(self, size)
        self.relay.ledger.release(self, -size)
        return True

    def evict(self) -> None:
        """The ledger needs the memory: end what is under way and close."""
        exchange = self.exchange
        self._drop_pending()
        if exchange is None:
            self._close()
            return
        self._state = _BODY  # pipelined requests were dropped, so nothing can follow
        exchange.cut(Outcome.CANCELLED, Reason.MEMORY, "out of memory for requests")

    def _charge_pending(self) -> None:
        owed = len(self._pending) - self._at
        if owed <= UNCOUNTED:
            owed = 0
        if owed != self._charged and self.charge(owed - self._charged):
            self._charged = owed

    def _drop_pending(self) -> None:
        self._pending = b""
        self._at = 0
        if self._charged:
            self.charge(-self._charged)
            self._charged = 0


def peer_of(transport: asyncio.Transport) -> tuple[str, ClientOrigin]:
    """Who a connection is from, for the log and for the backend."""
    scheme = b"http" if transport.get_extra_info("sslcontext") is None else b"https"
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return "unix", ClientOrigin(b"unknown", scheme)
    host, port = str(peer[0]), int(peer[1])
    return str(Address(host=host, port=port)), ClientOrigin(host.encode(), scheme)
