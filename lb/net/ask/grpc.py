"""A unary gRPC call on an HTTP/2 connection of its own (RFC 9113, "gRPC over HTTP2"), without IO.

`grpc.aio` costs 1.5 ms of CPU for a call on a fresh channel, seven times as much as this, and
says "refused" only in prose (docs/decisions/0005-health-rules.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from hpack import Decoder
from hpack.exceptions import HPACKError

from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.net.ask.talk import ANSWER_BYTES, PIECE_BYTES, Fields, Payload
from lb.wire.grpc.compression import inflated
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.grpc.status import decode_message
from lb.wire.http2 import frames
from lb.wire.http2.fields import encode_field
from lb.wire.http2.frames import ErrorCode

_STREAM: Final = 1
_HEADS_LIMIT: Final = 65_536
_OVERHEAD_FRAMES: Final = 100_000
"""Frames without payload of the message: servers ping while they take a long one, and credit it.
A peer could go on with them, and keep our answers to them from being read."""
_OUR_FRAME_SIZE: Final = frames.MIN_FRAME_SIZE
"""The default, which is what peers may send us."""


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


class GrpcTalk:
    """One call."""

    __slots__ = (
        "_block", "_block_ends_stream", "_connection_window", "_data", "_decoder",
        "_fields", "_frame_size", "_greeted", "_initial_window", "_limit", "_message", "_overhead",
        "_prefix", "_received", "_request", "_sent", "_stream_window", "answer",
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
    ) -> None:
        """Prepare it.

        Args:
            path: `:path`.
            metadata: of the call; without the fields that every call has.
            message: without its prefix.
            authority: `:authority`.
            is_secure: it goes over TLS.
            limit: bytes that the answer may have.
        """
        self.answer: GrpcAnswer | None = None
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
        self._connection_window = self._stream_window = frames.DEFAULT_WINDOW
        self._initial_window = frames.DEFAULT_WINDOW
        self._frame_size = frames.MIN_FRAME_SIZE
        self._received = b""
        self._greeted = False
        self._overhead = 0
        """Frames that brought nothing of the message."""
        self._decoder = Decoder()
        self._block = b""
        """Header block of a HEADERS frame that goes on in CONTINUATION frames."""
        self._block_ends_stream = False
        self._fields: Fields = ()
        self._data = bytearray()
        """What has come of the answer's message, with its prefix."""

    # The request

    def opening(self) -> bytes:
        """Preface, settings, and the head of the request."""
        block = b"".join(encode_field(name, value) for name, value in self._request)
        settings = {frames.SETTINGS_ENABLE_PUSH: 0}
        parts = [frames.PREFACE]
        if self._limit > frames.DEFAULT_WINDOW:
            # Room for the longest answer at once: its windows need no updates.
            settings[frames.SETTINGS_INITIAL_WINDOW_SIZE] = self._limit + PREFIX_SIZE
            parts.append(frames.settings(settings))
            parts.append(frames.window_update(0, self._limit))
        else:
            parts.append(frames.settings(settings))
        parts.append(
            frames.header_frames(_STREAM, block, end_stream=False, frame_size=self._frame_size)
        )
        return b"".join(parts)

    def upload(self) -> list[Payload]:
        """One DATA frame, as long as windows and frame size allow."""
        rest = len(self._message) - self._sent
        room = min(self._connection_window, self._stream_window, self._frame_size, PIECE_BYTES)
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
        self._connection_window -= size
        self._stream_window -= size
        flags = frames.END_STREAM if stop == len(self._message) else 0
        return [frames.frame_header(size, frames.DATA, flags, _STREAM), *pieces]

    def closed(self) -> None:
        """See `Talk`: a call never ends so."""

    # The answer

    def receive(self, data: bytes) -> bytes:
        """Take the complete frames; returns acknowledgements."""
        self._received = received = self._received + data if self._received else data
        replies: list[bytes] = []
        at = 0
        while self.answer is None and len(received) - at >= frames.HEADER_SIZE:
            begin = at + frames.HEADER_SIZE
            kind, flags = received[at + 3 : at + 5]
            stream = frames.read_u32(received, at + 5) & frames.STREAM_MASK
            end = begin + int.from_bytes(received[at : at + 3], "big")
            if end - begin > _OUR_FRAME_SIZE or not (self._greeted or kind == frames.SETTINGS):
                raise UpstreamError(Outcome.PROTOCOL_ERROR, "the answer is not HTTP/2")
            if len(received) < end:
                break
            self._greeted = True
            replies.append(self._take(kind, flags, stream, received[begin:end]))
            at = end
        self._received = received[at:]
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
        elif stream == _STREAM:
            self._take_stream_frame(kind, flags, payload)
        return b""

    def _take_settings(self, payload: bytes) -> None:
        try:
            pairs = frames.parse_settings(payload, may_enable_push=False)
        except frames.Http2Error as error:
            raise UpstreamError(Outcome.PROTOCOL_ERROR, error.detail) from error
        for key, value in pairs:
            if key == frames.SETTINGS_INITIAL_WINDOW_SIZE:
                self._stream_window += value - self._initial_window
                self._initial_window = value
            elif key == frames.SETTINGS_MAX_FRAME_SIZE:
                self._frame_size = value

    def _take_credit(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise UpstreamError(Outcome.PROTOCOL_ERROR, "bad WINDOW_UPDATE")
        credit = frames.read_u32(payload) & frames.STREAM_MASK
        if stream == 0:
            self._connection_window += credit
        elif stream == _STREAM:
            self._stream_window += credit

    def _take_goaway(self, payload: bytes) -> None:
        if len(payload) < 8:
            raise UpstreamError(Outcome.PROTOCOL_ERROR, "bad GOAWAY")
        if frames.read_u32(payload) & frames.STREAM_MASK < _STREAM:
            raise UpstreamError(Outcome.REFUSED, "the server goes away")

    def _take_stream_frame(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == frames.RST_STREAM:
            refused = payload == ErrorCode.REFUSED_STREAM.to_bytes(4, "big")
            raise UpstreamError(Outcome.REFUSED if refused else Outcome.RESET, "the call was reset")
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
        if len(self._block) > _HEADS_LIMIT or len(self._data) > self._limit + PREFIX_SIZE:
            raise UpstreamError(Outcome.PROTOCOL_ERROR, "endless answer")
        if kind in (frames.HEADERS, frames.CONTINUATION) and flags & frames.END_HEADERS:
            self._take_block()
        elif kind == frames.DATA and flags & frames.END_STREAM:
            raise UpstreamError(Outcome.PROTOCOL_ERROR, "the call ended without a status")

    def _take_block(self) -> None:
        try:
            decoded = self._decoder.decode(self._block, raw=True)
        except HPACKError as error:
            detail = "header block cannot be decoded"
            raise UpstreamError(Outcome.PROTOCOL_ERROR, detail) from error
        fields = {bytes(name): bytes(value) for name, value in decoded}
        http_status = fields.get(b":status", b"200").decode("latin-1")
        if http_status != "200":
            raise UpstreamError(Outcome.PROTOCOL_ERROR, f"HTTP status {http_status}")
        status = fields.get(b"grpc-status")
        if status is not None:
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
        opened = inflated(message, self._limit)
        if opened is None:
            raise UpstreamError(Outcome.PROTOCOL_ERROR, "the answer cannot be inflated")
        return opened
