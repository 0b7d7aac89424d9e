"""Backends that are one server under two names: allowed, but mostly a mistake."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, NamedTuple

from lb.domain.backend import Address
from lb.settings.backends import BackendSettings

_KNOWN: Final = 4096
"""Addresses whose usual spelling is remembered: those of 2,000 backends, which are compared
whenever one of them comes or goes."""


class SharedAddress(NamedTuple):
    """Two backends with an HTTP or gRPC port at the same address."""

    backend: str
    """Name of the later one."""
    other: str
    """Name of the first one."""

    def __str__(self) -> str:
        return (
            f"{self.other!r} and {self.backend!r} have the same address: "
            "that server gets the load of both; drop one"
        )


def shared_addresses(backends: Iterable[BackendSettings]) -> list[SharedAddress]:
    """Return every backend with an address that one before it has, too.

    Kind and TLS make no difference: the server is the same.
    """
    owners: dict[Address, str] = {}
    found: dict[SharedAddress, None] = {}  # in order, each once
    for backend in backends:
        name = backend.known_as
        for address in (backend.http, backend.grpc):
            if address is None:
                continue
            other = owners.setdefault(_plain(address), name)
            if other != name:
                found[SharedAddress(name, other)] = None
    return list(found)


@lru_cache(_KNOWN)
def _plain(address: Address) -> Address:
    """The address in one of its spellings."""
    if address.path:
        return address
    try:
        host = str(ip_address(address.host))
    except ValueError:
        host = address.host.lower().removesuffix(".")
    return Address(host, address.port)
