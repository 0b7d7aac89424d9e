"""One HTTP/2 connection of the relay on a transport: batching of writes and the sending side.

What the reads of one iteration of the event loop bring is relayed at once. Every connection that
got something to say meanwhile writes once, at the end of the iteration (`Http2Relay.flush`).
Reading never pauses: only stream windows hold senders back, so one slow reader cannot stall the
other streams of a shared connection.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from functools import partial
from math import inf
from typing import Any, ClassVar, Final, cast

from lb.domain.client import NOBODY, Client
from lb.net.intake import Intake
from lb.net.splice import descriptor, is_plain
from lb.net.timers import Timer
from lb.proxy.http2.graceful_close import GracefulClose
from lb.proxy.http2.options import FRAME_SIZE
from lb.proxy.http2.shared import Http2Shared
from lb.proxy.http2.stalls import StallWatch
from lb.wire.http2 import frames as fr
from lb.wire.http2.budget import Allowances
from lb.wire.http2.codec import COPY_BELOW, Http2Codec
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import (
    ErrorCode,
    Http2Error,
    TooLate,
    frame_header,
    pack_header,
)
from lb.wire.native import mypyc_attr
from lb.wire.rope import Held

_log = logging.getLogger(__name__)

WRITE_HIGH_WATER: Final = 256 * 1024
"""Bytes in a transport's buffer at which DATA waits in its pipes instead."""
_COLLECT: Final = 2**20
"""Payload that is collected before it is written within a turn: one turn of uvloop may bring 8 MiB,
and what waits here is on nobody's account."""
_BURST: Final = WRITE_HIGH_WATER
"""What one waiting pipe may write before it is the next one's turn."""
_FRAMES_AT_ONCE: Final = 256
"""Frames of one connection that are handled before others have their turn: a read may bring 29,000
of nine bytes, which take a tenth of a second."""
_FEW_FRAMES: Final = 32
"""Frames in one read that are not counted against the budget of the iteration."""
_LARGE_READ: Final = 128 * 1024
"""Bytes. libuv reads from a connection that sends so fast up to 32 times in a row, 8 MB."""
_READS_IN_A_ROW: Final = 4
"""Large reads before others have their turn."""
_LEAST_STORED: Final = 128 * 1024
"""Bytes still to come of a DATA frame from which on its payload is stored: a frame costs two system
calls more then. gRPC's C library sends frames of 1 MiB, others send 16 KiB."""
_MAX_UNREAD_CONTROL: Final = 1000
"""Control answers written while the peer does not read; then it is a flood."""

