"""Addresses of this machine to listen at."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from random import SystemRandom
from typing import Final

HOST: Final = "127.0.0.1"
_ANY: Final = range(10_000, 20_000)
"""Where any port will do it is one of these. Linux gives those from 32,768 on to connections
(`net.ipv4.ip_local_port_range`), so that one may be taken again before somebody listens at it."""
_TRIES: Final = 100
_RNG: Final = SystemRandom()


def free_addresses(ports: Sequence[int]) -> list[str]:
    """Return HOST:PORT of ports that were free just now, all different.

    Args:
        ports: that are wanted; 0 is any.

    Raises:
        OSError: one is taken, or none is free.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in ports]
        for each, port in zip(sockets, ports, strict=True):
            if port:
                # A server that ended may have left connections in TIME_WAIT.
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                each.bind((HOST, port))
            else:
                # Not with SO_REUSEADDR, which lets two sockets have a port until one listens.
                _bind_any(each)
        return [f"{HOST}:{each.getsockname()[1]}" for each in sockets]


def _bind_any(sock: socket.socket) -> None:
    for left in reversed(range(_TRIES)):
        try:
            sock.bind((HOST, _RNG.choice(_ANY)))
        except OSError:
            if not left:
                raise
        else:
            return
