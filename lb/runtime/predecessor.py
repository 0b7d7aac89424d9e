"""The process that started this one to take over from it, as seen from here.

They talk over a pair of sockets, one JSON object per line. The first line comes with the listening
sockets: `lb.runtime.next_process` sends it. `lb.runtime.upgrade` says what follows.

Nothing of the data plane is imported here: a mistake in the settings is told without it.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, NamedTuple

VARIABLE: Final = "TRITON_LB_UPGRADE_FD"
"""Environment variable with the number of the descriptor."""
MOST_SOCKETS: Final = 64
MOST_UNSENT: Final = 64 << 20
"""Bytes of news that the other process has not read: beyond that it does not read at all."""
_MOST_BYTES: Final = 64 * 1024
_GREETING_S: Final = 10.0


class Inherited(NamedTuple):
    """A listening socket that somebody else bound."""

    name: str
    """Of its listener, or whatever who bound it calls it; may be empty."""
    wanted: str
    """The address that was asked for; empty where nobody says."""
    socket: socket.socket
    is_ours: bool
    """Whether the file of a Unix socket goes when we close it."""


class Predecessor:
    """The process before this one."""

    def __init__(self, channel: socket.socket) -> None:
        """Hear what it has to say first.

        Raises:
            OSError: it has gone, or says nothing.
            ValueError: it says something else.
        """
        self.channel = channel
        channel.settimeout(_GREETING_S)
        text, fds = receive_line(channel)
        sockets = [socket.socket(fileno=fd) for fd in fds]
        greeting = json.loads(text)
        listeners = greeting["listeners"]
        self.has_workers = bool(greeting.get("has_workers"))
        """It is the supervisor of a service with workers."""
        if self.has_workers:  # what operators have said may be too long for the first line
            greeting |= json.loads(receive_line(channel)[0])
        self.operator: Mapping[str, Any] = greeting.get("operator", {})
        """What operators had said when it greeted. Without workers, where that was short enough."""
        self.inherited = tuple(
            Inherited(each["name"], each["wanted"], sock, each["is_ours"])
            for each, sock in zip(listeners, sockets, strict=True)
        )

    def tell(self, event: str, value: Any = True) -> None:
        """Tell it how far we are; nobody may be there any more."""
        try:
            self.channel.sendall(line(event, value))
        except OSError:
            return


def receive_line(channel: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one message, and the descriptors that come with it. What follows it stays in the
    socket, for whoever reads there next.

    Raises:
        OSError: the other process has gone, or says nothing.
    """
    parts, found = [b""], list[int]()
    while not parts[-1].endswith(b"\n"):
        ahead = channel.recv(_MOST_BYTES, socket.MSG_PEEK)
        if not ahead:
            raise ConnectionError("the process that started this one has gone")
        size = ahead.find(b"\n") + 1 or len(ahead)
        part, fds, _, _ = socket.recv_fds(channel, size, MOST_SOCKETS)
        parts.append(part)
        found += fds
    return b"".join(parts), found


def line(event: str, value: Any = True) -> bytes:
    """One message."""
    return json.dumps({event: value}).encode() + b"\n"


def unsent(writer: asyncio.StreamWriter) -> int:
    """Bytes of news that wait; those for a process that has gone count as endless."""
    if writer.is_closing():
        return MOST_UNSENT
    return writer.transport.get_write_buffer_size()


def find_predecessor(environment: MutableMapping[str, str]) -> Predecessor | None:
    """The process that started this one to take over; None where nobody did.

    Args:
        environment: of the process; the variable is taken out, so that nobody else finds it.

    Raises:
        OSError, ValueError: see `Predecessor`.
    """
    text = environment.pop(VARIABLE, "")
    if not text:
        return None
    channel = socket.socket(fileno=int(text))
    try:
        return Predecessor(channel)
    except BaseException:
        channel.close()
        raise


def sockets_of_systemd(environment: MutableMapping[str, str]) -> tuple[Inherited, ...]:
    """The sockets that the service manager has bound for us (sd_listen_fds(3)).

    Args:
        environment: of the process; the variables are taken out, since they are for this process.

    Raises:
        OSError: `LISTEN_FDS` counts a descriptor that is no open socket.
    """
    pid = environment.pop("LISTEN_PID", "")
    count = environment.pop("LISTEN_FDS", "0")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdecimal():
        return ()
    found = []
    for index in range(int(count)):
        fd = _FIRST_FD + index
        try:
            os.set_inheritable(fd, False)
            sock = socket.socket(fileno=fd)
        except OSError as error:
            raise OSError(f"LISTEN_FDS={count}: descriptor {fd}: {error}") from error
        sock.setblocking(False)
        name = names[index] if index < len(names) else ""
        found.append(Inherited(name, "", sock, is_ours=False))
    return tuple(found)


_FIRST_FD: Final = 3
