"""The five bytes before every gRPC message, and the model's name at the start of one.

Only looks: messages cross the relay undecoded.
"""

from __future__ import annotations

from typing import Final

from lb.wire.protobuf import ProtobufError, varint
from lb.wire.rope import Held

PREFIX_SIZE: Final = 5
"""Compressed flag and big-endian length ("gRPC over HTTP2": Length-Prefixed-Message)."""
_LENGTH_BYTES: Final = 10
NAME_SEARCH_LIMIT: Final = 1024
"""A model's name must start within the first bytes: it is field 1, and writers go by number."""


def frame_message(message: bytes) -> bytes:
    """An uncompressed length-prefixed message."""
    return message_prefix(len(message)) + message


def message_prefix(size: int) -> bytes:
    """What stands before an uncompressed message of `size` bytes."""
    return b"\0" + size.to_bytes(4, "big")


class MessageMeter:
    """Follows the length prefixes of a stream of messages, however it is cut."""

    __slots__ = ("_prefix", "_rest", "largest", "limit")

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        """For whoever asks whether `largest` is too large; in bytes."""
        self._prefix = b""
        self._rest = 0
        self.largest = 0
        """Length in bytes of the longest message announced so far."""

    def feed(self, payload: Held) -> None:
        """Take the next bytes of the stream."""
        pos, end = 0, len(payload)
        while pos < end:
            if self._rest:
                step = min(self._rest, end - pos)
                self._rest -= step
                pos += step
                continue
            step = min(PREFIX_SIZE - len(self._prefix), end - pos)
            if isinstance(payload, bytes | memoryview):
                self._prefix += bytes(payload[pos : pos + step])
            else:
                self._prefix += payload.part(pos, pos + step).read()
            pos += step
            if len(self._prefix) == PREFIX_SIZE:
                self._rest = int.from_bytes(self._prefix[1:], "big")
                self.largest = max(self.largest, self._rest)
                self._prefix = b""


def model_name(head: bytes) -> bytes | None:
    """Field 1 of the first message, the model's name in `ModelInferRequest`.

    Args:
        head: the first bytes of the stream's data, prefix included.

    Returns:
        The name; empty when the message does not start with one (absent, compressed, cut off, or
        written in another order); None when more bytes are needed to tell.
    """
    # HOT PATH (benchmarks/bench_grpc_message.py). Handles only what real clients write: field 1
    # first with a length of one or two bytes; everything else counts as unnamed.
    size = len(head)
    start = PREFIX_SIZE + 2
    if size < PREFIX_SIZE:
        return None
    end = PREFIX_SIZE + int.from_bytes(head[1:PREFIX_SIZE], "big")
    if end < start:
        return b""
    if size < start:
        return None
    if head[0] or head[5] != 0x0A:
        return b""
    length = head[6]
    if length & 0x80:
        if size < start + 1:
            return None
        length = (length & 0x7F) | head[7] << 7
        start += 1
        if length > NAME_SEARCH_LIMIT:
            return b""
    if start + length > end:
        return b""  # it would run into the next message
    if size < start + length:
        return None
    return head[start : start + length]


def nested_name(head: bytes, depth: int) -> bytes | None:
    """As `model_name`, `depth` messages deeper, each of which comes first as field 1.

    TF Serving's `PredictRequest` has the name in its `model_spec`, one message deep.
    """
    size = len(head)
    if size < PREFIX_SIZE:
        return None
    if head[0]:
        return b""
    at = PREFIX_SIZE
    end = PREFIX_SIZE + int.from_bytes(head[1:PREFIX_SIZE], "big")
    for _ in range(depth + 1):
        if at >= end or (at < size and head[at] != 0x0A):
            return b""
        try:
            length, at = varint(head, at + 1, size)
        except ProtobufError:
            return None if size < at + 1 + _LENGTH_BYTES else b""
        if at + length > end:
            return b""
        end = at + length
    if end - at > NAME_SEARCH_LIMIT:
        return b""
    return head[at:end] if size >= end else None
