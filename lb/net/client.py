"""Who is at the other end of a connection that we accepted."""

from __future__ import annotations

import asyncio
import socket

from lb.domain.client import NO_PROXIES, Client, IpAddress, TrustedProxies, ip_of, peer_name

_UNIX = "unix"
_UNKNOWN = "unknown"


def client_of(transport: asyncio.BaseTransport, trusted: TrustedProxies = NO_PROXIES) -> Client:
    """Ask a transport of an accepted connection, with TLS or without.

    Args:
        transport: as `connection_made` gets it.
        trusted: load balancers whose word about their clients is taken.
    """
    is_encrypted = transport.get_extra_info("sslcontext") is not None
    name, address = _end(transport.get_extra_info("peername"))
    is_unix = address is None and _is_unix(transport)
    if is_unix:
        name = _UNIX
        is_local = True
    else:
        # Mostly the first of these says no, and the socket need not be asked for its own end.
        is_local = address is not None and address.is_loopback and _is_own_end_local(transport)
    is_trusted = bool(trusted) and trusted.include(address, is_unix=is_unix)
    return Client(name, address, address, is_local, is_encrypted, is_trusted)


def _end(name: object) -> tuple[str, IpAddress | None]:
    """The log's name and the address of one end of a connection."""
    if not isinstance(name, tuple) or len(name) < 2:
        return _UNKNOWN, None
    address = ip_of(str(name[0]))
    return (_UNKNOWN, None) if address is None else (peer_name(address, int(name[1])), address)


def _is_unix(transport: asyncio.BaseTransport) -> bool:
    sock = transport.get_extra_info("socket")
    return sock is not None and sock.family == socket.AF_UNIX


def _is_own_end_local(transport: asyncio.BaseTransport) -> bool:
    address = _end(transport.get_extra_info("sockname"))[1]
    return address is not None and address.is_loopback
