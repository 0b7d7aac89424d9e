"""What transports do not tell: facts that only the socket below them knows.

All of these do nothing where there is no socket, as with transports of tests.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import sys
import termios
from enum import Enum
from typing import Final, NamedTuple

_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends RST instead of FIN."""
_READ_BYTES: Final = 65536
_ACKNOWLEDGED: Final = slice(120, 128)
"""In `struct tcp_info` of Linux, since 4.1."""
_RESENT_TIMES: Final = 2
"""In the same (`linux/tcp.h`): how often in a row the retransmission timer has fired."""
_UNACKNOWLEDGED: Final = slice(24, 28)
"""Segments; the next two are in milliseconds."""
_SINCE_SENT: Final = slice(44, 48)
_SINCE_ACKNOWLEDGED: Final = slice(56, 60)
"""The last segment that says what arrived; all but those of mere data count, the last one does."""
_STATE: Final = 0
_CLOSED: Final = 7
"""TCP_CLOSE: here, where we have not closed it, by a reset."""
_ENDED: Final = 8
"""TCP_CLOSE_WAIT."""


class Unacknowledged(NamedTuple):
    """What was sent, was sent again, and is not acknowledged. Seconds."""

    silent_s: float
    """Since the last acknowledgement of anything."""
    resent_s: float
    """Since it was sent the last time."""


class PeerEnd(Enum):
    """How a peer has ended what it sends."""

    FIN = "FIN"
    """It sends nothing more."""
    RESET = "RST"
    """It takes nothing more either."""


_ENDS: Final = {_CLOSED: PeerEnd.RESET, _ENDED: PeerEnd.FIN}


def unsent_bytes(transport: asyncio.Transport) -> int:
    """Bytes that the peer has not taken yet: those that wait here, and those in the kernel.

    The kernel takes megabytes from us and asks for more only when a third of them is gone, so
    that a slow reader seems to stand still for a long time if only our own are counted.
    """
    size = transport.get_write_buffer_size()
    fd = _fd_of(transport)
    if fd >= 0:
        try:
            queued = fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0\0\0\0")
        except OSError:
            return size
        size += int.from_bytes(queued, sys.byteorder)
    return size


def acknowledged_bytes(transport: asyncio.Transport) -> int:
    """Bytes that the peer's kernel has taken since the connection began (`tcpi_bytes_acked`), of
    which a peer that never reads takes no more than fits its buffer; 0 where it is not TCP."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family == socket.AF_UNIX:
        return 0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED.stop)
    except OSError:
        return 0
    return int.from_bytes(info[_ACKNOWLEDGED], sys.byteorder)


def unacknowledged(transport: asyncio.Transport) -> Unacknowledged | None:
    """What the peer's kernel does not acknowledge although it was sent again; None where there is
    nothing of that kind, and where nobody can tell."""
    return read_unacknowledged(_tcp_info(transport))


def read_unacknowledged(info: bytes) -> Unacknowledged | None:
    """As `unacknowledged`, from the bytes of a `struct tcp_info`."""
    if len(info) < _SINCE_ACKNOWLEDGED.stop or not info[_RESENT_TIMES]:
        return None
    if not int.from_bytes(info[_UNACKNOWLEDGED], sys.byteorder):
        return None
    silent_ms = int.from_bytes(info[_SINCE_ACKNOWLEDGED], sys.byteorder)
    resent_ms = int.from_bytes(info[_SINCE_SENT], sys.byteorder)
    return Unacknowledged(silent_ms / 1000, resent_ms / 1000)


def peer_end(transport: asyncio.Transport) -> PeerEnd | None:
    """How a peer has ended what it sends, which nothing else tells whoever does not read.

    None where it has not, where its kernel could not say so yet, and where nobody can tell.
    """
    return read_peer_end(_tcp_info(transport))


def read_peer_end(info: bytes) -> PeerEnd | None:
    """As `peer_end`, from the bytes of a `struct tcp_info`."""
    return _ENDS.get(info[_STATE]) if info else None


def reset_on_close(transport: asyncio.Transport) -> None:
    """Make closing a reset, so that the peer cannot take it for the end of the data."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def read_rest(transport: asyncio.Transport, limit: int) -> bytes:
    """What a peer sent before it closed, when writing to it has failed first.

    A server that does not want the rest of an upload answers and closes; the kernel keeps the
    answer although the connection was reset. To be called in `connection_lost`.

    Args:
        transport: its socket is still open there.
        limit: bytes to read at most, give or take one read.
    """
    fd = _fd_of(transport)
    if fd < 0 or transport.get_extra_info("sslcontext") is not None:
        return b""
    parts: list[bytes] = []
    while limit > 0:
        try:
            part = os.read(fd, _READ_BYTES)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def _tcp_info(transport: asyncio.Transport) -> bytes:
    """A `struct tcp_info`; empty where there is none."""
    sock = transport.get_extra_info("socket")
    if sys.platform != "linux" or sock is None or sock.family == socket.AF_UNIX:
        return b""
    try:
        return bytes(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED.stop))
    except OSError:
        return b""


def _fd_of(transport: asyncio.Transport) -> int:
    sock = transport.get_extra_info("socket")
    return -1 if sock is None else int(sock.fileno())
