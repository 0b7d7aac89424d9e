"""The client behind load balancers that we trust, by what they say in `X-Forwarded-For`."""

from __future__ import annotations

import re
from typing import Final

from lb.domain.client import Client, IpAddress, TrustedProxies, ip_of

FORWARDED_FOR: Final = b"x-forwarded-for"
_MAX_HOPS: Final = 32
_WITH_PORT: Final = re.compile(r"\[([^\]]*)\](?::[0-9]+)?|([0-9.]+):[0-9]+")


def real_address(client: Client, forwarded_for: bytes, proxies: TrustedProxies) -> IpAddress | None:
    """The address of the client that a request comes from; None when it is not known.

    Each proxy adds at the end whom it was asked by, so the list is read from there, for as long as
    it names proxies that we trust: what stands before may be anybody's invention.
    """
    address = client.address
    if not client.is_trusted_proxy:
        return address
    for hop in reversed(forwarded_for.split(b",")[-_MAX_HOPS:]):
        told = _read_hop(hop.decode("latin-1").strip(" \t"))
        if told is None:
            break
        address = told
        if not proxies.include(told):
            break
    return address


def _read_hop(text: str) -> IpAddress | None:
    match = _WITH_PORT.fullmatch(text)
    return ip_of((match[1] or match[2] or "") if match is not None else text)


def address_key(address: IpAddress | None) -> bytes:
    """What tells clients apart by address: of IPv6 the first 64 bits, which are one customer's
    network as a rule; clients of Unix sockets are one."""
    if address is None:
        return b""
    return address.packed if address.version == 4 else address.packed[:8]
