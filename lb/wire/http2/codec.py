"""One HTTP/2 connection without IO: bytes in, calls to the subclass, bytes out.

RFC 9113. The subclass (a server or a client connection of the relay) owns the streams' meaning;
this class owns framing, the order of frames, flow control of the connection, SETTINGS, PING and
GOAWAY, and refuses whatever breaks them. `receive` raises `Http2Error` when the connection is
lost; the caller then sends `fail(error)` and closes.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from lb.wire.http2 import frames as fr
from lb.wire.http2.blocks import BlockReader
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import ErrorCode, Http2Error, StreamError, unpack_header

COPY_BELOW: Final = 4096
"""Payload below this many bytes is copied out of its read; above, a view saves the copy."""
CONNECTION_WINDOW: Final = 16 * 2**20
"""Receive window of a connection in bytes; credited on receipt, so it never holds back."""
_CONNECTION_CREDIT: Final = CONNECTION_WINDOW // 4
_MAX_CONTROL_FRAME: Final = 16_384
"""Frames other than DATA and header blocks; the longest that makes sense is GOAWAY's text."""
_MAX_CONTINUATIONS: Final = 8
"""As nghttp2: with one HEADERS frame enough for any block within the size limit."""
_RESET_MEMORY: Final = 256
"""Streams that we reset lately: what is still under way for them is no error."""
_NOT_GREETED: Final = -1
"""In place of a stream id: SETTINGS must come before any other frame (RFC 9113 3.4)."""
_FRAME_LENGTHS: Final = {fr.PRIORITY: 5, fr.RST_STREAM: 4, fr.PING: 8, fr.WINDOW_UPDATE: 4}
_CONNECTION_ONLY: Final = frozenset({fr.SETTINGS, fr.PING, fr.GOAWAY})


