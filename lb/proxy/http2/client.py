"""A connection to a backend: many calls share it, answers come in here."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from math import inf
from typing import Any, ClassVar, Final, Protocol

from lb.domain.backend import AppProtocol, Backend, Port
from lb.domain.outcome import Outcome
from lb.net.timers import Timer
from lb.proxy.disclosure import REQUEST_ID
from lb.proxy.http2.attempt import GrpcAttempt
from lb.proxy.http2.connection import PER_SIDE, Http2Connection
from lb.proxy.http2.shared import Http2Shared
from lb.telemetry.spans import FIRST_SPAN
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.http2 import frames as fr
from lb.wire.http2.budget import BACKEND_ALLOWANCES, ConnectionTraffic
from lb.wire.http2.codec import COPY_BELOW
from lb.wire.http2.fields import encode_field
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import (
    ErrorCode,
    Http2Error,
    StreamError,
    TooLate,
    pack_header,
    unpack_header,
)
from lb.wire.http2.states import AS_CLIENT, StreamTable, stream_table
from lb.wire.native import mypyc_attr, specialise

_log = logging.getLogger(__name__)

_LAST_STREAM_ID: Final = 2**31 - 2**20
"""Well before the ids run out a new connection takes over (RFC 9113 5.1.1)."""
_STREAM_CAP: Final = 1024
"""Our own limit on streams per connection: Triton advertises none."""


class ConnectionOwner(Protocol):
    """The pool of a connection, as that sees it."""

    relay: Http2Shared
    backend: Backend
    port: Port
    waiting: deque[GrpcAttempt]

    def connected(self, connection: Http2ClientConnection) -> None:
        """`connection` is up and takes no calls yet."""
        ...

    def serve_waiting(self) -> None:
        """A connection has room: start waiting calls."""
        ...

    def retire(self, connection: Http2ClientConnection) -> None:
        """`connection` takes no more calls."""
        ...

    def retire_all(self) -> None:
        """No connection of the pool takes more calls."""
        ...

    def discard(self, connection: Http2ClientConnection) -> None:
        """`connection` is closed."""
        ...


@mypyc_attr(allow_interpreted_subclasses=True)
class Http2ClientConnection(Http2Connection):
    """One upstream HTTP/2 connection."""

    __slots__ = (
        "_timer", "bound", "greeted", "last_byte_at", "next_id", "pool", "port", "retired",
        "stream_limit", "unbound",
    )  # fmt: skip

    table: ClassVar[StreamTable] = stream_table(AS_CLIENT)
    may_enable_push: ClassVar[bool] = False

    def __init__(self, pool: ConnectionOwner) -> None:
        super().__init__(pool.relay, BACKEND_ALLOWANCES)
        self.pool = pool
        self.port = pool.port
        """See `Owing`."""
        self.greeted: asyncio.Future[bool] = self.relay.loop.create_future()
        """True when the backend's SETTINGS have come; False when it was lost before."""
        self._timer: Timer | None = None
        """Until the backend acknowledges our SETTINGS."""
        self.bound: deque[GrpcAttempt] = deque()
        """Attempts that wait for room here and may go nowhere else; the pool serves them."""
        self.unbound = pool.waiting
        """Attempts that wait for room on any connection of the pool. Here because it is looked at
        whenever a stream ends, and compiled code finds what a Protocol has by its name."""
        self.next_id = 1
        self.last_byte_at = 0.0
        self.stream_limit = 0
        """Calls at once; none before the backend has said how many it takes."""
        self.retired = False
        """Takes no new calls; closes when those it has are over."""

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: connected."""
        super().connection_made(transport)
        self.port.connections += 1
        self.out.append(fr.PREFACE)
        self.write_preamble(self.options.client_settings())
        self.mark()
        self.pool.connected(self)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        Http2Connection.data_received(self, data)
        self.last_byte_at = self.port.last_byte_at = self.relay.now

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is gone, and so are its calls."""
        self.relay.now = self.relay.clock()
        self.port.connections -= 1
        self.transport = None
        self.end_timers()
        if not self.greeted.done():
            self.greeted.set_result(False)
        elif not self.streams and not self.retired:
            self.relay.accounts.connection_lost(self.pool.backend, AppProtocol.GRPC)
        self.retire()
        self._drop_calls(Outcome.LOST)
        self.pool.discard(self)

    def _drop_calls(self, outcome: Outcome) -> None:
        pipes = tuple(self.streams.values())
        self.streams.clear()
        self.waiting.clear()
        for pipe in pipes:
            attempt = pipe.owner
            if attempt is None:
                continue  # it had to give way to the replay of another one
            stale = outcome is Outcome.LOST and self._was_closing(attempt)
            attempt.failed(Outcome.STALE if stale else outcome)

    def end_timers(self) -> None:
        """The connection is over."""
        super().end_timers()
        if self._timer is not None:
            self._timer.cancel()

    def _was_closing(self, attempt: GrpcAttempt) -> bool:
        """Whether `attempt` met a connection that was closing: reused, and silent since."""
        opened_late = attempt.request.sink_id > 1 and self.last_byte_at < attempt.connected_at
        return opened_late and not attempt.begun

    def on_abandoned(self, error: Http2Error) -> None:
        """The backend broke the protocol."""
        _log.warning(
            "backend broke HTTP/2",
            extra={
                "backend": self.pool.backend.name,
                "code": error.code.name,
                "detail": error.detail,
            },
        )
        self.retire()
        self._drop_calls(Outcome.PROTOCOL_ERROR)

    def retire(self) -> None:
        """Take no new calls."""
        if not self.retired:
            self.retired = True
            self.pool.retire(self)

    def close_if_over(self) -> None:
        """Close a retired connection that has no calls left."""
        if self.retired and not self.streams and self.transport is not None:
            self.transport.close()

    # Calls

    @property
    def room(self) -> int:
        """How many calls more this connection takes."""
        return 0 if self.retired else self.stream_limit - len(self.streams)

    def open(self, attempt: GrpcAttempt) -> None:
        """Give an attempt a stream here."""
        # HOT PATH (benchmarks/load).
        stream_id = self.next_id
        self.next_id = stream_id + 2
        relay = self.relay
        request = attempt.request
        request.sink = self
        request.sink_id = stream_id
        request.credit = self.peer_window
        response = attempt.response
        response.owner = attempt
        response.source = self
        response.source_id = stream_id
        response.window = response.window_size = relay.options.answer_window
        response.owed = 0
        response.ended = False
        self.streams[stream_id] = response
        attempt.connection = self
        attempt.connected_at = relay.now
        call = attempt.call
        block = call.head.block + call.server.extra_fields
        if call.request_id is not call.head.facts.request_id:
            block += encode_field(REQUEST_ID, call.request_id)
        if call.trace is not None:
            block += call.trace.block(attempt, attempt.exchange.first_span)
        if request.ended and not request.queue and not request.trailers:
            request.finished = True
            self.send_head(stream_id, block, end_stream=True)
        else:
            self.send_head(stream_id, block, end_stream=False)
            if request.queue or request.ended:
                self.drain(request, 1 << 30)
        if stream_id >= _LAST_STREAM_ID:
            self.retire()

    def open_whole(self, attempt: GrpcAttempt, payload: bytes, size: int) -> None:
        """As `open`, where the request is complete and small: one piece of output."""
        # HOT PATH (benchmarks/bench_http2_relay.py). `open` for the common unary call; that is the
        # reference.
        stream_id = self.next_id
        request = attempt.request
        call = attempt.call
        if (
            size > self.credit
            or size > self.peer_window
            or self.congested
            or self.fresh
            or stream_id >= _LAST_STREAM_ID
            or call.server.extra_fields
        ):
            if request.push(payload):
                self.open(attempt)
            return
        self.next_id = stream_id + 2
        self.credit -= size
        request.sink = self
        request.sink_id = stream_id
        request.finished = True
        response = attempt.response
        response.owner = attempt
        response.source = self
        response.source_id = stream_id
        self.streams[stream_id] = response
        attempt.connection = self
        attempt.connected_at = self.relay.now
        if not self.dirty:
            self.mark()
        block = call.head.block
        if call.trace is not None:
            block += call.trace.block(attempt, FIRST_SPAN)
        self.unwritten[stream_id] = piece = (
            pack_header(len(block) << 8 | 1, 4, stream_id)
            + block
            + pack_header(size << 8, 1, stream_id)
            + payload
        )
        self.out.append(piece)

    def reset(self, stream_id: int, code: int) -> None:
        """Send RST_STREAM, unless the request is not written yet. Then it is taken back, and the
        backend never hears of it: a stream id may be left out (RFC 9113 5.1.1)."""
        piece = self.unwritten.pop(stream_id, None)
        if piece is None:
            super().reset(stream_id, code)
            return
        self.credit += len(piece) - int.from_bytes(piece[:3], "big") - 2 * fr.HEADER_SIZE
        # Not by what it is equal to: a client may have written the same into a message.
        self.out = [each for each in self.out if each is not piece]

    def close_stream(self, stream_id: int) -> None:
        """A call is over here."""
        self.streams.pop(stream_id, None)
        if self._stalls is not None and not self.streams:
            self._stalls.end()
        if self.retired:
            self.close_if_over()
        elif self.unbound or self.bound:
            self.pool.serve_waiting()

    # What the codec reports

    def is_idle(self, stream_id: int) -> bool:
        """Whether we have not opened this stream yet; backends open none."""
        return stream_id >= self.next_id or not stream_id & 1

    def on_head(self, stream_id: int, block: bytes, end_stream: bool) -> None:
        """A response begins, or its trailers came."""
        # HOT PATH (benchmarks/load). Twice per call; heads are shared and decided once.
        pipe = self.streams.get(stream_id)
        if pipe is None or pipe.ended:
            self.admit_frame(fr.HEADERS, stream_id)
            self.blocks.skip(block)
            return
        head = self.blocks.known_response(block) or self.blocks.response(block)
        pipe.owner.response_head(head, end_stream)

    def on_large_block(self, stream_id: int, end_stream: bool) -> None:
        """A response begins, or its trailers came, and is larger than what we take. Servers repeat
        what requests say: it ends that one call (RFC 9113 10.5.1)."""
        if not self.blocks.is_stateless:
            super().on_large_block(stream_id, end_stream)
        pipe = self.streams.get(stream_id)
        if pipe is None or pipe.ended:
            self.admit_frame(fr.HEADERS, stream_id)
            return
        pipe.owner.large_response_head(end_stream)

    def take_whole(self, data: bytes, pos: int, stream_id: int, block: bytes) -> int:
        """A unary answer that came in one read: see `Http2Codec.take_whole`."""
        # HOT PATH (benchmarks/bench_http2_relay.py). Head and trailers that are known around one
        # small DATA frame; everything else takes `on_head` and `on_data`, the reference.
        end = len(data)
        length, flags, next_id = unpack_header(data, pos)
        size = length >> 8
        middle = pos + 9 + size
        if flags & 9 or next_id != stream_id or size >= COPY_BELOW or end - middle < 9:
            return 0
        length, flags, next_id = unpack_header(data, middle)
        stop = middle + 9 + (length >> 8)
        if length & 0xFF != 1 or flags & 0x2D != 5 or next_id != stream_id or stop > end:
            return 0
        pipe = self.streams.get(stream_id)
        head = self.blocks.known_response(block)
        trailers = self.blocks.known_response(data[middle + 9 : stop])
        if (
            pipe is None
            or head is None
            or trailers is None
            or pipe.ended
            or size > pipe.window
            # Not exactly one message, whose length is in the last four of the first five bytes. The
            # upper two of them are 0 in one that is so small.
            or data[pos + 10]
            or data[pos + 11]
            or size != (data[pos + 12] << 8 | data[pos + 13]) + PREFIX_SIZE
            or not head.is_answer
            or trailers.status
            or not pipe.owner.end_whole(head, data[pos + 9 : middle], size, trailers)
        ):
            return 0
        self.owed += size
        return stop

    def on_data(self, pipe: Pipe[Any], payload: Payload, end_stream: int) -> None:
        """Payload of a response."""
        pipe.owner.response_data(payload, end_stream)

    def on_run(self, pipe: Pipe[Any], pieces: list[Payload], length: int) -> None:
        """Payload of a response that nobody looks at."""
        sink = pipe.sink
        if sink is not None:
            pipe.owner.count_answer(length * len(pieces))
            sink.send_run(pipe, pieces, length)

    def on_reset(self, pipe: Pipe[Any], code: int) -> None:
        """The backend ended a call without an answer, or stopped an upload."""
        self.close_stream(pipe.source_id)
        pipe.owner.upstream_reset(code)

    def on_stream_error(self, stream_id: int, error: StreamError) -> None:
        """The backend broke the rules on one stream."""
        pipe = self.streams.get(stream_id)
        if pipe is None:
            return
        self.write_reset(stream_id, error.code)
        # Who breaks one answer may break others on the way; those that run may finish.
        self.retire()
        self.close_stream(stream_id)
        pipe.owner.failed(Outcome.PROTOCOL_ERROR, error.detail)

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        """The backend shuts down: what it did not take goes elsewhere, the rest goes on."""
        self.retire()
        refused = [number for number in self.streams if number > last_stream_id]
        for number in refused:
            pipe = self.streams.pop(number, None)
            if pipe is not None:  # else it had to give way to the replay of another one
                pipe.owner.failed(Outcome.REFUSED)
        self.close_if_over()

    def on_settings(self) -> None:
        """The backend's limits are known now."""
        self.stream_limit = min(self.peer_max_streams, _STREAM_CAP)
        if not self.acked and self._timer is None:
            timeout_s = self.relay.options.head_timeout_s
            self._timer = self.relay.timers.after(timeout_s, self._check_acknowledged)
        if not self.greeted.done():
            self.greeted.set_result(True)
        else:
            self.pool.serve_waiting()

    def on_acknowledged(self) -> None:
        """The backend has applied our SETTINGS."""
        if self._timer is not None:
            self._timer.cancel()

    def _check_acknowledged(self) -> None:
        """It has not (RFC 9113 6.5.3)."""
        if self.transport is not None and not self.parted:
            self.port.connect_failures += 1
            self.relay.now = self.relay.clock()
            self._abandon(TooLate(ErrorCode.SETTINGS_TIMEOUT, "SETTINGS are not acknowledged"))

    def traffic(self) -> ConnectionTraffic:
        """What the connection has seen so far."""
        opened = self.next_id // 2
        seen = super().traffic()
        return seen._replace(streams=opened, sent=seen.sent + 2 * opened)

    # What is stalled

    def bytes_of(self, pipe: Pipe[Any]) -> int:
        """Payload of a request."""
        size: int = pipe.owner.bytes_in
        return size

    def on_stream_stalled(self, pipe: Pipe[Any]) -> None:
        """The backend takes nothing of a request."""
        pipe.owner.backend_stalled()

    def on_stalled(self) -> None:
        """The backend reads nothing at all."""
        self._give_up("backend does not read")

    @property
    def owes_since(self) -> float:
        """See `Owing`."""
        owners = (pipe.owner for pipe in self.streams.values())
        return next((owner.connected_at for owner in owners if owner is not None), inf)

    def unheard(self) -> None:
        """See `Owing`. Others to the same backend may be as dead."""
        self.relay.now = self.relay.clock()
        self.pool.retire_all()
        self._give_up("backend acknowledges nothing")

    def _give_up(self, message: str) -> None:
        """Nothing more will come; calls go elsewhere, if they may."""
        _log.warning(message, extra={"backend": self.pool.backend.name})
        self.parted = True
        self.retire()
        self._drop_calls(Outcome.STALLED)
        self.abort()

    def abort(self) -> None:
        """Close now; calls fail."""
        if self.transport is not None:
            self.transport.abort()


specialise(Http2ClientConnection, *PER_SIDE)
