"""What is right or wrong with a frame by itself: its size, its stream, its padding."""

from __future__ import annotations

from typing import Final, NamedTuple

from lb.wire.http2 import frames as fr
from lb.wire.http2.frames import ErrorCode, Http2Error

MAX_SETTINGS: Final = 32
"""Parameters in one SETTINGS frame, as nghttp2; the RFCs define nine."""
TINY: Final = 5
"""DATA below this many bytes holds no message of gRPC, whose prefix alone is as long."""
_MAX_CONTROL_FRAME: Final = 16_384
"""Frames other than DATA and header blocks; the longest that makes sense is GOAWAY's text."""


class _Shape(NamedTuple):
    """What holds for all frames of a kind."""

    least: int
    """Bytes."""
    most: int
    stream: bool | None
    """On a stream, on stream 0, or (None) on either."""


_ANY_SIZE: Final = 2**24
_SHAPES: Final = (
    _Shape(0, _ANY_SIZE, True),  # DATA: the frame size that we advertise is its limit
    _Shape(0, _ANY_SIZE, True),  # HEADERS: the codec limits header blocks
    _Shape(0, _MAX_CONTROL_FRAME, True),  # PRIORITY: another length than 5 is its stream's error
    _Shape(4, 4, True),  # RST_STREAM
    _Shape(0, _MAX_CONTROL_FRAME, False),  # SETTINGS: limited below
    _Shape(_ANY_SIZE, 0, True),  # PUSH_PROMISE: never
    _Shape(8, 8, False),  # PING
    _Shape(0, _MAX_CONTROL_FRAME, False),  # GOAWAY
    _Shape(4, 4, None),  # WINDOW_UPDATE
    _Shape(0, _ANY_SIZE, True),  # CONTINUATION: likewise
)
"""By kind."""


def check_shape(kind: int, stream_id: int, length: int) -> None:
    """Check what can be told from nine bytes (RFC 9113 6), but for the size of header blocks.

    Raises:
        Http2Error: the frame must not be.
    """
    if kind > fr.CONTINUATION:
        return
    least, most, stream = _SHAPES[kind]
    if stream is not None and stream != (stream_id != 0):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "frame on the wrong stream")
    if kind == fr.PUSH_PROMISE:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE was not enabled")
    if not least <= length <= most:
        if most == _MAX_CONTROL_FRAME:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "control frame too large")
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "wrong frame length")
    if kind == fr.SETTINGS and length > 6 * MAX_SETTINGS and not length % 6:
        raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many settings")


def strip(flags: int, payload: bytes) -> bytes:
    """The payload of HEADERS without padding and priority (RFC 9113 6.2).

    Raises:
        Http2Error: there is less of it than its flags say.
    """
    start = 0
    end = len(payload)
    if flags & fr.PADDED:
        if not payload:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "padded HEADERS without a pad length")
        end -= payload[0]
        start = 1
    if flags & fr.PRIORITY_FLAG:
        start += 5
        if start > len(payload):
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for their priority")
    if start > end:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[start:end]


def is_own_parent(stream_id: int, payload: bytes) -> bool:
    """Whether a PRIORITY frame makes its stream depend on itself (RFC 7540 5.3.1)."""
    return fr.read_u32(payload) & fr.STREAM_MASK == stream_id
