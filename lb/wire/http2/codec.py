"""One HTTP/2 connection without IO: bytes in, calls to the subclass, bytes out.

RFC 9113. The subclass (a server or a client connection of the relay) owns the streams' meaning;
this class owns framing, the order of frames, flow control of the connection, SETTINGS, PING and
GOAWAY, and refuses whatever breaks them or comes too often. `receive` raises `Http2Error` when
the connection is lost; the caller then sends `fail(error)` and closes.
"""

from __future__ import annotations

from typing import Any, Final

from lb.wire.http2 import frames as fr
from lb.wire.http2.blocks import BlockReader
from lb.wire.http2.budget import Allowances, ConnectionTraffic, FloodGuard, Spending
from lb.wire.http2.endpoint import Http2Endpoint
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import ErrorCode, Http2Error, StreamError, unpack_header
from lb.wire.http2.shape import TINY, check_shape, is_own_parent, strip
from lb.wire.http2.states import (
    ExpectedFrame,
    breaks_turn,
)
from lb.wire.native import mypyc_attr

COPY_BELOW: Final = 4096
"""Payload below this many bytes is copied out of its read; above, a view saves the copy."""
CONNECTION_WINDOW: Final = 16 * 2**20
"""Receive window of a connection in bytes; credited on receipt, so it never holds back."""
_CONNECTION_CREDIT: Final = CONNECTION_WINDOW // 4
_MAX_CONTINUATIONS: Final = 8
"""As nghttp2: with one HEADERS frame enough for any block within the size limit."""
_NOT_GREETED: Final = -1
"""In place of a stream id: SETTINGS must come before any other frame (RFC 9113 3.4)."""
_LAST_IDS: Final = 2**31 - 2**20
"""From here on a peer is running out of stream ids (RFC 9113 5.1.1)."""
_MAX_PADDING: Final = 256
"""Bytes of a HEADERS frame."""
_HEAD_UNIT: Final = 9
"""Binary logarithm: 512 bytes of a header block cost as much as a frame, or more."""
_HEAD_UNIT_BYTES: Final = (1 << _HEAD_UNIT) - 1
_SHIFT_UNIT: Final = 7
"""Binary logarithm: to move the windows of 128 streams costs as much as a frame."""
_CREDIT_UNIT: Final = 3
"""Binary logarithm: to send what 8 streams may send then costs as much as a frame."""
_PRIORITY_UPDATE: Final = 0x10
"""RFC 9218; unknown to us but no fault."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Http2Codec(Http2Endpoint):
    """Framing and connection state of one side of an HTTP/2 connection."""

    __slots__ = (
        "_block", "_block_end", "_block_frames", "_block_id", "_block_size", "_credited_in",
        "_header_limit", "_is_unfinished", "_longest_block", "_longest_data", "_postponed",
        "_rest", "_rest_end", "_rest_id", "_rest_pad", "_skip", "_tail", "acked", "blocks",
        "credit", "credited", "data_sent", "frame_limit", "frames_at_once", "going_away",
        "inspected", "last_peer_id", "left", "owed", "peer_frame_size", "peer_max_streams",
        "peer_ready", "peer_window",
    )  # fmt: skip

    def __init__(
        self,
        blocks: BlockReader,
        *,
        frame_limit: int,
        header_limit: int,
        allowances: Allowances | None = None,
    ) -> None:
        super().__init__(FloodGuard(allowances or {}))
        self.blocks = blocks
        self.frame_limit = frame_limit
        self._header_limit = header_limit
        self._longest_data = frame_limit << 8 | fr.DATA
        """The first four bytes of the longest DATA frame that is taken: its length and kind."""
        self._longest_block = header_limit << 8 | fr.HEADERS
        """The first four bytes of the longest HEADERS frame that is taken."""
        self.frames_at_once = 1 << 60
        """Frames that one `receive` handles; 512 bytes of a header block count like a frame."""
        self.inspected = 0
        """What the last frame cost beside itself, counted in frames: payload was inspected, or the
        windows of all streams moved."""
        self.left = self.frames_at_once
        """How many frames more the last `receive` would have handled. Zero and less: it came to
        that limit, so call it again, with nothing or with more."""
        self.last_peer_id = 0
        """Highest stream id that the peer opened."""
        self.credit = fr.DEFAULT_WINDOW
        """Bytes that the peer takes on the connection."""
        self.owed = 0
        """Bytes received and not credited on the connection yet."""
        self.peer_window = fr.DEFAULT_WINDOW
        """Initial credit of new streams."""
        self.peer_frame_size = fr.MIN_FRAME_SIZE
        self.peer_max_streams = fr.MAX_WINDOW
        self.peer_ready = False
        """The peer's first SETTINGS have come."""
        self.going_away = False
        """GOAWAY was received: no new streams toward the peer."""
        self.acked = False
        """The peer has acknowledged our SETTINGS."""
        self.data_sent = 0
        """DATA frames, but for those of answers that went out whole."""
        self._credited_in = 0
        """Bytes that we have credited on the connection."""
        self.credited = fr.DEFAULT_WINDOW
        """Bytes that the peer has credited on the connection."""
        self._tail = b""
        """Start of a frame that is not complete; shorter than a header block's limit."""
        self._rest = 0
        """Payload bytes of the DATA frame under way that are still to come."""
        self._rest_pad = 0
        self._rest_end = 0
        self._rest_id = 0
        """Stream of the DATA frame under way."""
        self._skip = 0
        """Bytes to throw away: padding, and payload of unknown frames."""
        self._postponed: tuple[Pipe[Any], Payload, int] | None = None
        """Payload that comes before everything else in the next `receive`."""
        self._is_unfinished = False
        """Perhaps one of these is set: `_tail`, `_rest`, `_skip`, `_postponed`."""
        self._block: list[bytes] = []
        self._block_id = _NOT_GREETED
        """Stream whose header block is under way; 0 when none is."""
        self._block_end = False
        self._block_frames = 0
        self._block_size = 0
        """Bytes that have come of it; above `_header_limit` the block is skipped."""

    # Receiving

    def receive(self, data: bytes) -> None:  # the fence
        """Take bytes as they come.

        Raises:
            Http2Error: the peer broke the protocol; the connection is lost.
        """
        # HOT PATH (benchmarks/bench_http2_codec.py). One pass over a read; whole DATA frames and
        # plain HEADERS are handled in line, without a call beside the subclass's own, and without
        # events. Everything else takes `_uncommon`.
        pos = 0
        if self._is_unfinished:
            self._is_unfinished = False
            data = self._tail + data
            self._tail = b""
            if self._postponed is not None:
                self._take_postponed()
            if self._postponed is None:
                pos = self._go_on(data, len(data))
        size = len(data)
        longest_data = self._longest_data
        view: memoryview | None = None
        left = self.frames_at_once
        last = size - 9
        while pos <= last:
            if self.inspected:
                left -= self.inspected
                self.inspected = 0
            if left <= 0:
                break
            left -= 1
            head, flags, stream_id = unpack_header(data, pos)
            start = pos + 9
            length = head >> 8
            stop = start + length
            if stop <= size and not self._block_id:
                if not head & 0xFF:  # DATA
                    pipe = self.streams.get(stream_id)
                    if pipe is not None and not pipe.ended and flags < 2 and head <= longest_data:
                        pos = stop
                        self.owed += length
                        pipe.window = window = pipe.window - length
                        if window < 0:
                            self._overrun(stream_id)
                        elif length < COPY_BELOW:
                            if length < TINY and not flags:
                                self.spend(Spending.CRUMB if length else Spending.EMPTY)
                            payload = data[start:stop]
                            take = pipe.taker
                            if take is None or flags or not take(payload, length):
                                self.on_data(pipe, payload, flags)
                        else:
                            if view is None:
                                view = memoryview(data)
                            self.on_data(pipe, view[start:stop], flags)
                            if (
                                stop <= last
                                and self._postponed is None
                                and data[stop : stop + 9] == data[start - 9 : start]
                                and self.streams.get(stream_id) is pipe
                                and (room := self.run_room(pipe, length)) >= length
                            ):
                                pos = self._take_run(pipe, data, stop, min(left, room // length))
                                left -= (pos - stop) // (length + 9)
                        continue
                elif (
                    head & 0xFF == 1  # HEADERS
                    and flags & 0x2C == 4  # END_HEADERS, neither padded nor with priority
                    and head <= self._longest_block
                    and 0 < stream_id < _LAST_IDS
                ):
                    block = data[start:stop]
                    if length > _HEAD_UNIT_BYTES:
                        left -= length >> _HEAD_UNIT
                    if stop <= last and not flags & 1 and not data[stop + 3]:
                        pos = self.take_whole(data, stop, stream_id, block)
                        if pos:
                            continue
                    pos = stop
                    try:
                        self.on_head(stream_id, block, flags & 1 == 1)
                    except StreamError as error:
                        self.on_stream_error(stream_id, error)
                    continue
            after = self._uncommon(data, pos, size)
            if after < 0:
                break
            if head & 0xF7 == fr.HEADERS:  # or CONTINUATION
                left -= (after - pos) >> _HEAD_UNIT
            pos = after
        # Also with nothing left: otherwise the loop reads on, up to 32 times in one turn.
        if self.inspected:
            left -= self.inspected
            self.inspected = 0
        self.left = left
        if pos < size:
            self._tail = data[pos:]
            self._is_unfinished = True
            if pos + 9 <= size and data[pos + 3] == fr.HEADERS and left > 0:
                self.on_unfinished()
        if self.owed >= _CONNECTION_CREDIT:
            self.out.append(fr.window_update(0, self.owed))
            self._credited_in += self.owed
            self.owed = 0

    def keep_read(self, data: bytes) -> None:
        """Have bytes that were read handled by the next `receive`, before those that it is given:
        there is no time for them now."""
        self._tail += data
        self._is_unfinished = True

    def postpone(self, pipe: Pipe[Any], payload: Payload, end_stream: int) -> None:
        """Have payload that `on_data` was given come again in the next `receive`, before
        everything else: inspecting all of it now would take too long."""
        self._postponed = (pipe, payload, end_stream)
        self._is_unfinished = True
        self.inspected = self.frames_at_once

    @property
    def has_postponed(self) -> bool:
        """Whether some payload is to come again."""
        return self._postponed is not None

    def _take_postponed(self) -> None:
        assert self._postponed is not None
        pipe, payload, end_stream = self._postponed
        self._postponed = None
        if self.streams.get(pipe.source_id) is pipe and not pipe.ended:
            self.on_postponed(pipe, payload, end_stream)

    def _take_run(self, pipe: Pipe[Any], data: bytes, pos: int, most: int) -> int:
        """Handle at most so many whole DATA frames with one and the same header, the first of
        them at `pos`. Returns the position after them."""
        # HOT PATH (benchmarks/bench_http2_codec.py). What libraries with frames of 16 KiB send of
        # a large message: windows are counted once. One by one they mean the same.
        header = data[pos : pos + 9]
        length = unpack_header(header, 0)[0] >> 8
        step = length + 9
        most = min(most, pipe.window // length, (len(data) - pos) // step)
        view = memoryview(data)
        pieces: list[Payload] = []
        for start in range(pos, pos + most * step, step):
            if data[start : start + 9] != header:
                break
            pieces.append(view[start + 9 : start + step])
        if pieces:
            size = length * len(pieces)
            self.owed += size
            pipe.window -= size
            self.on_run(pipe, pieces, length)
        return pos + len(pieces) * step

    def _uncommon(self, data: bytes, pos: int, size: int) -> int:
        """Handle one frame in the plain way. Returns the position after what was handled of it;
        negative when nothing can be before more bytes come."""
        head, flags, stream_id = unpack_header(data, pos)
        stream_id &= fr.STREAM_MASK
        kind = head & 0xFF
        length = head >> 8
        if length > self.frame_limit:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "frame larger than advertised")
        if self._block_id or kind == fr.CONTINUATION:
            self._check_turn(kind, flags, stream_id)
        check_shape(kind, stream_id, length)
        if kind == fr.DATA:
            return self._begin_data(data, pos, size)
        start = pos + 9
        if kind > fr.CONTINUATION:
            self.spend(Spending.PRIORITY if kind == _PRIORITY_UPDATE else Spending.FAULT)
            self._skip = length
            return self._go_on(data, size, start)
        if kind in {fr.HEADERS, fr.CONTINUATION} and self._is_block_too_large(kind, length):
            self._skip_header_frame(kind, flags, stream_id, length)
            self._skip = length
            return self._go_on(data, size, start)
        stop = start + length
        if stop > size:
            return -1
        self._frame(kind, flags, stream_id, data[start:stop])
        return stop

    def _check_turn(self, kind: int, flags: int, stream_id: int) -> None:
        turn = ExpectedFrame.ANY
        if self._block_id:
            turn = ExpectedFrame.SETTINGS if self._block_id == _NOT_GREETED else ExpectedFrame.BLOCK
        detail = breaks_turn(turn, kind, flags, same_stream=stream_id == self._block_id)
        if detail:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, detail)

    def _overrun(self, stream_id: int) -> None:
        error = StreamError(ErrorCode.FLOW_CONTROL_ERROR, "stream window overrun")
        self.on_stream_error(stream_id, error)

    def _begin_data(self, data: bytes, pos: int, size: int) -> int:
        """A DATA frame that is not the common one. Returns the position to go on at, or
        -1 when more bytes are needed before anything of it can be handled."""
        length, flags, stream_id = unpack_header(data, pos)
        stream_id &= fr.STREAM_MASK
        length >>= 8
        start = pos + 9
        pad = 0
        payload = length
        if flags & fr.PADDED:
            if not length:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "padded DATA without a pad length")
            if start >= size:
                return -1
            pad = data[start]
            payload = length - 1 - pad
            start += 1
            if payload < 0:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
        if payload < TINY and not flags & fr.END_STREAM:
            self.spend(Spending.CRUMB if payload else Spending.EMPTY)
        self.owed += length
        pipe = self.streams.get(stream_id)
        if pipe is None or pipe.ended:
            self.admit_frame(fr.DATA, stream_id)
            self._skip = payload + pad
            return self._go_on(data, size, start)
        pipe.window -= length
        if pipe.window < 0:
            self._overrun(stream_id)
            self._skip = payload + pad
            return self._go_on(data, size, start)
        overhead = length - payload
        if overhead:
            # Padding never waits for anybody: credit it at once.
            pipe.window += overhead
            self.out.append(fr.window_update(stream_id, overhead))
        self._rest = payload
        self._rest_pad = pad
        self._rest_end = flags & fr.END_STREAM
        self._rest_id = stream_id
        if not payload:
            self._skip, self._rest_pad = pad, 0
            self.on_data(pipe, b"", self._rest_end)
        return self._go_on(data, size, start)

    def _go_on(self, data: bytes, size: int, pos: int = 0) -> int:
        """Go on with the DATA payload or skipped bytes under way. Returns the position after."""
        if self._rest:
            take = min(self._rest, size - pos)
            if take:
                stop = pos + take
                if take >= COPY_BELOW:
                    self.take_rest(memoryview(data)[pos:stop], take)
                else:
                    self.take_rest(data[pos:stop], take)
                pos += take
        if self._skip and not self._rest:
            take = min(self._skip, size - pos)
            self._skip -= take
            pos += take
        if self._rest or self._skip:
            self._is_unfinished = True
        return pos

    def take_rest(self, payload: Any, size: int) -> None:
        """Take more payload of the DATA frame under way.

        Args:
            payload: `Payload`, or bytes that were stored elsewhere in place of being read.
            size: of it, at most `rest_of`.
        """
        self._rest -= size
        # A stream that was closed since the frame began has no pipe any more.
        pipe = self.streams.get(self._rest_id)
        end = 0
        if not self._rest:
            end = self._rest_end
            self._skip, self._rest_pad = self._rest_pad, 0
        if pipe is not None and not pipe.ended:
            self.on_data(pipe, payload, end)

    def rest_of(self, pipe: Pipe[Any]) -> int:
        """Bytes of payload that are still to come of the DATA frame under way, if it is of this
        stream and has no padding."""
        if self._rest_pad or self.streams.get(self._rest_id) is not pipe:
            return 0
        return self._rest

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == fr.WINDOW_UPDATE:
            self.spend(Spending.CREDIT)
            self._window_update(stream_id, fr.read_u32(payload) & fr.STREAM_MASK)
        elif kind == fr.PING:
            self._ping(flags, payload)
        elif kind in {fr.HEADERS, fr.CONTINUATION}:
            self._header_frame(kind, flags, stream_id, payload)
        elif kind == fr.SETTINGS:
            self._settings(flags, payload)
        elif kind == fr.RST_STREAM:
            if self.admit_frame(kind, stream_id):
                self.reset_by_peer.add(stream_id)
                self.on_reset(self.streams[stream_id], fr.read_u32(payload))
        elif kind == fr.GOAWAY:
            self._goaway(payload)
        else:
            self._priority(stream_id, payload)

    def _ping(self, flags: int, payload: bytes) -> None:
        if flags & fr.ACK:
            self.on_ping_ack(payload)
            return
        self.spend(Spending.PING)
        self.control += 1
        self.out.append(fr.ping(payload, ack=True))

    def _goaway(self, payload: bytes) -> None:
        if len(payload) < 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY too short")
        if self.going_away:
            self.spend(Spending.FAULT)
        self.going_away = True
        self.on_goaway(fr.read_u32(payload) & fr.STREAM_MASK, fr.read_u32(payload, 4))

    def _priority(self, stream_id: int, payload: bytes) -> None:
        """RFC 9113 5.3.2 took priorities out: only the length still counts (6.3)."""
        self.spend(Spending.PRIORITY)
        if len(payload) == 5:
            if is_own_parent(stream_id, payload):
                self.spend(Spending.FAULT)
            return
        error = StreamError(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of another length than five")
        if stream_id in self.streams:
            self.on_stream_error(stream_id, error)
        elif self.is_idle(stream_id):
            raise Http2Error(error.code, error.detail)  # what is idle cannot be reset (6.4)
        else:
            self.spend(Spending.FAULT)

    def _header_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == fr.HEADERS:
            payload = strip(flags, payload)
            if len(payload) > self._header_limit:
                self._skip_header_frame(kind, flags, stream_id, len(payload))
                return
            self._begin_block(flags, stream_id)
        else:
            self._count_continuation()
        if not payload:
            self.spend(Spending.FAULT)
        self._block.append(payload)
        self._block_size += len(payload)
        if not flags & fr.END_HEADERS:
            self.on_unfinished()
            return
        block = b"".join(self._block)
        self._block = []
        self._block_id = 0
        try:
            self.on_head(stream_id, block, self._block_end)
        except StreamError as error:
            self.on_stream_error(stream_id, error)
        if stream_id >= _LAST_IDS:
            self.on_last_ids()

    def _begin_block(self, flags: int, stream_id: int) -> None:
        self._block = []
        self._block_id = stream_id
        self._block_end = bool(flags & fr.END_STREAM)
        self._block_frames = 0
        self._block_size = 0

    def _count_continuation(self) -> None:
        self._block_frames += 1
        if self._block_frames > _MAX_CONTINUATIONS:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many CONTINUATION frames")

    def _is_block_too_large(self, kind: int, length: int) -> bool:
        """Whether a header block is larger than the limit with one more frame. HEADERS may turn
        out to be so without their padding only."""
        if kind == fr.HEADERS:
            return length > self._header_limit + _MAX_PADDING
        return self._block_size + length > self._header_limit

    def _skip_header_frame(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        """Account for a frame with which a header block is too large; its payload is not kept. How
        long a block may go on so is limited by time, see `on_unfinished`."""
        if kind == fr.HEADERS:
            self._begin_block(flags, stream_id)
        elif length < fr.MIN_FRAME_SIZE:
            self._count_continuation()  # what is longer counts by its bytes
        if not length:
            self.spend(Spending.FAULT)
        is_news = self._block_size <= self._header_limit
        self._block_size += length
        if is_news:
            self._block[:] = [b""]  # one is under way, see `begun`
            self.on_large_block(stream_id, self._block_end)
        if flags & fr.END_HEADERS:
            self._block = []
            self._block_id = 0
        else:
            self.on_unfinished()

    @property
    def is_within_block(self) -> bool:
        """Whether a header block has begun, and is not complete."""
        return bool(self._block or self._begun_frame)

    def begun(self) -> tuple[bytes, list[bytes]]:
        """What has come of HEADERS, and of a header block, that are not complete."""
        return self._begun_frame, self._block

    @property
    def _begun_frame(self) -> bytes:
        # Only HEADERS: those of no two streams begin alike.
        tail = self._tail
        return tail if len(tail) >= 9 and tail[3] == fr.HEADERS else b""

    def is_still_begun(self, tail: bytes, block: list[bytes]) -> bool:
        """Whether one of these, as `begun` gave them earlier, is not complete yet."""
        if block and block is self._block:
            return True
        return bool(tail) and self._tail.startswith(tail)

    def _settings(self, flags: int, payload: bytes) -> None:
        if flags & fr.ACK:
            if payload:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS ACK with a payload")
            if self.acked:
                self.spend(Spending.FAULT)
            else:
                # Our first and only SETTINGS: from now on no dynamic table is in use.
                self.acked = True
                self.blocks.acknowledged()
                self.on_acknowledged()
            return
        if self.peer_ready:
            self.spend(Spending.SETTINGS)
        window = self.peer_window
        for key, value in fr.parse_settings(payload, self.may_enable_push):
            if key == fr.SETTINGS_INITIAL_WINDOW_SIZE:
                window = value
            elif key == fr.SETTINGS_MAX_FRAME_SIZE:
                self.peer_frame_size = value
            elif key == fr.SETTINGS_MAX_CONCURRENT_STREAMS:
                self.peer_max_streams = value
        # A smaller HEADER_TABLE_SIZE needs no answer: we never use more than a table of 0.
        if window != self.peer_window:
            # Once for all that the frame says: it may say 2,700 things of 1,000 streams.
            self._shift_windows(window - self.peer_window)
            self.peer_window = window
        self.peer_ready = True
        self._block_id = 0
        self.control += 1
        self.out.append(fr.SETTINGS_ACK)
        self.on_settings()
        self.on_credit(None)

    def _shift_windows(self, delta: int) -> None:
        """RFC 9113 6.9.2: open streams move with the initial window and may go negative. The frame
        costs as much as that takes."""
        credited = 0
        for pipe in self.streams.values():
            outbound = pipe.opposite
            outbound.credit = credit = outbound.credit + delta
            if credit > fr.MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "window above 2^31-1")
            if credit > 0 and outbound.queue and delta > 0:
                credited += 1
                self.on_credit(outbound)
        self.inspected += (len(self.streams) >> _SHIFT_UNIT) + (credited >> _CREDIT_UNIT)

    def _window_update(self, stream_id: int, increment: int) -> None:
        if not stream_id:
            if not increment:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            self.credit += increment
            self.credited += increment
            if self.credit > fr.MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "connection window above 2^31-1")
            self.on_credit(None)
            return
        pipe = self.streams.get(stream_id)
        if pipe is None:
            self.admit_frame(fr.WINDOW_UPDATE, stream_id)
            return
        outbound = pipe.opposite
        outbound.credit += increment
        if not increment:
            error = StreamError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            self.on_stream_error(stream_id, error)
        elif outbound.credit > fr.MAX_WINDOW:
            error = StreamError(ErrorCode.FLOW_CONTROL_ERROR, "stream window above 2^31-1")
            self.on_stream_error(stream_id, error)
        elif outbound.queue:
            self.on_credit(outbound)

    def traffic(self) -> ConnectionTraffic:
        """What the connection has seen so far, but for its streams."""
        return ConnectionTraffic(
            sent=self.data_sent,
            bytes_in=self._credited_in + self.owed,
            bytes_out=self.credited - self.credit,
        )

    # Sending

    def write_preamble(self, settings: dict[int, int]) -> None:
        """Our SETTINGS and the connection's receive window. A client sends `PREFACE` before."""
        self.out.append(fr.settings(settings))
        self.out.append(fr.window_update(0, CONNECTION_WINDOW - fr.DEFAULT_WINDOW))

    def fail(self, error: Http2Error) -> None:
        """Write the GOAWAY that tells the peer what it did."""
        self.out.append(fr.goaway(self.last_peer_id, error.code, error.detail.encode()))
