"""The listening sockets that the settings ask for, bound here or inherited.

Two listeners at one address are one socket.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lb.domain.backend import Address, AppProtocol, parse_address
from lb.net.listeners import (
    ListenError,
    ListenErrors,
    bind,
    bound_address,
    listening_address,
    prepare_inherited,
)
from lb.runtime.predecessor import Inherited
from lb.settings.listening import ListenerTlsSettings, RelayListenerSettings, overlap
from lb.settings.model import Settings

_log = logging.getLogger(__name__)

OWN: Final = ("metrics", "admin")
"""Listeners that are not for clients' requests."""


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """One listening socket for requests."""

    name: str
    """Of its listener; of the HTTP one where it serves both."""
    names: tuple[str, ...]
    """Of all its listeners."""
    address: Address
    protocols: tuple[AppProtocol, ...]
    tls: ListenerTlsSettings | None
    proxy_protocol: bool = False
    """Connections of trusted proxies begin with a PROXY header."""
    max_connection_age_s: float = 0.0
    """Seconds after which clients are asked to connect anew; 0 is never."""


def endpoints(settings: Settings) -> tuple[ListeningSocket, ...]:
    """Where requests are accepted."""
    listen = settings.listen
    return (
        *_pair("http", listen.http, "grpc", listen.grpc),
        *_pair("https", listen.https, "grpcs", listen.grpcs),
        *(
            ListeningSocket(name, (name,), address, (AppProtocol.HTTP,), None)
            for name, address in settings.fronts.addresses.items()
        ),
    )


def _pair(
    http_name: str,
    http: RelayListenerSettings | None,
    grpc_name: str,
    grpc: RelayListenerSettings | None,
) -> tuple[ListeningSocket, ...]:
    if http is not None and grpc is not None and http.address == grpc.address:
        names = (http_name, grpc_name)
        is_proxied = http.proxy_protocol or grpc.proxy_protocol
        tls = http.tls or grpc.tls
        age_s = http.max_connection_age or grpc.max_connection_age
        both = tuple(AppProtocol)
        return (ListeningSocket(http_name, names, http.address, both, tls, is_proxied, age_s),)
    return tuple(
        ListeningSocket(
            name,
            (name,),
            listener.address,
            (protocol,),
            listener.tls,
            listener.proxy_protocol,
            listener.max_connection_age,
        )
        for name, listener, protocol in (
            (http_name, http, AppProtocol.HTTP),
            (grpc_name, grpc, AppProtocol.GRPC),
        )
        if listener is not None
    )


@dataclass(slots=True, eq=False)
class Bound:
    """A listening socket."""

    name: str
    """Of its listener; of the first one where it serves two."""
    wanted: Address
    """As the settings have it."""
    address: Address
    """With the port that the kernel chose."""
    socket: socket.socket
    is_ours: bool = True
    """Whether the file of a Unix socket goes with it; else somebody else listens there, too."""
    is_closed: bool = False

    def close(self) -> None:
        """Close it; a Unix socket's file goes too. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        self.socket.close()
        path = self.address.path
        if path and self.is_ours and os.path.exists(path):
            os.unlink(path)


def wanted_sockets(settings: Settings) -> dict[str, Address]:
    """Where the settings want sockets, by name: those of endpoints, `metrics` and `admin`."""
    wanted = {endpoint.name: endpoint.address for endpoint in endpoints(settings)}
    for name in OWN:
        listener = getattr(settings.listen, name)
        if listener is not None:
            wanted[name] = listener.address
    return wanted


class Listeners:
    """The listening sockets that some settings ask for."""

    def __init__(self, settings: Settings, known: Iterable[Bound] = ()) -> None:
        """Bind what is not known. Known sockets are taken over, and never closed here.

        Args:
            settings: say where to listen.
            known: sockets that are open already. Sockets with a name of a listener and no port in
                what was wanted (0) serve that listener only; others whoever wants their address.

        Raises:
            ListenErrors: some cannot be bound; none that was bound here stays open.
        """
        self.endpoints = endpoints(settings)
        self.bound: dict[str, Bound] = {}
        """By name: those of endpoints, `metrics` and `admin`."""
        self.fresh: list[Bound] = []
        """Those of them that were not known."""
        open_already = tuple(known)
        free = list(open_already)
        problems = []
        for name, address in wanted_sockets(settings).items():
            found = _find(free, name, address)
            if found is not None:
                free.remove(found)
                self.bound[name] = found
                continue
            try:
                listener = bind(
                    name, address, shared=settings.listen.reuse_port and name not in OWN
                )
            except ListenError as error:
                problems.append(_explained(error, address, open_already))
                continue
            fresh = Bound(name, address, bound_address(listener, address), listener)
            self.bound[name] = fresh
            self.fresh.append(fresh)
        if problems:
            self.discard()
            raise ListenErrors(problems)

    @property
    def addresses(self) -> dict[str, Address]:
        """By listener, two at one address included."""
        found = {name: bound.address for name, bound in self.bound.items()}
        for endpoint in self.endpoints:
            found.update(dict.fromkeys(endpoint.names, found[endpoint.name]))
        return found

    def discard(self) -> None:
        """Close what was bound here: it is not wanted after all."""
        for bound in self.fresh:
            bound.close()
        self.fresh.clear()

    def close(self) -> None:
        """Close all; the files of Unix sockets go too."""
        for bound in self.bound.values():
            bound.close()


def _explained(error: ListenError, address: Address, known: Iterable[Bound]) -> ListenError:
    """An error of binding, which tells if a socket of this process is in the way."""
    for bound in known:
        if overlap(bound.address, address):
            ours = f"{bound.address} ({bound.name})"
            return ListenError(f"{error}: this process has {ours}; restart it, or use another port")
    return error


def _find(free: Iterable[Bound], name: str, address: Address) -> Bound | None:
    for bound in sorted(free, key=lambda each: each.name != name):
        if bound.wanted == address and (address.path or address.port or bound.name == name):
            return bound
    return None


def claim(inherited: Iterable[Inherited], settings: Settings) -> tuple[Bound, ...]:
    """Give the sockets to the listeners that they are for; those of nobody are closed.

    A socket whose name is that of a listener is that listener's, whatever address the settings
    give it, if a service manager bound it; the process before us says which address was asked for.
    Others go by their address. Files of Unix sockets are not ours yet: see `ListenerSet.own`.
    """
    wanted = wanted_sockets(settings)
    found = []
    for each in inherited:
        name = _owner(each, wanted)
        if name is None:
            address = listening_address(each.socket)
            _log.warning(
                "inherited socket is for no listener",
                extra={"listener": each.name, "address": str(address)},
            )
            each.socket.close()
            continue
        prepare_inherited(each.socket)
        address = listening_address(each.socket, wanted[name])
        found.append(Bound(name, wanted.pop(name), address, each.socket, is_ours=False))
    return tuple(found)


def _owner(inherited: Inherited, wanted: dict[str, Address]) -> str | None:
    if not _listens(inherited.socket):
        return None
    name = inherited.name
    if inherited.wanted:
        asked = parse_address(inherited.wanted)
        if wanted.get(name) == asked:
            return name
        has_address = bool(asked.path or asked.port)
        return next((each for each in wanted if wanted[each] == asked and has_address), None)
    if name in wanted:
        return name
    address = listening_address(inherited.socket)
    return next((each for each in wanted if wanted[each] == address), None)


def _listens(sock: socket.socket) -> bool:
    try:
        is_stream = sock.type == socket.SOCK_STREAM
        return is_stream and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False
