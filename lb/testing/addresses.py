"""Addresses of this machine to listen at."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

HOST: Final = "127.0.0.1"


def free_addresses(ports: Sequence[int]) -> list[str]:
    """Return HOST:PORT of ports that were free just now, all different.

    Args:
        ports: that are wanted; 0 is any.

    Raises:
        OSError: one is taken.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in ports]
        for each, port in zip(sockets, ports, strict=True):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind((HOST, port))
        return [f"{HOST}:{each.getsockname()[1]}" for each in sockets]
