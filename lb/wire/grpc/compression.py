"""Compressed messages, opened to be looked into; they are forwarded as they came."""

from __future__ import annotations

import zlib
from typing import Final

from lb.wire.rope import Payload, Rope, rope_of

GZIP_OR_ZLIB: Final = 47
"""Window bits that take both: `gzip`, and zlib, which gRPC calls `deflate`."""
UNKNOWN_SIZE: Final = 2**31
"""Beyond any message."""
_FED: Final = 64 * 1024
"""Bytes that are inflated in one step at most."""


def inflated(data: bytes | memoryview, limit: int) -> bytes | None:
    """A whole message, inflated.

    Args:
        data: the message without its prefix.
        limit: bytes that it may have at most.

    Returns:
        None when it is broken, longer, cut off, or followed by something.
    """
    inflater = zlib.decompressobj(wbits=GZIP_OR_ZLIB)
    try:
        message = inflater.decompress(data, limit)
    except zlib.error:
        return None
    return message if inflater.eof and not inflater.unused_data else None


class Inflater:
    """Inflates a whole message in slices."""

    __slots__ = ("_at", "_data", "_inflater")

    def __init__(self, data: Payload | Rope) -> None:
        """
        Args:
            data: the message without its prefix.
        """
        self._data = rope_of(data)
        self._at = 0
        self._inflater = zlib.decompressobj(wbits=GZIP_OR_ZLIB)

    @property
    def is_whole(self) -> bool:
        """All of it was given."""
        return self._inflater.eof

    @property
    def is_read(self) -> bool:
        """All of what it is made from was read."""
        return self._at == len(self._data) and not self._inflater.unconsumed_tail

    def next(self, limit: int) -> bytes:
        """The next bytes of the message, `limit` at most; perhaps none, though others follow.

        Raises:
            zlib.error: it is broken, cut off, or followed by something.
        """
        inflater = self._inflater
        piece: bytes | memoryview = inflater.unconsumed_tail
        if not piece:
            # Some at a time: what zlib has no use for yet is copied in each step.
            piece = self._data.read(self._at, self._at + _FED)
            if not piece:
                raise zlib.error("incomplete")
            self._at += len(piece)
        text = inflater.decompress(piece, limit)
        if inflater.eof and (inflater.unused_data or self._at < len(self._data)):
            raise zlib.error("something follows")
        return text


def inflated_start(data: bytes | memoryview, limit: int) -> tuple[bytes, int]:
    """The first bytes of a message that may still be on its way, inflated.

    Args:
        data: what has come of the message, without its prefix.
        limit: bytes that are wanted.

    Returns:
        Those bytes, and the size of all of it, or one beyond it where that is not known. Nothing
        where it cannot be inflated: its reader says what is wrong with it.
    """
    inflater = zlib.decompressobj(wbits=GZIP_OR_ZLIB)
    try:
        message = inflater.decompress(data, limit)
    except zlib.error:
        return b"", 0
    return message, len(message) if inflater.eof else UNKNOWN_SIZE
