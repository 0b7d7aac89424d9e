"""What tells clients apart by their address."""

from __future__ import annotations

from lb.domain.client import IpAddress


def address_key(address: IpAddress | None) -> bytes:
    """What tells clients apart by address: of IPv6 the first 64 bits, which are one customer's
    network as a rule; clients of Unix sockets are one."""
    if address is None:
        return b""
    return address.packed if address.version == 4 else address.packed[:8]
