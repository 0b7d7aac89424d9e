"""Unary gRPC calls, one at a time on an HTTP/2 connection (RFC 9113, "gRPC over HTTP2").

This module does no IO. `grpc.aio` costs 1.5 ms of CPU for a call on a fresh channel, seven times as
much as this, and says "refused" only in prose (docs/decisions/0005-health-rules.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from hpack import Decoder
from hpack.exceptions import HPACKError

from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.net.ask.client_call import ANSWER_BYTES, PIECE_BYTES, Fields, Payload
from lb.wire.grpc.compression import inflated
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.grpc.status import decode_message
from lb.wire.http2 import frames
from lb.wire.http2.fields import encode_field, read_integer
from lb.wire.http2.frames import ErrorCode, Http2Error

_HEADS_LIMIT: Final = 65_536
_OVERHEAD_FRAMES: Final = 100_000
"""Frames without payload of the message: servers ping while they take a long one, and credit it.
A peer could go on with them, and keep our answers to them from being read."""
_INFLATED_BYTES: Final = 1 << 20
"""Bytes that a compressed answer may inflate to, which is done at once: we do not ask for any."""
_OUR_FRAME_SIZE: Final = frames.MIN_FRAME_SIZE
"""The default, which is what peers may send us."""
_KNOWN_BLOCKS: Final = 16
"""Servers end most calls alike: in two or three blocks."""


@dataclass(frozen=True, slots=True)
class GrpcAnswer:
    """How a call ended."""

    status: int
    """gRPC status as it came; servers may use others than the canonical ones."""
    detail: str
    """`grpc-message`."""
    message: bytes
    """Without its prefix, not compressed; empty when the status is not OK."""
    fields: Fields = field(default=(), compare=False)
    """Of the head that came before the message."""

    def field(self, name: bytes) -> bytes:
        """The value of a field of the head; empty where there is none."""
        return next((value for each, value in self.fields if each == name), b"")


class GrpcSession:
    """What calls on one connection share."""

    __slots__ = (
        "block", "consumed", "decoder", "frame_size", "greeted", "initial_window", "is_closing",
        "known", "received", "request", "stream", "window",
    )  # fmt: skip

    def __init__(self) -> None:
        self.stream = -1
        """The stream of the newest call."""
        self.window = frames.DEFAULT_WINDOW
        """What may be sent on the connection."""
        self.initial_window = frames.DEFAULT_WINDOW
        """What may be sent on a new stream."""
        self.frame_size = frames.MIN_FRAME_SIZE
        self.received = b""
        """The beginning of a frame."""
        self.consumed = 0
        """Bytes of answers for which the server has not got credit."""
        self.greeted = False
        """Whether the server has sent its settings."""
        self.is_closing = False
        """No call may follow."""
        self.decoder = Decoder()
        self.known: dict[bytes, dict[bytes, bytes]] = {}
        """Fields by their block, as long as the dynamic table stays as it is."""
        self.request: Fields = ()
        self.block = b""
        """The fields of the newest request, and their block."""


class GrpcClientCall:
    """One call."""

    __slots__ = (
        "_block", "_block_ends_stream", "_data", "_fields", "_limit", "_message", "_overhead",
        "_prefix", "_request", "_sent", "_stream", "_stream_window", "answer", "session",
    )  # fmt: skip

    def __init__(
        self,
        path: bytes,
        metadata: Fields,
        message: Payload = b"",
        *,
        authority: bytes,
        is_secure: bool = False,
        limit: int = ANSWER_BYTES,
        session: GrpcSession | None = None,
    ) -> None:
        """Prepare it.

        Args:
            path: `:path`.
            metadata: of the call; without the fields that every call has.
            message: without its prefix.
            authority: `:authority`.
            is_secure: it goes over TLS.
            limit: bytes that the answer may have; the same for all calls of a session.
            session: of a connection that has had another call; None: it is new.
        """
        self.answer: GrpcAnswer | None = None
        self.session = session = session or GrpcSession()
        self._stream = session.stream + 2
        self._request = (
            (b":method", b"POST"),
            (b":scheme", b"https" if is_secure else b"http"),
            (b":path", path),
            (b":authority", authority),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            *metadata,
        )
        self._prefix = b"\0" + len(message).to_bytes(4, "big")
        self._message = memoryview(message)
        self._sent = -PREFIX_SIZE
        """Bytes of the message that went out; below zero for those of its prefix."""
        self._limit = limit
        self._stream_window = session.initial_window
        self._overhead = 0
        """Frames that brought nothing of the message."""
        self._block = b""
        """Header block of a HEADERS frame that goes on in CONTINUATION frames."""
        self._block_ends_stream = False
        self._fields: Fields = ()
        self._data = bytearray()
        """What has come of the answer's message, with its prefix."""

    # The request

    @property
    def is_reusable(self) -> bool:
        """See `ClientCall`."""
        is_sent = self._sent == len(self._message)
        return self.answer is not None and is_sent and not self.session.is_closing

    def release(self) -> None:
        """See `ClientCall`."""
        self._message, self._sent, self._data = memoryview(b""), 0, bytearray()
        self.answer = GrpcAnswer(0, "", b"")

    def opening(self) -> bytes:
        """Preface and settings, or credit for the answers before, and the head of the request."""
        session = self.session
        if session.request != self._request:
            session.request = self._request
            session.block = b"".join([encode_field(name, value) for name, value in self._request])
        block = session.block
        parts = []
        if session.stream < 0:
            parts.append(self._greeting())
        elif session.consumed:
            parts.append(frames.window_update(0, session.consumed))
            session.consumed = 0
        session.stream = self._stream
        parts.append(
            frames.header_frames(
                self._stream, block, end_stream=False, frame_size=session.frame_size
            )
        )
        return b"".join(parts)

    def _greeting(self) -> bytes:
        settings = {frames.SETTINGS_ENABLE_PUSH: 0}
        if self._limit <= frames.DEFAULT_WINDOW:
            return frames.PREFACE + frames.settings(settings)
        # Room for the longest answer at once: its windows need no updates.
        settings[frames.SETTINGS_INITIAL_WINDOW_SIZE] = self._limit + PREFIX_SIZE
        return b"".join((
            frames.PREFACE, frames.settings(settings), frames.window_update(0, self._limit),
        ))  # fmt: skip

    def upload(self) -> list[Payload]:
        """One DATA frame, as long as windows and frame size allow."""
        rest = len(self._message) - self._sent
        session = self.session
        room = min(session.window, self._stream_window, session.frame_size, PIECE_BYTES)
        if not rest or room <= 0:
            return []
        pieces: list[Payload] = []
        size = min(rest, room)
        stop = self._sent + size
        if self._sent < 0:
            pieces.append(self._prefix[self._sent :][:size])
        if stop > 0:
            pieces.append(self._message[max(self._sent, 0) : stop])
        self._sent = stop
        session.window -= size
        self._stream_window -= size
        flags = frames.END_STREAM if stop == len(self._message) else 0
        return [frames.frame_header(size, frames.DATA, flags, self._stream), *pieces]

    def closed(self) -> None:
        """See `ClientCall`: a call never ends so."""

    # The answer

    def receive(self, data: bytes) -> bytes:
        """Take the complete frames; returns acknowledgements."""
        try:
            return self._receive(data)
        except UpstreamError:
            self.session.is_closing = True
            if self.answer is None:
                raise
            return b""

    def _receive(self, data: bytes) -> bytes:
        session = self.session
        received = session.received + data if session.received else data
        replies: list[bytes] = []
        at = 0
        while len(received) - at >= frames.HEADER_SIZE:
            begin = at + frames.HEADER_SIZE
            kind, flags = received[at + 3 : at + 5]
            stream = frames.read_u32(received, at + 5) & frames.STREAM_MASK
            end = begin + int.from_bytes(received[at : at + 3], "big")
            if end - begin > _OUR_FRAME_SIZE or not (session.greeted or kind == frames.SETTINGS):
                raise UpstreamError(Outcome.PROTOCOL_ERROR, "the answer is not HTTP/2")
            if len(received) < end:
                break
            session.greeted = True
            replies.append(self._take(kind, flags, stream, received[begin:end]))
            at = end
        session.received = received[at:]
        return b"".join(replies)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        if kind != frames.DATA or not payload:
            self._overhead += 1
            if self._overhead > _OVERHEAD_FRAMES:
                raise UpstreamError(Outcome.PROTOCOL_ERROR, "endless frames")
        if kind == frames.SETTINGS and not flags & frames.ACK:
            self._take_settings(payload)
            return frames.SETTINGS_ACK
        if kind == frames.PING and not flags & frames.ACK:
            return frames.ping(payload, ack=True)
        if kind == frames.WINDOW_UPDATE:
            self._take_credit(stream, payload)
        elif kind == frames.GOAWAY:
            self._take_goaway(payload)
        elif stream == self._stream and self.answer is None:
            self._take_stream_frame(kind, flags, payload)
        elif kind in (frames.HEADERS, frames.CONTINUATION, frames.DATA):
            self.session.is_closing = True  # of no call that is under way
        return b""

    def _take_settings(self, payload: bytes) -> None:
        try:
            pairs = frames.parse_settings(payload, may_enable_push=False)
        except frames.Http2Error as error:
            raise UpstreamError(Outcome.PROTOCOL_ERROR, error.detail) from error
        session = self.session
        for key, value in pairs:
            if key == frames.SETTINGS_INITIAL_WINDOW_SIZE:
                self._stream_window += value - session.initial_window
                session.initial_window = value
            elif key == frames.SETTINGS_MAX_FRAME_SIZE:
                session.frame_size = value

    def _take_credit(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise UpstreamError(Outcome.PROTOCOL_ERROR, "bad WINDOW_UPDATE")
        credit = frames.read_u32(payload) & frames.STREAM_MASK
        if stream == 0:
            self.session.window += credit
        elif stream == self._stream:
            self._stream_window += credit

    def _take_goaway(self, payload: bytes) -> None:
        self.session.is_closing = True
        if len(payload) < 8:
            raise UpstreamError(Outcome.PROTOCOL_ERROR, "bad GOAWAY")
        if frames.read_u32(payload) & frames.STREAM_MASK < self._stream:
            raise UpstreamError(Outcome.REFUSED, "the server goes away")

    def _take_stream_frame(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == frames.RST_STREAM:
            refused = payload == ErrorCode.REFUSED_STREAM.to_bytes(4, "big")
            raise UpstreamError(Outcome.REFUSED if refused else Outcome.RESET, "the call was reset")
        if kind == frames.DATA:
            self.session.consumed += len(payload)
        if kind in (frames.HEADERS, frames.DATA) and flags & frames.PADDED:
            padding = payload[0] if payload else 0
            payload = payload[1 : len(payload) - padding]
        if kind == frames.HEADERS:
            if flags & frames.PRIORITY_FLAG:
                payload = payload[5:]
            self._block = payload
            self._block_ends_stream = bool(flags & frames.END_STREAM)
        elif kind == frames.CONTINUATION:
            self._block += payload
        elif kind == frames.DATA:
            self._data += payload
        if len(self._block) > _HEADS_LIMIT:
            detail = "the head or the trailers of the answer are too large"
            raise UpstreamError(Outcome.HEAD_TOO_LARGE, detail)
        if len(self._data) > self._limit + PREFIX_SIZE:
            raise UpstreamError(Outcome.PROTOCOL_ERROR, "endless answer")
        if kind in (frames.HEADERS, frames.CONTINUATION) and flags & frames.END_HEADERS:
            self._take_block()
        elif kind == frames.DATA and flags & frames.END_STREAM:
            raise UpstreamError(Outcome.PROTOCOL_ERROR, "the call ended without a status")

    def _decoded(self) -> dict[bytes, bytes]:
        """The fields of a block. The library takes longer for it than the rest of a call."""
        block, session = self._block, self.session
        fields = session.known.get(block)
        if fields is not None:
            return fields
        try:
            decoded = session.decoder.decode(block, raw=True)
        except HPACKError as error:
            detail = "header block cannot be decoded"
            raise UpstreamError(Outcome.PROTOCOL_ERROR, detail) from error
        fields = {bytes(name): bytes(value) for name, value in decoded}
        is_repeatable = _leaves_table(block)
        if not is_repeatable or len(session.known) >= _KNOWN_BLOCKS:
            session.known.clear()
        if is_repeatable:
            session.known[block] = fields
        return fields

    def _take_block(self) -> None:
        fields = self._decoded()
        http_status = fields.get(b":status", b"200").decode("latin-1")
        if http_status != "200":
            raise UpstreamError(Outcome.PROTOCOL_ERROR, f"HTTP status {http_status}")
        status = fields.get(b"grpc-status")
        if status is not None:
            if not self._block_ends_stream:
                self.session.is_closing = True
            self._finish(status, decode_message(fields.get(b"grpc-message", b"")))
        elif self._block_ends_stream or self._fields:
            raise UpstreamError(Outcome.PROTOCOL_ERROR, "the call ended without a status")
        else:
            self._fields = tuple(fields.items())

    def _finish(self, status: bytes, detail: str) -> None:
        if not (status.isdigit() and len(status) <= 3):
            raise UpstreamError(Outcome.PROTOCOL_ERROR, "the status is no number")
        code = int(status)
        message = b"" if code else self._whole_message()
        self.answer = GrpcAnswer(code, detail, message, self._fields)

    def _whole_message(self) -> bytes:
        data = self._data
        size = int.from_bytes(data[1:PREFIX_SIZE], "big") + PREFIX_SIZE
        if len(data) < PREFIX_SIZE or len(data) != size:
            raise UpstreamError(Outcome.PROTOCOL_ERROR, "the answer is not one message")
        message = bytes(memoryview(data)[PREFIX_SIZE:])
        if not data[0]:
            return message
        opened = inflated(message, min(self._limit, _INFLATED_BYTES))
        if opened is None:
            raise UpstreamError(Outcome.PROTOCOL_ERROR, "the answer cannot be inflated")
        return opened


def _leaves_table(block: bytes) -> bool:
    """Whether a header block that was decoded has left the dynamic table as it was: it has no
    literals with indexing and no size updates (RFC 7541 6.2.1, 6.3)."""
    at = 0
    try:
        while at < len(block):
            first = block[at]
            if first & 0x80:
                _, at = read_integer(block, at, 0x7F)
                continue
            if first & 0x60:
                return False
            index, at = read_integer(block, at, 0x0F)
            for _ in range(1 if index else 2):
                size, at = read_integer(block, at, 0x7F)
                at += size
    except (Http2Error, IndexError):  # written in more bytes than anybody needs
        return False
    return True
