"""Readiness as it is told to another balancer: what rests on the one that asks does not count.

Two balancers that name each other would otherwise be ready because of each other for ever. So a
ready balancer also says through which balancers it reaches its servers, as routers do that
advertise paths: it counts only those of its backends whose path has none of the balancers that the
request has passed. A path ends at a server, so without one nobody is ready.
"""

from __future__ import annotations

from typing import NamedTuple

from lb.domain.backend import AppProtocol
from lb.domain.pool import PoolSnapshot
from lb.wire.hops import MAX_HOPS


class Readiness(NamedTuple):
    """What is answered to a question about readiness."""

    is_ready: bool
    through: bytes = b""
    """Value of the field `READY_THROUGH`: ours alone where nobody is ready. Empty where a client
    asks."""
    loop: str = ""
    """Why it does not count: it rests on who asks. Empty where it does."""


def readiness(
    snapshot: PoolSnapshot, protocol: AppProtocol, hops: tuple[bytes, ...], identity: bytes
) -> Readiness:
    """Whether we are ready for requests of one protocol.

    Args:
        snapshot: the pool.
        protocol: of the requests.
        hops: identities of the balancers that the question has passed.
        identity: ours.
    """
    ready = snapshot.ready(protocol)
    if not hops:
        return Readiness(bool(ready))
    if not ready:
        return Readiness(False, identity)
    paths = [backend.port(protocol).ready_through for backend in ready]
    room = MAX_HOPS - len(hops) - 1  # for the balancers behind us
    paths = [path for path in paths if len(path) <= room and not set(path) & set(hops)]
    if not paths:
        names = ", ".join(hop.decode() for hop in hops)
        return Readiness(False, loop=f"loop detected: ready only through {names}, which asks")
    return Readiness(True, b", ".join((identity, *min(paths, key=len))))
