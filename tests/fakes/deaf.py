"""A peer whose kernel drops what comes over one connection, as a firewall does that forgot it."""

from __future__ import annotations

import ctypes
import socket
import struct

_SO_ATTACH_FILTER = 26
_RETURN_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A program of the classic packet filter: keep 0 bytes of each packet."""


def make_deaf(sock: socket.socket) -> None:
    """Have the kernel drop every packet for a connected socket from now on, acknowledgements and
    the end of the connection included. Linux; needs no privilege."""
    program = ctypes.create_string_buffer(_RETURN_NOTHING)
    address = ctypes.addressof(program)
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, address))
