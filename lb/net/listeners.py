"""Listening sockets: bound before anything is served, so that a busy port stops the start."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Sequence
from typing import Final

from lb.domain.backend import Address
from lb.domain.client import ip_of
from lb.domain.errors import LoadBalancerError

BACKLOG: Final = 4096
"""Connections that wait for accept; the kernel caps it at `net.core.somaxconn`."""
_UNSENT_BYTES: Final = 128 * 1024
"""What the kernel takes of an answer beyond what is on its way to the client. Without a limit it
takes megabytes for each slow reader, which nobody counts and no pause upstream can prevent."""


class ListenError(LoadBalancerError):
    """A listener's address cannot be used; the message says which and why."""


class ListenErrors(ListenError):
    """Some addresses cannot be used; the message has a line for each."""

    def __init__(self, errors: Sequence[ListenError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(map(str, errors)))


def bind(name: str, address: Address, *, shared: bool = False) -> socket.socket:
    """Bind and listen.

    Args:
        name: of the listener, for the message.
        address: port 0 takes a free one.
        shared: other processes may listen at the same port.

    Raises:
        ListenError: busy, not allowed, or not an address of this machine.
    """
    try:
        return _bind_unix(address.path) if address.path else _bind_tcp(address, shared)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ListenError(f"cannot listen on {address} ({name}): {reason}") from error


def _bind_tcp(address: Address, shared: bool) -> socket.socket:
    family, kind, protocol, _, target = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # `[::]` is every interface of both families, as with Triton.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        prepare_inherited(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
        listener.bind(target)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def prepare_inherited(listener: socket.socket) -> None:
    """Have a listening socket as we need it, whoever made it."""
    if listener.family != socket.AF_UNIX and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        # Accepted sockets inherit it.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    listener.setblocking(False)


def _bind_unix(path: str) -> socket.socket:
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _remove_stale(path: str) -> None:
    """Remove a socket that nobody listens on any more: what a killed process leaves behind."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def bound_address(listener: socket.socket, wanted: Address) -> Address:
    """The address with the port that the kernel chose."""
    if wanted.path:
        return wanted
    return Address(host=wanted.host, port=listener.getsockname()[1])


def listening_address(listener: socket.socket, wanted: Address | None = None) -> Address:
    """Where a socket listens; under the host name that was `wanted`, if it was a name."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return Address(path=name if isinstance(name, str) else "")
    if wanted is not None and wanted.host and ip_of(wanted.host) is None:
        return Address(host=wanted.host, port=name[1])
    return Address(host=name[0], port=name[1])
