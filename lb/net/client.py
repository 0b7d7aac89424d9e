"""Who is at the other end of a connection that we accepted."""

from __future__ import annotations

import asyncio
import socket
from functools import lru_cache
from typing import Final

from lb.domain.client import (
    NO_PROXIES,
    NOBODY,
    Client,
    IpAddress,
    TrustedProxies,
    host_name,
    ip_of,
)
from lb.wire.proxy_protocol import ProxyHeader

ANNOUNCED: Final = "announced"
"""Extra info of transports: the `ProxyHeader` that a connection began with."""

_UNIX: Final = "unix"
_KNOWN_ADDRESSES: Final = 4096
"""Clients come back, and reading an address takes longer than all the rest."""


def client_of(transport: asyncio.BaseTransport, trusted: TrustedProxies = NO_PROXIES) -> Client:
    """Ask a transport of an accepted connection, with TLS or without, for its client.

    Args:
        transport: as `connection_made` gets it.
        trusted: load balancers whose word about their clients is taken.
    """
    is_encrypted = transport.get_extra_info("sslcontext") is not None
    peer = transport.get_extra_info("peername")
    address, name, is_local = NOBODY.address, NOBODY.name, NOBODY.is_local
    is_unix = False
    if isinstance(peer, tuple):
        address, host, is_loopback = _known(str(peer[0]))
        name = f"{host}:{peer[1]}"
        # Mostly the first of these says no, and the socket need not be asked for its own end.
        is_local = is_loopback and _is_loopback(transport.get_extra_info("sockname"))
    elif _is_unix(transport):
        name, is_local, is_unix = _UNIX, True, True
    header = transport.get_extra_info(ANNOUNCED)
    if header is not None:
        return _announced(header, address, name, is_local, is_encrypted, trusted)
    is_trusted = bool(trusted) and trusted.include(address, is_unix=is_unix)
    return Client(name, address, address, is_local, is_encrypted, is_trusted)


def address_of(host: str) -> IpAddress | None:
    """Read the address of the other end of a connection, as the kernel writes it."""
    return _known(host)[0]


def _announced(
    header: ProxyHeader,
    peer: IpAddress | None,
    name: str,
    is_local: bool,
    is_encrypted: bool,
    trusted: TrustedProxies,
) -> Client:
    """The client that a load balancer in front of us speaks for."""
    if header.source is None:
        # It does not know, or has it from a socket of its own machine: no reason to trust it.
        return Client(name, peer, peer, False, is_encrypted, False)
    text, port = header.source
    address, host, is_loopback = _known(str(text))
    return Client(
        f"{host}:{port}",
        address,
        peer,
        is_local and is_loopback,
        is_encrypted,
        trusted.include(address),
    )


@lru_cache(_KNOWN_ADDRESSES)
def _known(text: str) -> tuple[IpAddress | None, str, bool]:
    """An address, how it is written before a port, and whether it is on loopback."""
    address = ip_of(text)
    if address is None:
        return None, NOBODY.name, False
    return address, host_name(address), address.is_loopback


def _is_loopback(name: object) -> bool:
    return isinstance(name, tuple) and _known(str(name[0]))[2]


def _is_unix(transport: asyncio.BaseTransport) -> bool:
    sock = transport.get_extra_info("socket")
    return sock is not None and sock.family == socket.AF_UNIX
