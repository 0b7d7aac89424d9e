"""Who a client is: what logs, network rules, limits and backends are told of a connection."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Client:
    """The client of one connection; made once, when the connection is accepted."""

    name: str
    """For logs: `192.0.2.1:5678`, `[2001:db8::1]:5678`, `unix`, or `unknown` where the connection
    was gone before it could be asked."""
    address: IpAddress | None
    """Of the real client, which a PROXY header may have told; None for Unix sockets."""
    peer: IpAddress | None
    """Of the other end of the TCP connection; None for Unix sockets."""
    is_local: bool
    """Both ends of the connection are on loopback, or it is a Unix socket, and no PROXY header
    said that the client is elsewhere."""
    is_encrypted: bool
    is_trusted_proxy: bool
    """What it says of its own clients in `X-Forwarded-For` may be believed."""


NOBODY: Final = Client("unknown", None, None, False, False, False)
"""Before there is a connection."""


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """Load balancers in front of us, whose word about their clients is taken."""

    networks: tuple[IpNetwork, ...] = ()
    unix: bool = False
    """Whoever may open a Unix socket of ours is one of them."""

    def __bool__(self) -> bool:
        return bool(self.networks) or self.unix

    def include(self, address: IpAddress | None, *, is_unix: bool = False) -> bool:
        """Whether the other end of a connection is one."""
        if address is None:
            return self.unix and is_unix
        return is_within(address, self.networks)


NO_PROXIES: Final = TrustedProxies()


def ip_of(text: str) -> IpAddress | None:
    """Read an IP address; None when it is none.

    An IPv4 address in IPv6 clothes is that IPv4 address, since that is how rules are written; an
    interface after `%` is left out.
    """
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_within(address: IpAddress, networks: Iterable[IpNetwork]) -> bool:
    """Whether one of the networks holds the address."""
    return any(address in network for network in networks)


def peer_name(address: IpAddress, port: int) -> str:
    """An address and port as logs show them."""
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
