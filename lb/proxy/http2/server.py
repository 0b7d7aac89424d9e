"""A client's connection: requests come in here, answers go out.

RFC 9113 for servers, as far as gRPC needs it. Shutdown is in two steps (6.8): GOAWAY with the
highest id and a PING; when that comes back, everything the client sent before it knew has
arrived, and GOAWAY with the last id we took follows.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from lb.domain.client import NOBODY, Client
from lb.domain.outcome import Reason
from lb.net.client import client_of
from lb.net.timers import Timer
from lb.proxy.http2.call import Call
from lb.proxy.http2.link import Link
from lb.proxy.http2.screened import ScreenedCall
from lb.wire.http2 import frames as fr
from lb.wire.http2.codec import COPY_BELOW
from lb.wire.http2.fields import encode_field
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import ErrorCode, Http2Error, StreamError, unpack_header
from lb.wire.http2.heads import RequestHead

if TYPE_CHECKING:
    from lb.proxy.http2.relay import Http2Relay

_log = logging.getLogger(__name__)

_DRAIN_PING: Final = b"tlbdrain"
_DRAIN_WAIT_S: Final = 1.0
"""How long the client may take to answer the PING of the two-step shutdown."""
_MAX_STREAM_ID: Final = 2**31 - 1


class ServerLink(Link):
    """One downstream HTTP/2 connection."""

    __slots__ = ("_drain_step", "_idle_since", "_preface", "_timer", "client", "extra_fields")

    def __init__(self, relay: Http2Relay) -> None:
        super().__init__(relay)
        self._preface = fr.PREFACE
        """What is still to come of the preface."""
        self._drain_step = 0
        self._idle_since = 0.0
        self._timer: Timer | None = None
        self.client: Client = NOBODY
        self.extra_fields = b""
        """Fields that we add to every request of this connection (forwarding and the subject of
        the client's certificate, if on)."""

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client connected."""
        super().connection_made(transport)
        relay = self.relay
        self.client = client_of(transport, relay.options.trusted_proxies)
        self.extra_fields = relay.forwarded_fields(self.client)
        if self.client.is_trusted_proxy:
            self.blocks = relay.new_block_reader(of_trusted_proxy=True)
        identity = transport.get_extra_info("identity_field")
        if identity is not None:
            name, value = identity
            self.extra_fields += encode_field(name.lower(), value)
        self._idle_since = relay.clock()
        relay.servers.add(self)
        relay.traffic.accepted += 1
        relay.traffic.connections += 1
        if not relay.crowd.enter(self.client.address):
            relay.traffic.connection_failed(Reason.TOO_MANY_CONNECTIONS)
            self.abort()
            return
        options = relay.options
        first_s = min(options.head_timeout_s, options.client_idle_s or options.head_timeout_s)
        self._timer = relay.timers.after(first_s, self._check_time)
        self.write_preamble(relay.server_settings)
        self.flush()
        if relay.draining:
            self.begin_drain()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came; the preface first."""
        if self._preface:
            size = min(len(self._preface), len(data))
            if data[:size] != self._preface[:size]:
                self._abandon(Http2Error(ErrorCode.PROTOCOL_ERROR, "bad connection preface"))
                return
            self._preface = self._preface[size:]
            data = data[size:]
            if not data:
                return
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the client is gone, and so are its calls."""
        self.relay.servers.discard(self)
        self.relay.traffic.connections -= 1
        self.relay.crowd.leave(self.client.address)
        if self._timer is not None:
            self._timer.cancel()
        self._drop_calls()
        self.transport = None

    def _drop_calls(self) -> None:
        for pipe in tuple(self.streams.values()):
            pipe.owner.client_gone()
        self.streams.clear()
        self.waiting.clear()

    def on_abandoned(self, error: Http2Error) -> None:
        """The client broke the protocol, or never began to speak it."""
        _log.info(
            "client broke HTTP/2",
            extra={"client": self.client.name, "code": error.code.name, "detail": error.detail},
        )
        is_late = error.code is ErrorCode.SETTINGS_TIMEOUT
        reason = Reason.HEAD_TIMEOUT if is_late else Reason.BAD_REQUEST
        self.relay.traffic.connection_failed(reason)
        self._drop_calls()

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
            self._abandon(Http2Error(ErrorCode.SETTINGS_TIMEOUT, "no SETTINGS in time"))
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
        pipe = self.streams.get(stream_id)
        if pipe is not None:
            self._trailers(pipe, block, end_stream)
            return
        if stream_id <= self.last_peer_id or not stream_id & 1:
            self._stray_head(stream_id, block)
            return
        self.last_peer_id = stream_id
        if self._drain_step == 2:
            self.blocks.skip(block)
            return
        relay = self.relay
        if len(self.streams) >= relay.options.concurrent_streams:
            self.blocks.skip(block)
            self.write_reset(stream_id, ErrorCode.REFUSED_STREAM)
            return
        head = self.blocks.known_request(block) or self.blocks.request(block)
        if end_stream and head.content_length > 0:
            raise StreamError(ErrorCode.PROTOCOL_ERROR, "content-length without a body")
        if head.route is None:
            relay.decide(head)
        make = ScreenedCall if head.is_screened else Call
        call = make(relay, self, stream_id, head)
        self.streams[stream_id] = call.request
        call.begin(end_stream)

    def take_whole(self, data: bytes, pos: int, stream_id: int, block: bytes) -> int:
        """A unary request that came in one read: see `Http2Codec.take_whole`."""
        # HOT PATH (benchmarks/bench_http2_relay.py). A head that is known and one small DATA frame
        # that ends the stream; everything else takes `on_head` and `on_data`, the reference.
        if len(data) - pos < 9:
            return 0
        length, flags, next_id = unpack_header(data, pos)
        size = length >> 8
        stop = pos + 9 + size
        if (
            length & 0xFF
            or flags & 9 != 1
            or next_id != stream_id
            or stop > len(data)
            or size >= COPY_BELOW
            or stream_id <= self.last_peer_id
            or not stream_id & 1
            or self._drain_step == 2
        ):
            return 0
        head = self.blocks.known_request(block) or self._decide(block)
        if (
            head is None
            or not head.is_plain
            or (head.content_length >= 0 and head.content_length != size)
            or len(self.streams) >= self.relay.options.concurrent_streams
        ):
            return 0
        self.last_peer_id = stream_id
        self.owed += size
        call = Call(self.relay, self, stream_id, head)
        self.streams[stream_id] = call.request
        call.begin_whole(data[pos + 9 : stop], size)
        return stop

    def _decide(self, block: bytes) -> RequestHead | None:
        """A head that was not seen lately; None when `on_head` must deal with it."""
        if not self.blocks.is_stateless:
            return None
        try:
            head = self.blocks.request(block)
        except StreamError:
            return None
        if head.route is None:
            self.relay.decide(head)
        return head

    def _stray_head(self, stream_id: int, block: bytes) -> None:
        if not stream_id & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "even stream id from a client")
        if not self.was_reset(stream_id):
            raise Http2Error(ErrorCode.STREAM_CLOSED, "HEADERS on a closed stream")
        self.blocks.skip(block)

    def _trailers(self, pipe: Pipe[Any], block: bytes, end_stream: bool) -> None:
        if pipe.ended:
            raise StreamError(ErrorCode.STREAM_CLOSED, "HEADERS after the end")
        trailers = self.blocks.trailers(block)
        if not end_stream:
            raise StreamError(ErrorCode.PROTOCOL_ERROR, "trailers without END_STREAM")
        pipe.owner.request_trailers(trailers)

    def on_data(self, pipe: Pipe[Any], payload: Payload, end_stream: int) -> None:
        """Payload of a request."""
        pipe.owner.request_data(payload, end_stream)

    def on_reset(self, pipe: Pipe[Any], code: int) -> None:
        """The client cancelled."""
        pipe.owner.client_gone()

    def on_stream_error(self, stream_id: int, error: StreamError) -> None:
        """The client broke the rules on one stream."""
        self.relay.traffic.connection_failed(Reason.BAD_REQUEST)
        self.write_reset(stream_id, error.code)
        pipe = self.streams.get(stream_id)
        if pipe is not None:
            pipe.owner.client_broke_stream(error)

    def close_stream(self, stream_id: int) -> None:
        """A call is over on this side."""
        streams = self.streams
        streams.pop(stream_id, None)
        if not streams:
            self._idle_since = self.relay.clock()
            if self._drain_step == 2 or self.going_away:
                self._close_soon()

    # Shutdown

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        """The client opens no more streams; the last that ends takes the connection with it."""

    def begin_drain(self) -> None:
        """First step: no new streams, please."""
        if self._drain_step or self.transport is None:
            return
        self._drain_step = 1
        self.out.append(fr.goaway(_MAX_STREAM_ID, ErrorCode.NO_ERROR))
        self.out.append(fr.ping(_DRAIN_PING, ack=False))
        self.mark()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.relay.timers.after(_DRAIN_WAIT_S, self._finish_drain)

    def on_ping_ack(self, payload: bytes) -> None:
        """The PING of the first step came back."""
        if payload == _DRAIN_PING:
            self._finish_drain()

    def _finish_drain(self) -> None:
        """Second step: what has arrived by now is the last."""
        if self._drain_step != 1 or self.transport is None:
            return
        self._drain_step = 2
        self.out.append(fr.goaway(self.last_peer_id, ErrorCode.NO_ERROR))
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
