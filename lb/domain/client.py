"""Who a client is: what logs, network rules, limits and backends are told of a connection."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network
ClientKey = IPv4Address | int | None
"""Whom limits count as one client; see `key_of_client`."""


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

_MAX_HOPS: Final = 32
"""Addresses of `X-Forwarded-For` that are read at most, from the right: more than proxies stand in
a row anywhere. Each takes five microseconds."""
_KNOWN_NAMES: Final = 4096
"""Clients that come back: to read an address takes longer than to look it up."""
_LONGEST_ADDRESS: Final = 64
"""Characters of an IPv6 address with brackets, interface and port."""


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


def key_of_client(address: IpAddress | None) -> ClientKey:
    """Whom limits count as one client.

    An IPv6 client is its first 64 bits: within those it has as many addresses as it likes. None
    stands for all clients of Unix sockets, which have no address.
    """
    return int(address) >> 64 if isinstance(address, IPv6Address) else address


@lru_cache(_KNOWN_NAMES)
def address_of_name(name: str) -> IpAddress | None:
    """The address in what logs call a client; None where there is none in it."""
    return _forwarded_ip(name.encode())


def is_within(address: IpAddress, networks: Iterable[IpNetwork]) -> bool:
    """Whether one of the networks holds the address."""
    return any(address in network for network in networks)


def host_name(address: IpAddress) -> str:
    """An address as it stands before a port."""
    return f"[{address}]" if address.version == 6 else str(address)


def request_client(
    client: Client, forwarded_for: Iterable[bytes], trusted: TrustedProxies
) -> IpAddress | None:
    """The address that a request comes from, for rules and limits.

    Load balancers append the address that they saw to `X-Forwarded-For`. From right to left, the
    first that is not one of the trusted proxies is the client: what stands left of it, it may
    have made up.

    Args:
        client: of the connection.
        forwarded_for: the values of all X-Forwarded-For fields, in the order of the request.
        trusted: load balancers whose word about their clients is taken.

    Returns:
        Where the connection is not a trusted proxy's, or the field has nothing to say, the
        connection's address. A word that is no address ends the search, as does the 32nd: what is
        known up to there counts. None for the client of a Unix socket.
    """
    found = client.address
    if not client.is_trusted_proxy:
        return found
    words = b",".join(forwarded_for).rsplit(b",", _MAX_HOPS)
    for word in reversed(words[-_MAX_HOPS:]):
        address = _forwarded_ip(word.strip(b" \t"))
        if address is None:
            break
        found = address
        if not trusted.include(address):
            break
    return found


def _forwarded_ip(word: bytes) -> IpAddress | None:
    """An address, which some proxies write with its port: `192.0.2.1:80`, `[2001:db8::1]:80`."""
    if len(word) > _LONGEST_ADDRESS or not word.isascii():
        return None
    text = word.decode()
    if text.startswith("["):
        return ip_of(text[1:].partition("]")[0])
    return ip_of(text.partition(":")[0] if text.count(":") == 1 else text)
