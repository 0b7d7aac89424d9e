"""HTTP/2 frames: numbers, names and builders (RFC 9113 sections 4 to 7)."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends first (RFC 9113 3.4)."""

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9
NAMES: Final = (
    "DATA", "HEADERS", "PRIORITY", "RST_STREAM", "SETTINGS", "PUSH_PROMISE", "PING", "GOAWAY",
    "WINDOW_UPDATE", "CONTINUATION",
)  # fmt: skip
"""By number, for messages."""

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20

HEADER_SIZE: Final = 9
STREAM_MASK: Final = 0x7FFFFFFF
MAX_WINDOW: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65_535
MIN_FRAME_SIZE: Final = 16_384
MAX_FRAME_SIZE: Final = 2**24 - 1

SETTINGS_HEADER_TABLE_SIZE: Final = 0x1
SETTINGS_ENABLE_PUSH: Final = 0x2
SETTINGS_MAX_CONCURRENT_STREAMS: Final = 0x3
SETTINGS_INITIAL_WINDOW_SIZE: Final = 0x4
SETTINGS_MAX_FRAME_SIZE: Final = 0x5
SETTINGS_MAX_HEADER_LIST_SIZE: Final = 0x6


class ErrorCode(IntEnum):
    """RFC 9113 section 7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Http2Error(Exception):
    """The peer broke the protocol: the connection ends with GOAWAY(code)."""

    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class TooLate(Http2Error):
    """The peer did not do in time what it owes."""


class StreamError(Exception):
    """The peer broke the protocol on one stream: it ends with RST_STREAM(code)."""

    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class Malformed(StreamError):
    """A message is malformed (RFC 9113 8.1.1), in frames that are in order."""


_HEADER: Final = Struct(">LBL")
"""Length and type in one number (type in the low byte), flags, stream id."""
unpack_header: Final[Callable[[bytes, int], tuple[int, int, int]]] = _HEADER.unpack_from
pack_header: Final = _HEADER.pack
"""Of (length << 8 | type, flags, stream id): `frame_header` without its call, for hot code."""
_U32: Final = Struct(">L")
_SETTING: Final = Struct(">HL")
_WINDOW: Final = Struct(">LBLL")


def frame_header(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    """Nine bytes that start a frame."""
    return pack_header(length << 8 | kind, flags, stream_id)


def window_update(stream_id: int, increment: int) -> bytes:
    """WINDOW_UPDATE; stream 0 is the connection."""
    return _WINDOW.pack(4 << 8 | WINDOW_UPDATE, 0, stream_id, increment)


def rst_stream(stream_id: int, code: int) -> bytes:
    """RST_STREAM."""
    return _WINDOW.pack(4 << 8 | RST_STREAM, 0, stream_id, code)


def ping(payload: bytes, *, ack: bool) -> bytes:
    """PING of eight opaque bytes."""
    return frame_header(8, PING, ACK if ack else 0, 0) + payload


def goaway(last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
    """GOAWAY."""
    body = _U32.pack(last_stream_id) + _U32.pack(code) + debug
    return frame_header(len(body), GOAWAY, 0, 0) + body


def settings(values: dict[int, int]) -> bytes:
    """SETTINGS, not an acknowledgement."""
    body = b"".join(_SETTING.pack(key, value) for key, value in values.items())
    return frame_header(len(body), SETTINGS, 0, 0) + body


SETTINGS_ACK: Final = frame_header(0, SETTINGS, ACK, 0)


def header_frames(stream_id: int, block: bytes, *, end_stream: bool, frame_size: int) -> bytes:
    """HEADERS and as many CONTINUATIONs as the peer's frame size asks for."""
    flags = END_STREAM if end_stream else 0
    if len(block) <= frame_size:
        return frame_header(len(block), HEADERS, flags | END_HEADERS, stream_id) + block
    parts = [frame_header(frame_size, HEADERS, flags, stream_id), block[:frame_size]]
    for start in range(frame_size, len(block), frame_size):
        piece = block[start : start + frame_size]
        last = END_HEADERS if start + frame_size >= len(block) else 0
        parts += (frame_header(len(piece), CONTINUATION, last, stream_id), piece)
    return b"".join(parts)


def read_u32(data: bytes, offset: int = 0) -> int:
    """Four bytes, big-endian."""
    value: int = _U32.unpack_from(data, offset)[0]
    return value


def parse_settings(payload: bytes, may_enable_push: bool = True) -> list[tuple[int, int]]:
    """The parameters of a SETTINGS frame in order (RFC 9113 6.5).

    Args:
        payload: of the frame.
        may_enable_push: its sender is a client.

    Raises:
        Http2Error: bad length, or a value out of range (6.5.2).
    """
    if len(payload) % 6:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS length is not a multiple of six")
    pairs: list[tuple[int, int]] = [*_SETTING.iter_unpack(payload)]
    for key, value in pairs:
        if key == SETTINGS_ENABLE_PUSH and value > may_enable_push:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH out of range")
        if key == SETTINGS_INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise Http2Error(
                ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE out of range"
            )
        if key == SETTINGS_MAX_FRAME_SIZE and not MIN_FRAME_SIZE <= value <= MAX_FRAME_SIZE:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE out of range")
    return pairs
