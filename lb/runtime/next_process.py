"""Starting the process that is to take over from this one, with our listening sockets.

`lb.runtime.predecessor` has what that process hears first. Nothing of the data plane is imported
here.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lb.net.threads import in_thread
from lb.runtime.predecessor import VARIABLE
from lb.runtime.sockets import Listeners

READY_S: Final = 60.0
"""How long the next process may take until it is ready: sources of backends and their first probes
take some seconds."""
STOP_S: Final = 5.0
"""How long one that is not wanted may take to end, beside what requests may take."""
_INIT: Final = 1


def obstacle() -> str:
    """Why no process can take over from this one; empty where one can."""
    if os.getpid() != _INIT:
        return ""
    return (
        "this process is the first of its container, which ends with it: replace the "
        "container, or run the process below an init such as tini"
    )


async def start_process(
    command: Sequence[str], listeners: Listeners, words: Mapping[str, Any]
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the next process. Returns it, and our end of the conversation with it.

    Args:
        command: that starts it.
        listeners: whose sockets it gets.
        words: what it is told with them. Nobody reads that yet, so it must fit the buffer of the
            socket.

    Raises:
        OSError: it cannot be started. The text is for people.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            _greet(ours, listeners, words)  # first: should we crash, it has the sockets and goes on
            process = await in_thread(
                subprocess.Popen,
                command,
                env={**os.environ, VARIABLE: str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
    except OSError as error:
        ours.close()
        raise OSError(f"cannot start {command[0]}: {error}") from error
    return process, ours


def _greet(ours: socket.socket, listeners: Listeners, words: Mapping[str, Any]) -> None:
    bound = listeners.bound.values()
    rows = [
        {"name": each.name, "wanted": str(each.wanted), "is_ours": each.is_ours} for each in bound
    ]
    text = json.dumps({"listeners": rows, **words}).encode() + b"\n"
    ours.setblocking(False)
    sent = socket.send_fds(ours, [text], [each.socket.fileno() for each in bound])
    if sent < len(text):
        raise OSError(f"only {sent} of {len(text)} bytes fit the buffer of its socket")
