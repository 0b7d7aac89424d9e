"""Starting the next service with our listening sockets, and giving way to it once it serves.

The next supervisor inherits the sockets as the next process does where there are no workers
(`lb.runtime.upgrade`), and starts processes of its own. Both services accept for a moment. Whatever
goes wrong before the next one serves leaves this one as it was.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lb.domain.errors import LoadBalancerError
from lb.net.tasks import TaskOwner
from lb.net.threads import in_thread
from lb.runtime.child_end import end_within
from lb.runtime.predecessor import VARIABLE, line
from lb.runtime.sockets import Listeners

_log = logging.getLogger(__name__)

_INIT: Final = 1
_READY_S: Final = 60.0
"""How long the next service may take until it serves."""
_STOP_S: Final = 5.0
"""How long one that is not wanted may take to end, before it is killed."""
_STOPPED: Final = "this service shuts down"


class NotReplaced(LoadBalancerError):
    """The next service does not serve; this one goes on. The message says why."""


async def start_next(
    command: Sequence[str],
    listeners: Listeners,
    operator: Mapping[str, Any],
    stop: asyncio.Event,
) -> int:
    """Start the next service and wait until it serves. Returns the id of its supervisor.

    Args:
        command: that starts it.
        listeners: whose sockets it gets.
        operator: what operators have said.
        stop: this service was told to stop, and so the next one is to end.

    Raises:
        NotReplaced: it does not serve.
    """
    if os.getpid() == _INIT:
        raise NotReplaced(
            "this process is the first of its container, which ends with it: replace the "
            "container, or run the process below an init such as tini"
        )
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            _greet(ours, listeners, operator)
            process = await in_thread(
                subprocess.Popen,
                command,
                env={**os.environ, VARIABLE: str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
    except OSError as error:
        ours.close()
        raise NotReplaced(f"cannot start {command[0]}: {error}") from error
    _log.info("next service started", extra={"pid": process.pid})
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    try:
        why = await _until_ready(reader, stop)
        if not why:
            writer.write(line("handed_over"))
            await writer.drain()
            return process.pid
    except OSError as error:
        why = str(error)
    except asyncio.CancelledError:  # this service shuts down, and so does the next one
        process.terminate()
        raise
    finally:
        writer.close()
    process.terminate()
    await end_within(process, _STOP_S)
    raise NotReplaced(why)


def _greet(ours: socket.socket, listeners: Listeners, operator: Mapping[str, Any]) -> None:
    bound = list(listeners.bound.values())
    greeting = {
        "listeners": [
            {"name": each.name, "wanted": str(each.wanted), "is_ours": each.is_ours}
            for each in bound
        ],
        "operator": operator,
        "has_workers": True,
    }
    fds = [each.socket.fileno() for each in bound]
    socket.send_fds(ours, [json.dumps(greeting).encode() + b"\n"], fds)


async def _until_ready(reader: asyncio.StreamReader, stop: asyncio.Event) -> str:
    """Hear the next service until it serves, or this one is told to stop. Returns why it is not to
    take over."""
    tasks = TaskOwner()
    try:
        async with asyncio.timeout(_READY_S) as limit:
            tasks.spawn(_expire(limit, stop), name="stop during an upgrade")
            while (text := await reader.readline()).endswith(b"\n"):
                for event, value in json.loads(text).items():
                    if event == "ready":
                        return _STOPPED if stop.is_set() else ""
                    if event == "failed":
                        return str(value)
    except TimeoutError:
        if stop.is_set():
            return _STOPPED
        return f"the next service does not serve after {_READY_S:g} s"
    except (OSError, ValueError) as error:
        return f"the next service is not understood: {error}"
    finally:
        await tasks.aclose()
    return "the next service has ended: its lines above say why"


async def _expire(limit: asyncio.Timeout, stop: asyncio.Event) -> None:
    await stop.wait()
    limit.reschedule(0.0)