class Http2Codec:
    """Framing and connection state of one side of an HTTP/2 connection."""

    __slots__ = (
        "_acked", "_block", "_block_end", "_block_frames", "_block_id", "_header_limit",
        "_reset_ids", "_rest", "_rest_end", "_rest_pad", "_rest_pipe", "_skip", "_tail", "blocks",
        "control", "credit", "frame_limit", "frames_at_once", "going_away", "has_more",
        "last_peer_id", "out", "owed", "peer_frame_size", "peer_max_streams", "peer_ready",
        "peer_window", "streams",
    )  # fmt: skip

    def __init__(self, blocks: BlockReader, *, frame_limit: int, header_limit: int) -> None:
        self.blocks = blocks
        self.frame_limit = frame_limit
        self._header_limit = header_limit
        self.streams: dict[int, Pipe[Any]] = {}
        """Open streams: the inbound pipe by stream id."""
        self.control = 0
        """Answers that the peer made us write (acknowledgements, resets) since the subclass last
        found that it reads them."""
        self.frames_at_once = -1
        """Frames that one `receive` handles; -1 is no limit."""
        self.has_more = False
        """The last `receive` stopped at that limit: call it again, with nothing or with more."""
        self.out: list[Payload] = []
        """Bytes to write, in order."""
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
        self._acked = False
        self._tail = b""
        """Start of a frame that is not complete; shorter than a header block's limit."""
        self._rest = 0
        """Payload bytes of the DATA frame under way that are still to come."""
        self._rest_pad = 0
        self._rest_end = 0
        self._rest_pipe: Pipe[Any] | None = None
        self._skip = 0
        """Bytes to throw away: padding, and payload of unknown frames."""
        self._block: list[bytes] = []
        self._block_id = _NOT_GREETED
        """Stream whose header block is under way; 0 when none is."""
        self._block_end = False
        self._block_frames = 0
        self._reset_ids: deque[int] = deque(maxlen=_RESET_MEMORY)

    # What the subclass does

    def on_head(self, stream_id: int, block: bytes, end_stream: bool) -> None:
        """A complete header block arrived: a request, a response, or trailers."""
        raise NotImplementedError

    def take_whole(self, data: bytes, pos: int, stream_id: int, block: bytes) -> int:
        """Handle a whole small message at once: `block` and the frames behind it, from `pos` on.

        What it saves is calls: it must do exactly what `on_head` and `on_data` would.

        Returns:
            The position after it; 0 when it is not that simple.
        """
        return 0

    def on_data(self, pipe: Pipe[Any], payload: Payload, end_stream: int) -> None:
        """Payload arrived; its windows are accounted for. May be part of a frame."""
        raise NotImplementedError

    def on_reset(self, pipe: Pipe[Any], code: int) -> None:
        """The peer reset an open stream; it is still in `streams`."""
        raise NotImplementedError

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        """The peer will not process streams of ours above `last_stream_id`."""
        raise NotImplementedError

    def on_credit(self, pipe: Pipe[Any] | None) -> None:
        """A stream (the outbound pipe) or, for None, the connection or all got credit."""
        raise NotImplementedError

    def on_stream_error(self, stream_id: int, error: StreamError) -> None:
        """The peer broke the rules on one stream: reset it."""
        raise NotImplementedError

    def on_ping_ack(self, payload: bytes) -> None:
        """A PING of ours came back."""

    def on_settings(self) -> None:
        """The peer's SETTINGS were applied."""

    def is_idle(self, stream_id: int) -> bool:
        """Whether a stream was never opened by either side (RFC 9113 5.1)."""
        raise NotImplementedError

    # Receiving

    def receive(self, data: bytes) -> None:  # noqa: C901, PLR0912, PLR0915  # the fence
        """Take bytes as they come.

        Raises:
            Http2Error: the peer broke the protocol; the connection is lost.
        """
        # HOT PATH (benchmarks/bench_http2_codec.py). One pass over a read; whole DATA frames and
        # plain HEADERS are handled in line, without a call beside the subclass's own, and without
        # events. Everything else takes `_uncommon`.
        if self._tail:
            data = self._tail + data
            self._tail = b""
        size = len(data)
        pos = 0
        if self._rest or self._skip:
            pos = self._go_on(data, size)
        find = self.streams.get
        data_limit = self.frame_limit << 8
        head_limit = self._header_limit << 8 | 1
        view: memoryview | None = None
        left = self.frames_at_once
        self.has_more = False
        while pos + 9 <= size:
            if not left:
                self.has_more = True
                break
            left -= 1
            head, flags, stream_id = unpack_header(data, pos)
            start = pos + 9
            stop = start + (head >> 8)
            if stop <= size and not self._block_id:
                kind = head & 0xFF
                if kind == 0:
                    pipe = find(stream_id)
                    if pipe is not None and not pipe.ended and not flags & 8 and head <= data_limit:
                        pos = stop
                        length = stop - start
                        self.owed += length
                        pipe.window = window = pipe.window - length
                        if window < 0:
                            self._overrun(stream_id)
                        elif length < COPY_BELOW:
                            self.on_data(pipe, data[start:stop], flags & 1)
                        else:
                            if view is None:
                                view = memoryview(data)
                            self.on_data(pipe, view[start:stop], flags & 1)
                        continue
                elif (
                    kind == 1
                    and flags & 0x2C == 4  # END_HEADERS, neither padded nor with priority
                    and head <= head_limit
                    and 0 < stream_id < 0x80000000
                ):
                    block = data[start:stop]
                    if not flags & 1 and stop + 9 <= size and data[stop + 3] == 0:
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
            pos = after
        if pos < size:
            self._tail = data[pos:]
        if self.owed >= _CONNECTION_CREDIT:
            self.out.append(fr.window_update(0, self.owed))
            self.owed = 0

    def _uncommon(self, data: bytes, pos: int, size: int) -> int:
        """Handle one frame in the plain way. Returns the position after what was handled of it;
        negative when nothing can be before more bytes come."""
        head, flags, stream_id = unpack_header(data, pos)
        stream_id &= fr.STREAM_MASK
        kind = head & 0xFF
        length = head >> 8
        self._check_frame(kind, flags, stream_id, length)
        if kind == fr.DATA:
            return self._begin_data(data, pos, size)
        start = pos + 9
        if kind > fr.CONTINUATION:
            self._skip = length
            return self._go_on(data, size, start)
        stop = start + length
        if stop > size:
            return -1
        self._frame(kind, flags, stream_id, data[start:stop])
        return stop

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
        pipe = self.streams.get(stream_id)
        self.owed += length
        if pipe is None or pipe.ended:
            self._stray_data(stream_id, pipe)
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
        self._rest_pipe = pipe
        if not payload:
            self._skip, self._rest_pad = pad, 0
            self.on_data(pipe, b"", self._rest_end)
        return self._go_on(data, size, start)

    def _stray_data(self, stream_id: int, pipe: Pipe[Any] | None) -> None:
        if pipe is None and self.is_idle(stream_id):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "DATA on an idle stream")
        if stream_id in self._reset_ids:
            return
        self.on_stream_error(stream_id, StreamError(ErrorCode.STREAM_CLOSED, "DATA after the end"))

    def _go_on(self, data: bytes, size: int, pos: int = 0) -> int:
        """Go on with the DATA payload or skipped bytes under way. Returns the position after."""
        if self._rest:
            take = min(self._rest, size - pos)
            if take:
                self._rest -= take
                pipe = self._rest_pipe
                end = 0
                if not self._rest:
                    end = self._rest_end
                    self._skip, self._rest_pad = self._rest_pad, 0
                    self._rest_pipe = None
                if pipe is not None and not pipe.ended:
                    piece: Payload = data[pos : pos + take]
                    if take >= COPY_BELOW:
                        piece = memoryview(data)[pos : pos + take]
                    self.on_data(pipe, piece, end)
                pos += take
        if self._skip and not self._rest:
            take = min(self._skip, size - pos)
            self._skip -= take
            pos += take
        return pos

    def _check_frame(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        """What can be told from nine bytes (RFC 9113 4.2, 6, 6.10)."""
        if length > self.frame_limit:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "frame larger than advertised")
        self._check_turn(kind, flags, stream_id)
        if kind in _CONNECTION_ONLY:
            if stream_id:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "connection frame on a stream")
        elif not stream_id and kind <= fr.CONTINUATION and kind != fr.WINDOW_UPDATE:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "stream frame on stream 0")
        expected = _FRAME_LENGTHS.get(kind)
        if expected is not None and length != expected:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "wrong frame length")
        if kind == fr.PUSH_PROMISE:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE was not enabled")
        if kind in (fr.HEADERS, fr.CONTINUATION):
            if length > self._header_limit + 256:  # padding
                raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "header block too large")
        elif kind != fr.DATA and kind <= fr.CONTINUATION and length > _MAX_CONTROL_FRAME:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "control frame too large")

    def _check_turn(self, kind: int, flags: int, stream_id: int) -> None:
        """What may come now (RFC 9113 3.4, 6.10)."""
        if self._block_id == _NOT_GREETED:
            if kind != fr.SETTINGS or flags & fr.ACK:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "SETTINGS must come first")
        elif not self._block_id:
            if kind == fr.CONTINUATION:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        elif kind != fr.CONTINUATION or stream_id != self._block_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "frame inside a header block")

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == fr.WINDOW_UPDATE:
            self._window_update(stream_id, fr.read_u32(payload) & fr.STREAM_MASK)
        elif kind == fr.PING:
            if flags & fr.ACK:
                self.on_ping_ack(payload)
            else:
                self.control += 1
                self.out.append(fr.ping(payload, ack=True))
        elif kind in (fr.HEADERS, fr.CONTINUATION):
            self._header_frame(kind, flags, stream_id, payload)
        elif kind == fr.SETTINGS:
            self._settings(flags, payload)
        elif kind == fr.RST_STREAM:
            self._reset(stream_id, fr.read_u32(payload))
        elif kind == fr.GOAWAY:
            if len(payload) < 8:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY too short")
            self.going_away = True
            self.on_goaway(fr.read_u32(payload) & fr.STREAM_MASK, fr.read_u32(payload, 4))
        # PRIORITY is obsolete (RFC 9113 5.3.2): its length is checked, its content ignored.

    def _header_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == fr.HEADERS:
            payload = _strip(flags, payload)
            self._block = [payload]
            self._block_id = stream_id
            self._block_end = bool(flags & fr.END_STREAM)
            self._block_frames = 0
        else:
            self._block.append(payload)
            self._block_frames += 1
            if self._block_frames > _MAX_CONTINUATIONS:
                raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many CONTINUATION frames")
        if sum(map(len, self._block)) > self._header_limit:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "header block too large")
        if flags & fr.END_HEADERS:
            block = b"".join(self._block)
            self._block = []
            self._block_id = 0
            try:
                self.on_head(stream_id, block, self._block_end)
            except StreamError as error:
                self.on_stream_error(stream_id, error)

    def _settings(self, flags: int, payload: bytes) -> None:
        if flags & fr.ACK:
            if payload:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS ACK with a payload")
            if not self._acked:
                # Our first and only SETTINGS: from now on no dynamic table is in use.
                self._acked = True
                self.blocks.acknowledged()
            return
        window = self.peer_window
        for key, value in fr.parse_settings(payload):
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
        """RFC 9113 6.9.2: open streams move with the initial window and may go negative."""
        for pipe in self.streams.values():
            outbound = pipe.opposite
            outbound.credit += delta
            if outbound.credit > fr.MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "window above 2^31-1")

    def _window_update(self, stream_id: int, increment: int) -> None:
        if not stream_id:
            if not increment:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            self.credit += increment
            if self.credit > fr.MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "connection window above 2^31-1")
            self.on_credit(None)
            return
        pipe = self.streams.get(stream_id)
        if pipe is None:
            if self.is_idle(stream_id):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
            return
        if not increment:
            error = StreamError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            self.on_stream_error(stream_id, error)
            return
        outbound = pipe.opposite
        outbound.credit += increment
        if outbound.credit > fr.MAX_WINDOW:
            error = StreamError(ErrorCode.FLOW_CONTROL_ERROR, "stream window above 2^31-1")
            self.on_stream_error(stream_id, error)
            return
        if outbound.queue:
            self.on_credit(outbound)

    def _reset(self, stream_id: int, code: int) -> None:
        pipe = self.streams.get(stream_id)
        if pipe is not None:
            self.on_reset(pipe, code)
        elif self.is_idle(stream_id):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "RST_STREAM on an idle stream")

    # Sending

    def write_preamble(self, settings: dict[int, int]) -> None:
        """Our SETTINGS and the connection's receive window. A client sends `PREFACE` before."""
        self.out.append(fr.settings(settings))
        self.out.append(fr.window_update(0, CONNECTION_WINDOW - fr.DEFAULT_WINDOW))

    def write_reset(self, stream_id: int, code: int) -> None:
        """RST_STREAM; what the peer still sends for the stream is ignored from now on."""
        self.control += 1
        self._reset_ids.append(stream_id)
        self.out.append(fr.rst_stream(stream_id, code))

    def was_reset(self, stream_id: int) -> bool:
        """Whether we reset this stream lately."""
        return stream_id in self._reset_ids

    def fail(self, error: Http2Error) -> None:
        """Write the GOAWAY that tells the peer what it did."""
        self.out.append(fr.goaway(self.last_peer_id, error.code, error.detail.encode()))


def _strip(flags: int, payload: bytes) -> bytes:
    """Remove padding and priority from a HEADERS payload (RFC 9113 6.2)."""
    start = 0
    end = len(payload)
    if flags & fr.PADDED:
        if not payload:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "padded HEADERS without a pad length")
        end -= payload[0]
        start = 1
    if flags & fr.PRIORITY_FLAG:
        start += 5
    if start > end:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[start:end]
