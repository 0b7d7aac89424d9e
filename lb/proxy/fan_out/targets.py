"""Whom a question concerns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lb.domain.backend import Address, Backend
from lb.domain.client import ip_of
from lb.domain.control import Reach
from lb.domain.operation import Operation

_REGISTER: Final = "SystemSharedMemoryRegister"


def concerned(roster: Sequence[Reach], operation: Operation) -> tuple[Reach, ...]:
    """The backends that a question is about, reachable or not.

    A region of shared memory is registered where its host is ours; it is taken away everywhere.
    """
    found = tuple(reach for reach in roster if reach.backend.spec.kind is operation.asks)
    return _sharing(found) if operation.name == _REGISTER else found


def _sharing(found: tuple[Reach, ...]) -> tuple[Reach, ...]:
    """Those that share memory with our clients.

    Where the configuration does not say so, that are those on this host; where none is, all:
    containers have addresses of their own and may share memory nevertheless.
    """
    here = [reach for reach in found if _shares_memory(reach.backend)]
    if here:
        return tuple(here)
    return tuple(reach for reach in found if reach.backend.spec.shared_memory is None)


def _shares_memory(backend: Backend) -> bool:
    spec = backend.spec
    if spec.shared_memory is not None:
        return spec.shared_memory
    return any(_is_here(address) for address in (spec.http, spec.grpc) if address is not None)


def _is_here(address: Address) -> bool:
    if address.path or address.host == "localhost":
        return True
    ip = ip_of(address.host)
    return ip is not None and ip.is_loopback
