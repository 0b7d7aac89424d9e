"""A client's connection below its requests: what is written to it, how it ends, and how long
it may take for what.

Whatever a client can hold up is bounded by time: a head, a body, taking its answer, closing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, cast

from lb.domain.client import NOBODY, Client
from lb.domain.outcome import Outcome, Reason
from lb.net.client import client_of
from lb.net.sockets import acknowledged_bytes, reset_on_close, unsent_bytes
from lb.net.splice import is_plain
from lb.net.timers import Timer
from lb.proxy.http1.alarm import Alarm
from lb.proxy.http1.client import write_pieces
from lb.wire.http1.body import Payload

if TYPE_CHECKING:
    from lb.proxy.http1.exchange import Http1Exchange
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


class Downstream:
    """A client's connection without the reading of requests."""

    __slots__ = (
        "_age_timer", "_alarm", "_identity", "_lingered", "_taken", "_unsent", "_unsent_since",
        "client", "closes", "eof", "exchange", "is_full", "is_leaving", "is_plain", "is_reading",
        "options", "relay", "served", "since", "state", "transport",
    )  # fmt: skip

    def __init__(self, relay: Http1Relay) -> None:
        self.relay = relay
        self.options = relay.options
        """Those in force when its request began, or else now."""
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
        self._alarm = Alarm(relay.timers, relay.clock, self._look_at_time)

    def refuse_late_head(self) -> None:
        """The client took too long to send a head."""

    def drop_pending(self) -> None:
        """Forget what was read and not used."""

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client connected."""
        relay = self.relay
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=self.options.buffer_size)
        self.is_plain = is_plain(self.transport)
        self.client = client_of(transport, self.options.trusted_proxies)
        self._identity = transport.get_extra_info("identity_field")
        relay.traffic.accepted += 1
        relay.traffic.connections += 1
        self.since = relay.clock()
        self._alarm.ring_by(self.since + self.options.head_timeout_s)
        if not relay.crowd.enter(self.client.address):
            relay.traffic.connection_failed(Reason.TOO_MANY_CONNECTIONS)
            self.state = State.CLOSED
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the client is gone."""
        relay = self.relay
        self.transport = None
        self.state = State.CLOSED
        self._alarm.cancel()
        self.limit_age(0.0)
        relay.traffic.connections -= 1
        relay.crowd.leave(self.client.address)
        exchange = self.exchange
        self.exchange = None
        if exchange is not None:
            exchange.client_gone(Reason.CLIENT_GONE)
        self.drop_pending()

    def pause_writing(self) -> None:
        """asyncio: more waits to be written than should."""
        self.is_full = True
        self.watch_unsent()
        if self.exchange is not None:
            self.exchange.pause_answer()

    def resume_writing(self) -> None:
        """asyncio: the client has caught up."""
        self.is_full = False
        if self.exchange is not None:
            self.exchange.resume_answer()

    def write(self, pieces: list[Payload]) -> None:
        """Send a part of an answer."""
        if self.transport is not None:
            write_pieces(self.transport, pieces)

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
        self._alarm.ring_by(self.since + self.options.linger_s)

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
            self._alarm.ring_by(self._unsent_since + self.options.body_timeout_s)

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
        options = self.options
        if self.transport is None:
            return
        if self._unsent:
            self._note_progress(self.transport)
        if self._unsent:
            yield self._unsent_since + options.body_timeout_s, self._give_client_up
        if self.exchange is not None and self.exchange.due < inf:
            yield self.exchange.due, self._end_late_exchange
        match self.state:
            case State.READY:
                idle_s = options.client_idle_s if self.served else options.head_timeout_s
                yield self.since + idle_s, self.close
            case State.HEAD:
                yield self.since + options.head_timeout_s, self.refuse_late_head
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
            self.exchange.cut(Outcome.DEADLINE, Reason.DEADLINE, "request took too long")

    def _end_late_body(self) -> None:
        if self.exchange is not None:
            self.exchange.cut(
                Outcome.CANCELLED, Reason.BODY_TIMEOUT, "request body stopped arriving"
            )
