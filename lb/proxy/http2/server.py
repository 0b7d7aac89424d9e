"""A client's connection: requests come in here, answers go out.

RFC 9113 for servers, as far as gRPC needs it. Shutdown is in two steps (6.8): GOAWAY with the
highest id and a PING. When that comes back, the client knows, but what it had begun before may
stand behind the acknowledgement: gRPC's core writes acknowledgements first. So a second PING
follows, and when that comes back, everything the client began before it knew has arrived, and
GOAWAY with the last id we took follows.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Final

from lb.domain.outcome import Reason
from lb.net.client import client_of
from lb.net.sockets import peer_end
from lb.net.timers import Timer
from lb.proxy.http2.call import Call, CallPart
from lb.proxy.http2.connection import PER_SIDE, Http2Connection
from lb.proxy.http2.recorded import may_be_recorded, recorded_call
from lb.proxy.http2.shared import Http2Shared
from lb.telemetry.sampling import RECORDED, TRACED, Draw
from lb.wire.http2 import frames as fr
from lb.wire.http2.budget import ConnectionTraffic, Spending
from lb.wire.http2.codec import COPY_BELOW
from lb.wire.http2.fields import encode_field
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import (
    ErrorCode,
    Http2Error,
    Malformed,
    StreamError,
    TooLate,
    unpack_header,
)
from lb.wire.http2.heads import RequestHead
from lb.wire.http2.states import StreamState
from lb.wire.native import mypyc_attr, specialise

_log = logging.getLogger(__name__)

_SERVES: Final = 0
_TOLD: Final = 1
_KNOWS: Final = 2
_TOLD_LAST: Final = 3
"""Steps of the shutdown of a connection: none yet; GOAWAY and a PING are sent; that came back, and
a second is sent; GOAWAY with the last id is sent."""
_TOLD_PING: Final = b"tlbdrain"
_KNOWS_PING: Final = b"tlbcross"
_DRAIN_WAIT_S: Final = 2.0
"""How long the client may take to answer the PINGs of the two-step shutdown: streams that it begins
after this are lost, unless it repeats them by itself."""
_MAX_STREAM_ID: Final = 2**31 - 1
_FRAMES_AT_ONCE: Final = 128
"""As in `connection`, but a client may send nothing but heads: 128 frames are 64 calls, 4 ms."""
_DYNAMIC_HEAD: Final = 4
"""Frames that take as long as a head that may refer to the dynamic table, which the client has
until it acknowledges our SETTINGS: a library decodes it, and nothing is remembered."""
_DYNAMIC_UNIT: Final = 6
"""Binary logarithm: 64 bytes of such a head take as long as another frame."""
_UNSEEN_UNIT: Final = 9
"""Binary logarithm: 512 bytes of a head that was not seen lately count as another frame, beside
what any head counts for. In Huffman coding they take 50 microseconds."""
_LONG_READ: Final = 4096
"""Bytes: some twenty small requests, which cost a hundred times what asking the socket does."""
_CANCEL_COST: Final = 10
"""Units of `IterationBudget` for a request that is cancelled."""
_CANCELLED_AT_ONCE: Final = 100
"""Requests of one connection that are cancelled before others have their turn: a millisecond."""
_MOST_UNREAD: Final = 2 * 2**20
"""Bytes: heads and trailers of all streams that a client may have open, of a kilobyte each."""
_YOUNG_S: Final = 1.0
"""A request that is reset younger than this counts as never meant, as with Envoy."""
_OVERDUE: Final = 0.5
"""A client whose deadline passes resets its request; that is no flood. Its clock began before ours,
by all the time that a thousand requests at once wait for their turn here, so half of it is enough.
Short deadlines are no way around the budget: requests that have them could as well be left to end
here, and as many begun. What is reset by the read that brings it has age 0, and counts."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Http2ServerConnection(Http2Connection):
    """One downstream HTTP/2 connection."""

    __slots__ = (
        "_age_timer", "_decided", "_drain_step", "_drawn", "_ended", "_idle_since", "_last_taken",
        "_preface", "_timer", "_unanswered", "_unopened",
    )  # fmt: skip

    most_unread: ClassVar[float] = _MOST_UNREAD
    frame_cost: ClassVar[int] = 30

    def __init__(self, relay: Http2Shared) -> None:
        super().__init__(relay, relay.client_allowances)
        self.frames_at_once = _FRAMES_AT_ONCE
        self._drawn = 0
        """What the next call was drawn for, where that keeps it from the short way."""
        self._preface = fr.PREFACE
        """What is still to come of the preface."""
        self._decided: tuple[bytes, RequestHead] | None = None
        """A block that `take_whole` leaves to `on_head`, and its head, where nothing else keeps
        it: to decode it may take milliseconds."""
        self._drain_step = _SERVES
        self._last_taken = 0
        """What the client was told in the last step: its later streams are not taken."""
        self._idle_since = 0.0
        self._ended = 0
        """Streams that were calls and are over."""
        self._unanswered = 0
        """Streams among them that the client, or we for its faults, reset."""
        self._unopened = 0
        """Streams that never became calls."""
        self._timer: Timer | None = None
        self._age_timer: Timer | None = None

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client connected."""
        super().connection_made(transport)
        relay = self.relay
        self.client = client_of(transport, relay.options.trusted_proxies)
        self._find_extra_fields(transport)
        if self.client.is_trusted_proxy:
            self.blocks = relay.new_block_reader(of_trusted_proxy=True)
        self._idle_since = relay.clock()
        relay.servers.add(self)
        relay.traffic.accepted += 1
        relay.traffic.connections += 1
        if not relay.parts.connection_limiter.enter(self.client.address):
            relay.traffic.connection_failed(Reason.TOO_MANY_CONNECTIONS)
            self.abort()
            return
        options = relay.options
        first_s = min(options.head_timeout_s, options.client_idle_s or options.head_timeout_s)
        self._timer = relay.timers.after(first_s, self._check_time)
        self.write_preamble(self.options.server_settings())
        self.flush()
        if relay.draining:
            self.begin_drain()

    def _find_extra_fields(self, transport: asyncio.BaseTransport) -> None:
        self.extra_fields = self.relay.forwarded_fields(self.client)
        identity = transport.get_extra_info("identity_field")
        if identity is not None:
            name, value = identity
            self.extra_fields += encode_field(name.lower(), value)

    def configured(self) -> None:
        """The relay has other options: heads that come from now on go by them. Who the client is,
        and what it was told in our SETTINGS, stays."""
        relay = self.relay
        self.blocks.use(relay.caches(of_trusted_proxy=self.client.is_trusted_proxy))
        if self.transport is not None:
            self._find_extra_fields(self.transport)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came; the preface first."""
        if not self.last_peer_id:
            if self._preface:
                size = min(len(self._preface), len(data))
                if data[:size] != self._preface[:size]:
                    self._abandon(Http2Error(ErrorCode.PROTOCOL_ERROR, "bad connection preface"))
                    return
                self._preface = self._preface[size:]
                data = data[size:]
                if not data:
                    return
            if len(data) > _LONG_READ and self._has_client_left():
                return
        Http2Connection.data_received(self, data)

    def _read_on(self) -> None:
        """Begin no more requests of a client that has left."""
        if not self._has_client_left():
            super()._read_on()

    def _has_client_left(self) -> bool:
        """Whether the client has ended the connection behind what is still to be read or handled.
        Then the connection ends at once: each request that it could begin would be cancelled."""
        transport = self.transport
        if transport is None or transport.is_closing() or peer_end(transport) is None:
            return False
        self.abort()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the client is gone, and so are its calls."""
        self.relay.servers.discard(self)
        self.relay.traffic.connections -= 1
        self.relay.parts.connection_limiter.leave(self.client.address)
        if self._timer is not None:
            self._timer.cancel()
        self.limit_age(0.0)
        self.end_timers()
        self.end_intake()
        self.parted = True
        self._postponed = None
        self.transport = None
        self._drop_calls()

    def _drop_calls(self, reason: Reason = Reason.CLIENT_GONE) -> None:
        """End the calls of a connection that is over. A thousand take long, and many clients may
        leave at the same time, so those that are too many for now end in later iterations."""
        self.waiting.clear()
        leaving = self.relay.leaving
        if self.streams and self not in leaving:
            leaving.add(self)
            self._drop_more(reason)

    def _drop_more(self, reason: Reason) -> None:
        relay = self.relay
        iteration = relay.iteration
        relay.now = relay.clock()
        most = min(_CANCELLED_AT_ONCE, iteration.left // _CANCEL_COST)
        if most > 0:
            iteration.spend(_CANCEL_COST * min(most, len(self.streams)))
            self.drop(most, reason)
        if self.streams:
            iteration.later(partial(self._drop_more, reason))
        else:
            relay.leaving.discard(self)

    def drop(self, most: int, reason: Reason = Reason.CLIENT_GONE) -> None:
        """End calls, `most` at most, as of a client that is gone."""
        streams = self.streams
        for stream_id, pipe in tuple(islice(streams.items(), most)):
            pipe.owner.client_gone(reason)
            streams.pop(stream_id, None)

    def on_abandoned(self, error: Http2Error) -> None:
        """The client broke the protocol, or does too much or too little of it."""
        reason = Reason.BAD_REQUEST
        if isinstance(error, TooLate):
            reason = Reason.HEAD_TIMEOUT
        elif error.code is ErrorCode.ENHANCE_YOUR_CALM:
            reason = Reason.FLOOD
        self._log_end("client broke HTTP/2", reason, error.code.name, error.detail)
        self.relay.traffic.connection_failed(reason)
        self._drop_calls(Reason.FLOOD if reason is Reason.FLOOD else Reason.CLIENT_GONE)

    def _log_end(self, message: str, reason: Reason, code: str, detail: str) -> None:
        extra = {"client": self.client.name, "reason": reason.value, "code": code, "detail": detail}
        _log.info(message, extra=extra)

    def _check_time(self) -> None:
        """The one timer of a connection: preface, first SETTINGS, idle time-out."""
        if self.transport is None or self.parted:
            return
        options = self.relay.options
        idle = 0.0 if self.streams else self.relay.clock() - self._idle_since
        limit = options.client_idle_s if self.peer_ready else options.head_timeout_s
        if idle < limit:
            self._timer = self.relay.timers.after(limit - idle, self._check_time)
        elif not self.peer_ready:
            self._abandon(TooLate(ErrorCode.SETTINGS_TIMEOUT, "no SETTINGS in time"))
        elif limit:
            self.begin_drain()
            self._finish_drain()

    # Requests

    def is_idle(self, stream_id: int) -> bool:
        """Whether the client has not opened this stream yet."""
        return stream_id > self.last_peer_id or not stream_id & 1

    def on_head(self, stream_id: int, block: bytes, end_stream: bool) -> None:
        """A request begins, or its trailers came."""
        # HOT PATH (benchmarks/load). One call per request; the head is shared and decided once.
        if stream_id <= self.last_peer_id or not stream_id & 1:
            self._later_head(stream_id, block, end_stream)
            return
        self.last_peer_id = stream_id
        relay = self.relay
        if len(self.streams) >= self.options.concurrent_streams or self._drain_step == _TOLD_LAST:
            self._refuse(stream_id, block)
            return
        try:
            head = self.blocks.known_request(block) or self._read_head(block)
        except StreamError:
            self._unopened += 1
            raise
        if head.facts.route is None:
            relay.decide(head)
        if relay.draw is not None:
            self._begin_drawn(stream_id, head, end_stream, relay.draw)
            return
        call = (head.facts.handler or Call)(relay, self, stream_id, head)
        self.streams[stream_id] = call.request
        call.begin(end_stream)

    def _begin_drawn(self, stream_id: int, head: RequestHead, end_stream: bool, draw: Draw) -> None:
        """Begin a call that may be traced, or noted for the payload log."""
        relay = self.relay
        drawn, self._drawn = self._drawn or draw(), 0
        is_recorded = drawn & RECORDED and may_be_recorded(head)
        handler = recorded_call if is_recorded else head.facts.handler or Call
        call = handler(relay, self, stream_id, head)
        self.streams[stream_id] = call.request
        relay.begin_trace(call, is_drawn=drawn & TRACED != 0)
        call.begin(end_stream)

    def _read_head(self, block: bytes) -> RequestHead:
        """A head that is not known by its bytes. It may take as long as some frames."""
        decided = self._decided
        self._decided = None
        if decided is not None and decided[0] is block:
            return decided[1]
        if self.blocks.is_stateless:
            self.inspected += len(block) >> _UNSEEN_UNIT
        else:
            self.inspected += _DYNAMIC_HEAD + (len(block) >> _DYNAMIC_UNIT)
        return self.blocks.request(block)

    def take_whole(self, data: bytes, pos: int, stream_id: int, block: bytes) -> int:
        """A unary request that came in one read: see `Http2Codec.take_whole`."""
        # HOT PATH (benchmarks/bench_http2_relay.py). A head that is known and one small DATA frame
        # that ends the stream; everything else takes `on_head` and `on_data`, the reference.
        length, flags, next_id = unpack_header(data, pos)
        size = length >> 8
        stop = pos + 9 + size
        if (
            flags & 9 != 1
            or next_id != stream_id
            or stop > len(data)
            or size >= COPY_BELOW
            or stream_id <= self.last_peer_id
            or not stream_id & 1
            or self._drain_step == _TOLD_LAST
        ):
            return 0
        head = self.blocks.known_request(block) or self._decide(block)
        if (
            head is None
            or not (facts := head.facts).is_plain
            or (facts.content_length >= 0 and facts.content_length != size)
            or len(self.streams) >= self.options.concurrent_streams
        ):
            return 0
        relay = self.relay
        drawn = 0
        if relay.draw is not None:
            drawn = relay.draw()
            if drawn and drawn & RECORDED:
                self._drawn = drawn
                return 0
        self.last_peer_id = stream_id
        self.owed += size
        call = Call(relay, self, stream_id, head)
        self.streams[stream_id] = call.request
        if drawn or head.context is not None:
            relay.begin_trace(call, is_drawn=drawn != 0)
        call.begin_whole(data[pos + 9 : stop], size)
        return stop

    def _decide(self, block: bytes) -> RequestHead | None:
        """A head that was not seen lately; None when `on_head` must deal with it."""
        if not self.blocks.is_stateless:
            return None
        self.inspected += len(block) >> _UNSEEN_UNIT
        try:
            head = self.blocks.request(block)
        except StreamError:
            return None
        if head.facts.route is None:
            self.relay.decide(head)
        if not head.facts.is_plain:
            if self.blocks.known_request(block) is None:
                self._decided = (block, head)
            return None
        return head

    def _refuse(self, stream_id: int, block: bytes) -> None:
        """A stream that is too many, or too late."""
        self._unopened += 1
        self.blocks.skip(block)
        if self._drain_step != _TOLD_LAST:
            self.spend(Spending.REFUSAL)
            self.write_reset(stream_id, ErrorCode.REFUSED_STREAM)

    def _later_head(self, stream_id: int, block: bytes, end_stream: bool) -> None:
        """Trailers, or a head where none may be."""
        if not stream_id & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "even stream id from a client")
        pipe = self.streams.get(stream_id)
        if not self.admit_frame(fr.HEADERS, stream_id) or pipe is None:
            self.blocks.skip(block)
            return
        self.inspected += len(block) >> _UNSEEN_UNIT
        trailers = self.blocks.trailers(block)
        if not end_stream:
            raise Malformed(ErrorCode.PROTOCOL_ERROR, "trailers without END_STREAM")
        pipe.owner.request_trailers(trailers)

    def on_data(self, pipe: Pipe[Any], payload: Payload, end_stream: int) -> None:
        """Payload of a request."""
        pipe.owner.request_data(payload, end_stream)

    def on_postponed(self, pipe: Pipe[Any], payload: Payload, end_stream: int) -> None:
        """Payload of a request comes again."""
        pipe.owner.resume_request(payload, end_stream)

    def on_run(self, pipe: Pipe[Any], pieces: list[Payload], length: int) -> None:
        """Payload of a request that nobody looks at."""
        size = length * len(pieces)
        if pipe.retained is not None:
            pipe.retain_run(pieces, size, self.relay.options.retained_size)
        sink = pipe.sink
        if sink is not None:
            pipe.owner.bytes_in += size
            sink.send_run(pipe, pieces, length)

    def on_reset(self, pipe: Pipe[Any], code: int) -> None:
        """The client cancelled."""
        self._unanswered += 1
        owner = pipe.owner
        if _is_rapid(owner, self.relay.now):
            self.spend(Spending.RESET)
        owner.client_gone()

    def on_stream_error(self, stream_id: int, error: StreamError) -> None:
        """The client broke the rules on one stream."""
        self.spend(Spending.FAULT)
        pipe = self.streams.get(stream_id)
        if pipe is not None and isinstance(error, Malformed) and pipe.owner.tell_client(error):
            return
        self.relay.traffic.connection_failed(Reason.BAD_REQUEST)
        self.write_reset(stream_id, error.code)
        if pipe is not None:
            self._unanswered += 1
            pipe.owner.client_broke_stream(error)

    def on_last_ids(self) -> None:
        """The client runs out of stream ids: it needs a new connection soon."""
        self.begin_drain()

    def state(self, stream_id: int) -> StreamState:
        """The state of a stream. What is left of one that came too late is discarded (RFC 9113
        6.8), as after a reset: an honest client has sent it before it was told."""
        if self._drain_step == _TOLD_LAST and stream_id > self._last_taken:
            return StreamState.RESET_BY_US
        state = super().state(stream_id)
        if state is StreamState.CLOSED and 2 * self._used <= self.last_peer_id:
            return StreamState.SKIPPED
        return state

    @property
    def _used(self) -> int:
        """How many stream ids the client has used."""
        return self._ended + self._unopened + len(self.streams)

    def traffic(self) -> ConnectionTraffic:
        """What the connection has seen so far."""
        ended = self._ended
        return (
            super()
            .traffic()
            ._replace(
                streams=self._used,
                answers=ended - self._unanswered,
                sent=self.data_sent + 2 * ended,
            )
        )

    # What is stalled

    def bytes_of(self, pipe: Pipe[Any]) -> int:
        """Payload of an answer."""
        size: int = pipe.owner.bytes_out
        return size

    def on_stream_stalled(self, pipe: Pipe[Any]) -> None:
        """The client takes nothing of an answer."""
        pipe.owner.client_stalled()

    def on_stalled(self) -> None:
        """The client reads nothing at all."""
        reason = Reason.CLIENT_STALLED
        self._log_end("client does not read", reason, "-", "its socket is full")
        self.relay.traffic.connection_failed(reason)
        self.parted = True
        self._drop_calls(reason)
        self.abort()

    # Ends

    def close_stream(self, stream_id: int) -> None:
        """A call is over on this side."""
        streams = self.streams
        streams.pop(stream_id, None)
        self._ended += 1
        if not streams:
            if self._stalls is not None:
                self._stalls.end()
            self._idle_since = self.relay.clock()
            if self._drain_step == _TOLD_LAST or self.going_away:
                self._close_soon()

    # Shutdown

    def limit_age(self, limit_s: float) -> None:
        """Have the client connect anew in `limit_s` seconds; 0: when it likes."""
        if self._age_timer is not None:
            self._age_timer.cancel()
        self._age_timer = self.relay.timers.after(limit_s, self.leave) if limit_s else None

    def leave(self) -> None:
        """Have the client connect anew for its next request."""
        self._age_timer = None
        self.begin_drain()

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        """The client opens no more streams; the last that ends takes the connection with it."""

    def begin_drain(self) -> None:
        """First step: no new streams, please."""
        if self._drain_step != _SERVES or self.transport is None:
            return
        self._drain_step = _TOLD
        self.out.append(fr.goaway(_MAX_STREAM_ID, ErrorCode.NO_ERROR))
        self.out.append(fr.ping(_TOLD_PING, ack=False))
        self.mark()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.relay.timers.after(_DRAIN_WAIT_S, self._finish_drain)

    def on_ping_ack(self, payload: bytes) -> None:
        """A PING of the first step came back."""
        if payload == _TOLD_PING and self._drain_step == _TOLD:
            self._drain_step = _KNOWS
            self.out.append(fr.ping(_KNOWS_PING, ack=False))
            self.mark()
        elif payload == _KNOWS_PING and self._drain_step == _KNOWS:
            self._finish_drain()

    def _finish_drain(self) -> None:
        """Second step: what has arrived by now is the last."""
        if self._drain_step not in (_TOLD, _KNOWS) or self.transport is None:
            return
        self._drain_step = _TOLD_LAST
        self._last_taken = self.last_peer_id
        self.out.append(fr.goaway(self._last_taken, ErrorCode.NO_ERROR))
        self.mark()
        if not self.streams:
            self._close_soon()

    def _close_soon(self) -> None:
        """Close once what is collected has been written."""
        self.mark()
        self.relay.closing.append(self)

    def abort(self) -> None:
        """Close now; calls end as if the client had gone."""
        if self.transport is not None:
            self.transport.abort()


def _is_rapid(call: Call | CallPart, now: float) -> bool:
    """Whether a request that its client resets was only made to be reset (CVE-2023-44487)."""
    age_s = now - call.started_at
    if call.begun or age_s >= _YOUNG_S:
        return False
    timeout_s = call.head.facts.timeout_s
    return timeout_s is None or age_s < _OVERDUE * timeout_s


specialise(Http2ServerConnection, *PER_SIDE)
