"""Which inherited socket is whose: those that a service manager or an earlier process has bound."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable

from lb.domain.backend import Address, parse_address
from lb.net.listeners import listening_address, prepare_inherited
from lb.runtime.endpoints import Bound, wanted_sockets
from lb.runtime.predecessor import Inherited
from lb.settings.model import Settings

_log = logging.getLogger(__name__)


def claim(inherited: Iterable[Inherited], settings: Settings) -> tuple[Bound, ...]:
    """Give the sockets to the listeners that they are for; those of nobody are closed.

    A socket whose name is that of a listener is that listener's, whatever address the settings
    give it, if a service manager bound it; the process before us says which address was asked for.
    Others go by their address. Files of Unix sockets are not ours yet: see `Doors.own`.
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
