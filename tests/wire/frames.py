"""HTTP/2 frames and gRPC messages, built and read by hand: what all peers of the kit share.

Nothing here does I/O, so that peers on asyncio, on blocking sockets and on epoll can share it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = range(5)
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(5, 10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY_FLAG = 1, 1, 4, 8, 0x20

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 2, 3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL = 5, 6, 7, 8
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 9, 11

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 1, 2, 3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 4, 5, 6
DEFAULT_WINDOW, MAX_WINDOW = 65_535, 2**31 - 1
_HEAD = struct.Struct(">BHBBL")
"""The head of a frame: length in 24 bits, kind, flags, stream (RFC 9113, section 4.1)."""

FieldPair = tuple[bytes, bytes]


class Frame(NamedTuple):
    """One frame as it was received."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of RST_STREAM or GOAWAY."""
        at = 0 if self.kind == RST_STREAM else 4
        return int.from_bytes(self.payload[at : at + 4], "big")

    @property
    def last_stream(self) -> int:
        """GOAWAY's last stream."""
        return int.from_bytes(self.payload[:4], "big")

    @property
    def increment(self) -> int:
        """WINDOW_UPDATE's increment."""
        return int.from_bytes(self.payload, "big")

    @property
    def ends_stream(self) -> bool:
        """Whether END_STREAM is set."""
        return self.kind in (DATA, HEADERS) and bool(self.flags & END_STREAM)

    @property
    def values(self) -> dict[int, int]:
        """SETTINGS by number."""
        return dict(struct.iter_unpack(">HL", self.payload))


# Reading


_frame_of = tuple.__new__
"""Makes a frame in three quarters of the time that `Frame()` takes, for the load generators."""


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self, *, skips: int = 0) -> None:
        """
        Args:
            skips: bytes in front of the first frame, which is how a server passes over the preface.
        """
        self._skips = skips
        self._held = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield every frame that is complete now."""
        if self._skips:
            skipped = min(self._skips, len(data))
            self._skips -= skipped
            data = data[skipped:]
        if self._held:
            data = self._held + data
        position, end = 0, len(data)
        while end - position >= 9:
            high, low, kind, flags, stream = _HEAD.unpack_from(data, position)
            stop = position + 9 + (high << 16 | low)
            if stop > end:
                break
            yield _frame_of(Frame, (kind, flags, stream & MAX_WINDOW, data[position + 9 : stop]))
            position = stop
        self._held = data[position:]


def due_reply(found: Frame) -> bytes:
    """What a peer must send back at once: the acknowledgement of SETTINGS or PING, else nothing."""
    if found.flags & ACK or found.kind not in (SETTINGS, PING):
        return b""
    return SETTINGS_ACK if found.kind == SETTINGS else ping(found.payload, ack=True)


# Building


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Any frame."""
    size = len(payload)
    return _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def _padded(payload: bytes, pad: int | None) -> tuple[bytes, int]:
    if pad is None:
        return payload, 0
    return bytes((pad,)) + payload + bytes(pad), PADDED


def data(stream: int, payload: bytes = b"", *, end: bool = False, pad: int | None = None) -> bytes:
    """DATA."""
    payload, flags = _padded(payload, pad)
    return frame(DATA, flags | (END_STREAM if end else 0), stream, payload)


def headers(
    stream: int,
    block: bytes | Iterable[FieldPair],
    *,
    end: bool = False,
    done: bool = True,
    pad: int | None = None,
    priority: bytes | None = None,
) -> bytes:
    """HEADERS, from a block or from fields. `done` is END_HEADERS."""
    payload = block if isinstance(block, bytes) else literals(block)
    flags = (END_STREAM if end else 0) | (END_HEADERS if done else 0)
    if priority is not None:
        payload = priority + payload
        flags |= PRIORITY_FLAG
    payload, padding = _padded(payload, pad)
    return frame(HEADERS, flags | padding, stream, payload)


def continuation(stream: int, block: bytes, *, done: bool = True) -> bytes:
    """CONTINUATION."""
    return frame(CONTINUATION, END_HEADERS if done else 0, stream, block)


def settings(values: Mapping[int, int] | Iterable[tuple[int, int]] = ()) -> bytes:
    """SETTINGS; pairs may repeat a number."""
    pairs = values.items() if isinstance(values, Mapping) else values
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HL", *pair) for pair in pairs))


SETTINGS_ACK = frame(SETTINGS, ACK, 0)


def opening(values: Mapping[int, int] | None = None) -> bytes:
    """SETTINGS and WINDOW_UPDATE that open the receiving windows as far as they go.

    Args:
        values: further settings.
    """
    window = window_update(0, MAX_WINDOW - DEFAULT_WINDOW)
    return settings({INITIAL_WINDOW_SIZE: MAX_WINDOW, **(values or {})}) + window


def ping(payload: bytes = b"12345678", *, ack: bool = False) -> bytes:
    """PING."""
    return frame(PING, ACK if ack else 0, 0, payload)


def goaway(last: int = 0, code: int = NO_ERROR, text: bytes = b"", *, stream: int = 0) -> bytes:
    """GOAWAY."""
    return frame(GOAWAY, 0, stream, struct.pack(">LL", last, code) + text)


def rst(stream: int, code: int = CANCEL) -> bytes:
    """RST_STREAM."""
    return frame(RST_STREAM, 0, stream, struct.pack(">L", code))


def window_update(stream: int, increment: int) -> bytes:
    """WINDOW_UPDATE."""
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">L", increment))


def integer(value: int, bits: int, first: int = 0) -> bytes:
    """RFC 7541 5.1."""
    limit = (1 << bits) - 1
    if value < limit:
        return bytes((first | value,))
    out = [first | limit]
    value -= limit
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes((*out, value))


def literal(name: bytes, value: bytes, first: int = 0) -> bytes:
    """One field, literal with a literal name, not Huffman. `first` is 0, 0x10 or 0x40."""
    return bytes((first,)) + integer(len(name), 7) + name + integer(len(value), 7) + value


def literals(fields: Iterable[FieldPair]) -> bytes:
    """A block of literals."""
    return b"".join(literal(name, value) for name, value in fields)


# gRPC


def message(payload: bytes = b"", flag: int = 0) -> bytes:
    """A length-prefixed message."""
    return bytes((flag,)) + len(payload).to_bytes(4, "big") + payload


def named(model: bytes = b"m", more: bytes = b"") -> bytes:
    """The message of an inference request for `model`."""
    return message(b"\x0a" + bytes((len(model),)) + model + more)


METHOD_PATH = b"/inference.GRPCInferenceService/ModelInfer"
HANG_PATH = b"/test.Service/Hang"
"""`serve_calls` leaves such a call without an answer."""


def request_fields(*more: FieldPair, path: bytes = METHOD_PATH) -> list[FieldPair]:
    """A good gRPC request head, and more fields behind it."""
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"lb.test"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        *more,
    ]


def call(stream: int, body: bytes | None = None, *more: FieldPair) -> bytes:
    """A whole unary request."""
    payload = named() if body is None else body
    return headers(stream, request_fields(*more)) + data(stream, payload, end=True)


RESPONSE_FIELDS: list[FieldPair] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
OK_TRAILERS: list[FieldPair] = [(b"grpc-status", b"0")]


def answer(stream: int, body: bytes | None = None) -> bytes:
    """A whole unary answer."""
    return (
        headers(stream, RESPONSE_FIELDS)
        + data(stream, message() if body is None else body)
        + headers(stream, OK_TRAILERS, end=True)
    )