PER_SIDE: Final = ("receive", "flush", "mark", "send_head", "send_data", "send_small")
"""Methods that run for clients' and for backends' connections in turn: see `specialise`."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Http2Connection(Http2Codec):
    """Common part of server and client connections."""

    __slots__ = (
        "_begun_timer", "_goes_on", "_stalls", "bulky", "client", "congested", "dirty",
        "extra_fields", "fresh", "intake", "is_stored", "large_reads", "options", "parted",
        "relay", "transport", "unread", "unwritten", "waiting",
    )  # fmt: skip

    most_unread: ClassVar[float] = inf
    """Bytes that may be written while the peer does not read: heads and credit, payload waits."""
    frame_cost: ClassVar[int] = 10
    """Units of `IterationBudget` for a frame."""

    def __init__(self, relay: Http2Shared, allowances: Allowances) -> None:
        options = relay.options
        super().__init__(
            relay.new_block_reader(),
            frame_limit=FRAME_SIZE,
            header_limit=2 * options.head_size,
            allowances=allowances,
        )
        self.frames_at_once = _FRAMES_AT_ONCE
        self.relay = relay
        self.options = options
        """The options in force when it connected: what the peer was told of them stays."""
        self.transport: asyncio.Transport | None = None
        self.client: Client = NOBODY
        """Whose requests come over it; those of nobody, where it leads to a backend."""
        self.extra_fields = b""
        """Fields that we add to each of these requests (forwarding and the subject of the client's
        certificate, if on)."""
        self.dirty = False
        """In the relay's list of connections to flush."""
        self.bulky = 0
        """Bytes of large payload in `out`: with any, it is written as it is instead of joined."""
        self.congested = False
        """The transport's buffer is above its high-water mark."""
        self.is_stored = False
        """Some of `out` is stored, see `lb.wire.rope.Stored`."""
        self.unread = 0
        """Bytes written while it was."""
        self.unwritten: dict[int, bytes] = {}
        """What `out` has of whole requests to a backend, by stream: each is one piece."""
        self.fresh = True
        """No header block went out yet."""
        self.large_reads = 0
        """In a row."""
        self.parted = False
        """We have said all."""
        self.waiting: dict[Pipe[Any], None] = {}
        """Outbound pipes that wait for the connection's credit or its transport."""
        self._stalls: StallWatch | None = None
        self._goes_on = False
        """More is handled, and read, in a later iteration of the loop."""
        self.intake: Intake | None = None
        """Takes payload from the socket in place of the transport's reading."""
        self._begun_timer: Timer | None = None
        """Runs while a header block is not complete."""

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is up."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        relay = self.relay
        if relay.iteration.left <= 0 and self._keep_for_later(data):
            return
        relay.now = relay.clock()
        try:
            self.receive(data)
        except Exception as error:  # see `on_error`
            self.on_error(error)
        if self.out and not self.dirty:
            self.mark()
        if self.left < self.frames_at_once - _FEW_FRAMES:
            relay.iteration.spend((self.frames_at_once - self.left) * self.frame_cost)
            if self.left <= 0:
                self._let_others_go_first()
        if len(data) > _LARGE_READ:
            self.large_reads += 1
            if self.large_reads == _READS_IN_A_ROW:
                self._let_others_go_first()

    def on_error(self, error: Exception) -> None:
        """What was read, or what there is to write, could not be handled."""
        if not isinstance(error, Http2Error):
            # Our bug: this connection ends, the process and the other connections go on.
            _log.error("connection handler failed", exc_info=error)
            error = Http2Error(ErrorCode.INTERNAL_ERROR, "internal error")
        self._abandon(error)

    def _keep_for_later(self, data: bytes) -> bool:
        """Keep what was read for a later iteration, since the budget of this one is spent. False
        where the connection is over."""
        if not self._let_others_go_first():
            return False
        self.keep_read(data)
        return True

    def _let_others_go_first(self) -> bool:
        """Read on in a later iteration of the loop. False where the connection is over."""
        transport = self.transport
        if transport is None or self.parted or transport.is_closing():
            return False
        if not self._goes_on:
            self._goes_on = True
            if self.intake is not None:
                self.intake.set_reading(False)
            else:
                transport.pause_reading()
            self.relay.iteration.later(self._read_on)
        return True

    def _read_on(self) -> None:
        """Go on with what brings very many frames or bytes, after the others had their turn."""
        self._goes_on = False
        self.large_reads = 0
        transport = self.transport
        if transport is None or self.parted or transport.is_closing():
            return
        if self.intake is not None:
            self.intake.set_reading(True)
            return
        transport.resume_reading()
        Http2Connection.data_received(self, b"")

    def _abandon(self, error: Http2Error) -> None:
        """The peer broke the protocol: say so and close."""
        self.fail(error)
        self.part()
        self.on_abandoned(error)

    def end_timers(self) -> None:
        """The connection is over."""
        if self._begun_timer is not None:
            self._begun_timer.cancel()
        if self._stalls is not None:
            self._stalls.end()

    def part(self) -> None:
        """Write what is collected and close, so that the peer hears it."""
        self.end_intake()
        self.flush()
        transport = self.transport
        if transport is not None and not self.parted and not transport.is_closing():
            GracefulClose(transport, self.relay.timers, self.connection_lost).begin()
        self.parted = True

    def store(self, pipe: Pipe[Any]) -> None:
        """Have more payload of a request that is held whole stored in place of being read, as long
        as it comes in long frames."""
        transport = self.transport
        if (
            self.intake is None
            and self.rest_of(pipe) >= _LEAST_STORED
            and not (self._goes_on or self.parted)
            and transport is not None
            and not transport.is_closing()
            and is_plain(transport)
        ):
            self.intake = self.relay.pumps.collect(
                transport,
                self.rest_of(pipe),
                take=partial(self._on_stored, pipe),
                over=self._intake_over,
                header=(fr.HEADER_SIZE, partial(self._on_header, pipe)),
            )

    def _on_stored(self, pipe: Pipe[Any], piece: Held) -> None:
        """Payload came that was not read by the transport."""
        relay = self.relay
        relay.now = relay.clock()
        try:
            self.take_rest(piece, len(piece))
        except Exception as error:  # see `on_error`
            self.on_error(error)
        if pipe.ended or self.streams.get(pipe.source_id) is not pipe:
            self.end_intake()
        if self.out and not self.dirty:
            self.mark()

    def _on_header(self, pipe: Pipe[Any], header: bytes) -> int:
        """The header of a frame came. Returns how much of its payload may be stored."""
        Http2Connection.data_received(self, header)
        size = self.rest_of(pipe)
        return size if size >= _LEAST_STORED else 0

    def _intake_over(self) -> None:
        self.intake = None

    def end_intake(self) -> None:
        """Have the transport read again."""
        if self.intake is not None:
            self.intake.end()

    @abstractmethod
    def on_abandoned(self, error: Http2Error) -> None:
        """The connection ends because of `error`; log it and end its streams."""

    def eof_received(self) -> None:
        """asyncio: the peer writes no more; the transport closes."""

    @abstractmethod
    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is gone."""

    def pause_writing(self) -> None:
        """asyncio: the transport's buffer passed its high-water mark."""
        self.congested = True

    def resume_writing(self) -> None:
        """asyncio: the transport's buffer is below its low-water mark."""
        self.relay.now = self.relay.clock()
        self.congested = False
        self.control = self.unread = 0
        self.drain_waiting()

    def flush(self) -> None:
        """Write what is collected in one system call."""
        # HOT PATH (benchmarks/load). Small parts are joined, which is cheaper than a vector of
        # them; large ones go as they are, since a join would copy them.
        self.dirty = False
        out = self.out
        transport = self.transport
        if not out or transport is None:
            return
        self.out = []
        if self.unwritten:
            self.unwritten = {}
        if self.parted or transport.is_closing():
            return
        if self.congested:
            self.unread += sum(map(len, out))
        try:
            if self.bulky:
                self.bulky = 0
                if self.is_stored:
                    self._write_stored(transport, out)
                else:
                    transport.writelines(out)
            else:
                transport.write(b"".join(out))  # one piece is not copied
        except RuntimeError:
            # uvloop: the handle is closed already, and connection_lost is on its way.
            self.parted = True
            return
        if not self.congested:
            self.control = 0
        elif self.control > _MAX_UNREAD_CONTROL or self.unread > self.most_unread:
            self.parted = True
            self.on_abandoned(Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "answers are not read"))
            transport.abort()

    def _write_stored(self, transport: asyncio.Transport, out: list[Any]) -> None:
        """Write what is collected, where some of it is stored: that goes to the socket by
        reference, as far as the socket takes it at once."""
        self.is_stored = False
        may_send = is_plain(transport)
        # The transport then writes at once, and reports whatever it could not write.
        transport.set_write_buffer_limits(high=0)
        for piece in out:
            if isinstance(piece, bytes | memoryview):
                transport.write(piece)
                continue
            size = 0
            if may_send and not (transport.is_closing() or transport.get_write_buffer_size()):
                size = piece.send(descriptor(transport))
            if size < len(piece):
                transport.write(piece.part(size, len(piece)).read())
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)

    def mark(self) -> None:
        """Have this connection flushed at the end of this iteration of the event loop, after all
        its reads were relayed."""
        if not self.dirty:
            self.dirty = True
            relay = self.relay
            if not relay.dirty:
                relay.loop.call_soon(relay.flush)
            relay.dirty.append(self)

    # Sending

    def send_head(self, stream_id: int, block: bytes, *, end_stream: bool) -> None:
        """Send HEADERS."""
        # HOT PATH (benchmarks/load). One concatenation for the common block.
        if self.fresh:
            # RFC 7541 4.2: we use no dynamic table. Peers that allow a smaller one than the default
            # insist on hearing it, and literals "with indexing" that we pass on cost them nothing.
            self.fresh = False
            block = b"\x20" + block
        if not self.dirty:
            self.mark()
        size = len(block)
        if size <= self.peer_frame_size:
            flags = 5 if end_stream else 4
            self.out.append(pack_header(size << 8 | 1, flags, stream_id) + block)
        else:
            self.out.append(
                fr.header_frames(
                    stream_id, block, end_stream=end_stream, frame_size=self.peer_frame_size
                )
            )

    def send_data(self, pipe: Pipe[Any], payload: Payload) -> None:
        """Send payload that just arrived on `pipe`, whose sink is this connection."""
        # HOT PATH (benchmarks/bench_stream_relay.py). The window arithmetic of Pipe.went_out is
        # repeated in line for the payload that goes out at once; the reference is `drain`.
        size = len(payload)
        if (
            pipe.queue
            or size > pipe.credit
            or size > self.credit
            or size > self.peer_frame_size
            or self.congested
        ):
            if not size or pipe.push(payload):
                self.drain(pipe, _BURST)
            return
        ended = pipe.ended and not pipe.trailers
        if not size and not ended:
            return
        pipe.credit -= size
        self.credit -= size
        self.data_sent += 1
        if not self.dirty:
            self.mark()
        header = pack_header(size << 8, 1 if ended else 0, pipe.sink_id)
        if size < COPY_BELOW:
            self.out.append(header + payload)
        else:
            self.bulky += size
            self.out.append(header)
            self.out.append(payload)
        if pipe.ended:
            if ended:
                pipe.finished = True
                pipe.owner.pipe_finished(pipe)
        else:
            pipe.owed += size
            if pipe.owed * 2 >= pipe.window_size:
                self._credit_source(pipe, 0)
        if self.bulky > _COLLECT:
            self.flush()

    def send_small(self, pipe: Pipe[Any], payload: bytes, header: bytes, size: int) -> bool:
        """Send small payload of a stream that goes on, under a header that is made already. False
        when something is in its way."""
        # HOT PATH (benchmarks/bench_stream_relay.py). `send_data` for what nearly always comes of
        # a stream of messages; that is the reference.
        if size > pipe.credit or size > self.credit or pipe.queue or self.congested:
            return False
        pipe.credit -= size
        self.credit -= size
        self.data_sent += 1
        if not self.dirty:
            self.mark()
        self.out.append(header + payload)
        pipe.owed = owed = pipe.owed + size
        if owed + owed >= pipe.window_size:
            self._credit_source(pipe, 0)
        return True

    def run_room(self, pipe: Pipe[Any], length: int) -> int:
        """See `Endpoint`: as much as `send_data` would write at once."""
        # HOT PATH (benchmarks/bench_http2_relay.py). Asked once for many frames.
        sink = pipe.sink
        if (
            sink is None
            or pipe.ended
            or pipe.queue
            or sink.congested
            or length > sink.peer_frame_size
            or not pipe.owner.passes(pipe)
        ):
            return 0
        room: int = min(pipe.credit, sink.credit)
        return room

    def send_run(self, pipe: Pipe[Any], pieces: list[Payload], length: int) -> None:
        """Send payload for which there is `run_room`, in pieces of `length`."""
        # HOT PATH (benchmarks/bench_http2_relay.py). As `send_data` for each piece, with one
        # account and one header for all.
        size = length * len(pieces)
        pipe.credit -= size
        self.credit -= size
        if not self.dirty:
            self.mark()
        out = self.out
        if size <= self.peer_frame_size:
            self.data_sent += 1
            out.append(pack_header(size << 8, 0, pipe.sink_id))
            out += pieces
        else:
            self.data_sent += len(pieces)
            framed: list[Payload] = [pack_header(length << 8, 0, pipe.sink_id)] * (2 * len(pieces))
            framed[1::2] = pieces
            out += framed
        self.bulky += size
        pipe.owed += size
        if pipe.owed * 2 >= pipe.window_size:
            self._credit_source(pipe, 0)
        if self.bulky > _COLLECT:
            self.flush()

    def _credit_source(self, pipe: Pipe[Any], size: int) -> None:
        increment = pipe.went_out(size)
        source = pipe.source
        if increment and source is not None:
            source.out.append(fr.window_update(pipe.source_id, increment))
            source.mark()

    def drain(self, pipe: Pipe[Any], burst: int) -> None:
        """Send what waits in `pipe` as far as windows and transport allow, up to a burst."""
        self.mark()
        while pipe.queue:
            limit = min(self.credit, self.peer_frame_size, burst)
            if self.congested or limit <= 0:
                self.waiting[pipe] = None
                self._watch_stalls()
                return
            limit = min(limit, pipe.credit)
            if limit <= 0:
                break
            payload = pipe.pull(limit)
            size = len(payload)
            burst -= size
            pipe.credit -= size
            self.credit -= size
            self.data_sent += 1
            last = pipe.ended and not pipe.queue and not pipe.trailers
            self.out.append(frame_header(size, fr.DATA, 1 if last else 0, pipe.sink_id))
            self.out.append(payload)
            self.bulky += size
            self._credit_source(pipe, size)
            if last:
                pipe.finished = True
                break
            if self.bulky > _COLLECT:
                self.flush()
                if self.parted:
                    return
                self.mark()
        self.waiting.pop(pipe, None)
        if pipe.queue:
            self._watch_stalls()
        elif pipe.ended:
            self._finish(pipe)

    def _watch_stalls(self) -> None:
        if self.relay.options.stream_stalled_s:
            if self._stalls is None:
                self._stalls = StallWatch(self)
            self._stalls.begin()

    def _finish(self, pipe: Pipe[Any]) -> None:
        if not pipe.finished:
            pipe.finished = True
            if pipe.trailers:
                self.send_head(pipe.sink_id, pipe.trailers, end_stream=True)
            else:
                self.out.append(frame_header(0, fr.DATA, fr.END_STREAM, pipe.sink_id))
                self.mark()
        pipe.owner.pipe_finished(pipe)

    def end_stream(self, pipe: Pipe[Any]) -> None:
        """The source ended; `pipe.ended` and `pipe.trailers` are set. Send that when it is time."""
        if not pipe.queue:
            self._finish(pipe)

    def send_waiting(self, pipe: Pipe[Any]) -> None:
        """Send what was just put into the queue of `pipe`, whose sink is this connection."""
        self.drain(pipe, _BURST)

    def drain_waiting(self) -> None:
        """Give every waiting pipe a turn."""
        for pipe in tuple(self.waiting):
            if self.congested or self.credit <= 0:
                return
            if pipe in self.waiting:  # else another one's call has ended it
                del self.waiting[pipe]
                if pipe.sink_id in self.streams:  # else it has ended since its credit came
                    self.drain(pipe, _BURST)

    def forget(self, pipe: Pipe[Any]) -> None:
        """`pipe` has nothing to send here any more."""
        self.waiting.pop(pipe, None)

    def reset(self, stream_id: int, code: int) -> None:
        """Send RST_STREAM."""
        self.write_reset(stream_id, code)
        self.mark()

    @abstractmethod
    def close_stream(self, stream_id: int) -> None:
        """A call is over here."""

    # What is stalled

    @abstractmethod
    def bytes_of(self, pipe: Pipe[Any]) -> int:
        """All payload that has come for an outbound pipe, sent or not."""

    @abstractmethod
    def on_stream_stalled(self, pipe: Pipe[Any]) -> None:
        """The peer has taken nothing of a stream for too long."""

    @abstractmethod
    def on_stalled(self) -> None:
        """The peer has read nothing for too long."""

    # What the codec reports, alike on both sides

    def clock(self) -> float:
        """The time of the read under way."""
        return self.relay.now

    def on_unfinished(self) -> None:
        """A header block is begun: nothing else may come before its end."""
        if self._begun_timer is None:
            begun = self.begun()
            self._begun_timer = self.relay.timers.after(
                self.relay.options.head_timeout_s, lambda: self._check_begun(*begun)
            )

    def _check_begun(self, tail: bytes, block: list[bytes]) -> None:
        self._begun_timer = None
        if self.transport is None or self.parted:
            return
        if self.is_still_begun(tail, block):
            self._abandon(TooLate(ErrorCode.ENHANCE_YOUR_CALM, "header block is not complete"))
        elif self.is_within_block:
            self.on_unfinished()

    def on_credit(self, pipe: Pipe[Any] | None) -> None:
        """Credit came: for one outbound pipe, or for the connection."""
        # A read may bring several of both: what they allow goes out together, in larger frames.
        if pipe is not None:
            self.waiting[pipe] = None
        if self.waiting:
            self.mark()
