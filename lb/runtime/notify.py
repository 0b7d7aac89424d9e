"""Telling the service manager how far we are (sd_notify(3))."""

from __future__ import annotations

import socket
from collections.abc import Mapping


def notify(state: str, environment: Mapping[str, str]) -> None:
    """Send `state` (`READY=1`, `STOPPING=1`) to `NOTIFY_SOCKET`, if it is set.

    A service manager that does not listen must not keep us from working: errors are ignored.
    """
    target = environment.get("NOTIFY_SOCKET", "")
    if not target.startswith(("/", "@")):
        return
    # A leading @ stands for the NUL of the abstract name space.
    path = "\0" + target[1:] if target.startswith("@") else target
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as client:
        try:
            client.sendto(state.encode(), path)
        except OSError:
            return
