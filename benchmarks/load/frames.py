"""Just enough HTTP/2 for a load generator and an echo server: frames (RFC 9113) and literals.

Header blocks are written without the dynamic table and without Huffman code (RFC 7541, 6.2.2), so
every byte on the wire is known in advance. Nothing here is used by the load balancer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_TABLE_SETTING, INITIAL_WINDOW_SETTING, MAX_FRAME_SETTING = 1, 4, 5
DEFAULT_WINDOW = 65535
MAX_WINDOW = 2**31 - 1


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame with its 9-byte head."""
    size = len(payload)
    return struct.pack(">BHBBI", size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header field without indexing, new name; both parts are shorter than 127 B."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def window_update(stream: int, credit: int) -> bytes:
    """A WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", credit))


def opening(header_table: int | None = None) -> bytes:
    """SETTINGS and WINDOW_UPDATE that open the receiving windows as far as they go.

    `header_table` is the size of the dynamic table that the peer may use toward us, if not the
    usual one.
    """
    settings = struct.pack(">HI", INITIAL_WINDOW_SETTING, MAX_WINDOW)
    if header_table is not None:
        settings += struct.pack(">HI", HEADER_TABLE_SETTING, header_table)
    return frame(SETTINGS, 0, 0, settings) + window_update(0, MAX_WINDOW - DEFAULT_WINDOW)


def settings_in(payload: bytes) -> dict[int, int]:
    """The settings that a SETTINGS frame carries."""
    return dict(struct.iter_unpack(">HI", payload))


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield kind, flags, stream and payload of every frame that is complete now."""
        if self._held:
            data = self._held + data
        position, end = 0, len(data)
        while end - position >= 9:
            stop = (
                position + 9 + (data[position] << 16 | data[position + 1] << 8) + data[position + 2]
            )
            if stop > end:
                break
            stream = int.from_bytes(data[position + 5 : position + 9], "big") & MAX_WINDOW
            yield data[position + 3], data[position + 4], stream, data[position + 9 : stop]
            position = stop
        self._held = data[position:]
