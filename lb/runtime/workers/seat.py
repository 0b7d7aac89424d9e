"""What the supervisor gives a process that it starts: its role, settings, sockets, and a channel.

A process finds the number of its channel's descriptor in an environment variable. Two lines of JSON
come over it first: one with the descriptors, and one with the rest. What follows is a JSON object a
line, both ways: `SupervisorChannel` has this end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from lb.runtime.predecessor import Inherited, line, receive_line
from lb.runtime.workers.parent import VARIABLE
from lb.settings.model import Settings

_log = logging.getLogger(__name__)

CONTROL: Final = "control"
WORKER: Final = "worker"
BEFORE: Final = "before"
"""The service that this one takes over from."""
NEXT: Final = "next"
"""The service that takes over from this one."""
SEQUENCE_MESSAGES: Final = frozenset({"sequences", "sequences_asked", "sequences_answered"})
"""What the control processes of two services tell each other (`lb.runtime.sequence_news`).
Supervisors pass it on."""
_GREETING_S: Final = 30.0
LINE_BYTES: Final = 16 << 20
"""The longest message: settings, or what operators have said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One process of a service with workers."""

    role: str
    """`CONTROL` or `WORKER`."""
    index: int
    """Of a worker, from 0; -1 for the control process."""
    count: int
    """Workers of the service."""
    start: int
    """How often a process with this role and index was started, from 1."""
    settings: Settings
    """Those in force."""
    digest: str
    """Of their text."""
    identity: bytes
    """Of the service, in hop markers."""
    hub: str
    """Name of the abstract Unix socket at which workers find the control process."""
    token: str
    """Shows the control process that a connection comes from a worker."""
    operator: Mapping[str, Any]
    """What operators have said to control processes before this one."""
    is_next: bool
    """Another service serves until this one does. What operators say is said to that one."""
    gave_way: bool
    """The next service serves: this one only answers what it has."""
    counts: list[list[Any]]
    """What workers have counted that have ended: see `Sums.export_absent`. Workers have none."""
    listeners: tuple[Inherited, ...]
    hub_socket: socket.socket | None
    """Listens at `hub`; only the control process has it."""
    board: int
    """Descriptor of the memory that the processes of the service share; -1: there is none."""
    channel: socket.socket
    """Leads to the supervisor."""

    @property
    def name(self) -> str:
        """What the log calls the process."""
        return self.role if self.role == CONTROL else f"{self.role}-{self.index}"


def for_worker(settings: Settings) -> Settings:
    """The settings without what only the control process listens at."""
    listen = settings.listen.model_copy(update={"metrics": None, "admin": None})
    return settings.model_copy(update={"listen": listen})


def find_seat(environment: MutableMapping[str, str]) -> Seat | None:
    """The seat of this process; None where no supervisor started it.

    Args:
        environment: of the process; the variable is taken out, so that nobody else finds it.

    Raises:
        OSError: the supervisor has gone, or says nothing.
        ValueError: it says something else.
    """
    text = environment.pop(VARIABLE, "")
    if not text:
        return None
    channel = socket.socket(fileno=int(text))
    channel.settimeout(_GREETING_S)
    first, fds = receive_line(channel)
    for fd in fds:
        os.set_inheritable(fd, False)
    sent = json.loads(first)
    greeting = json.loads(receive_line(channel)[0])
    free = iter(fds)
    listeners = tuple(
        Inherited(each["name"], each["wanted"], socket.socket(fileno=next(free)), is_ours=False)
        for each in sent["listeners"]
    )
    return Seat(
        role=greeting["role"],
        index=greeting["index"],
        count=greeting["count"],
        start=greeting["start"],
        settings=Settings.model_validate(greeting["settings"]),
        digest=greeting["digest"],
        identity=greeting["identity"].encode(),
        hub=greeting["hub"],
        token=greeting["token"],
        operator=greeting["operator"],
        is_next=greeting["is_next"],
        gave_way=greeting["gave_way"],
        counts=greeting["counts"],
        listeners=listeners,
        hub_socket=socket.socket(fileno=next(free)) if sent["hub"] else None,
        board=next(free),
        channel=channel,
    )


class SupervisorChannel:
    """A child's end of the channel to its supervisor."""

    def __init__(self, seat: Seat) -> None:
        self._socket = seat.channel
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, hear: Callable[[str, Any], None], gone: Callable[[], None]) -> None:
        """Act on what the supervisor says until it has gone.

        Args:
            hear: told each event and its value.
            gone: called when the supervisor has ended.
        """
        self._socket.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(
            sock=self._socket, limit=LINE_BYTES
        )
        try:
            while (text := await reader.readline()).endswith(b"\n"):
                for event, value in json.loads(text).items():
                    hear(event, value)
        except OSError:
            pass  # it has gone
        gone()

    async def flush(self) -> None:
        """Wait until the supervisor has read most of what was said."""
        if self._writer is not None:
            try:
                await self._writer.drain()
            except OSError:
                return  # it has gone

    def say(self, event: str, value: Any = True) -> None:
        """Tell the supervisor something. Nobody may be there any more."""
        if self._writer is None or self._writer.is_closing():
            return
        text = line(event, value)
        if len(text) > LINE_BYTES:  # it would not be read
            _log.error("too long for the supervisor", extra={"what": event, "bytes": len(text)})
            return
        self._writer.write(text)
