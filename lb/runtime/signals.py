"""How the process and whoever started it talk: signals, readiness (sd_notify(3)), the PID file.

By default SIGHUP, SIGUSR1 and SIGUSR2 end a process. `serve` holds them from its very beginning
until it has handlers for them, and then gets each one that has come, once. SIGTERM and SIGINT are
not held: a start that waits for a file must end.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping
from typing import Final

from lb.domain.errors import LoadBalancerError
from lb.net.files import read_text, replace_text

_HELD: Final = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def hold_signals() -> None:
    """Have them wait. To be called before the first thread is started, which inherits this."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release_signals() -> None:
    """Act on those that came, and on others at once. To be called in the main thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


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


class PidFileError(LoadBalancerError):
    """The file cannot be written; the message says which and why."""


def write_pid(path: str, pid: int) -> None:
    """Say that it is the process with this id, at once for whoever reads it.

    Raises:
        PidFileError: it cannot be written.
    """
    try:
        replace_text(path, f"{pid}\n")
    except OSError as error:
        raise PidFileError(f"cannot write the PID file {path}: {error.strerror}") from error


def remove_pid(path: str) -> None:
    """Remove the file, unless another process has taken over."""
    try:
        if read_text(path).strip() == str(os.getpid()):
            os.unlink(path)
    except (OSError, UnicodeDecodeError):
        return
