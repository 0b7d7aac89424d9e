"""Compressed messages, opened to be looked into; they are forwarded as they came."""

from __future__ import annotations

import zlib
from typing import Final

GZIP_OR_ZLIB: Final = 47
"""Window bits that take both: `gzip`, and zlib, which gRPC calls `deflate`."""
UNKNOWN_SIZE: Final = 2**31
"""Beyond any message."""


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
