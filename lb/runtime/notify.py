"""Telling the service manager how far we are (sd_notify(3))."""

from __future__ import annotations

import socket
import time
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


def ready(environment: Mapping[str, str], main_pid: int = 0) -> None:
    """Say that we serve, after the start and after each reload.

    Args:
        environment: of the process.
        main_pid: of the process that is the service from now on, where that is another one.
    """
    notify(f"MAINPID={main_pid}\nREADY=1" if main_pid else "READY=1", environment)


def reloading(environment: Mapping[str, str]) -> None:
    """Say that the configuration, or the whole process, is being replaced; `ready` follows. The
    time is for `Type=notify-reload`."""
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}", environment)
