"""How many connections the descriptors of the process are enough for.

Running out of them hurts everyone: requests under way cannot reach a backend, probes fail and
blame the backends, and metrics cannot be read. So clients get what is certainly there.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from typing import Final

from lb.net.splice import MOST

RESERVE: Final = 64 + 3 * MOST
"""For probes, scrapes, the admin API and the metrics port, and three for each pump."""
PER_BACKEND: Final = 2
"""More for each backend: a probe on its way to each of its ports."""
_FEWEST: Final = 8
"""Connections of clients with however few descriptors: none at all would be no service."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds on open connections."""

    clients: int
    """Of clients. One of HTTP/1.1 may need another one to a backend, so this is half of all."""
    all: int
    """Of clients and to backends."""

    def room(self, clients: int, upstream: int) -> int:
        """How many more clients may come; not above 0 when none may."""
        return min(self.clients - clients, self.all - clients - upstream)


def plan_budget(*, limit: int, in_use: int, backends: int, wanted: int) -> Budget:
    """Divide the descriptors.

    Args:
        limit: of descriptors, for the process.
        in_use: open before the first client came.
        backends: configured ones.
        wanted: connections of clients at most; 0 is as many as there is room for.
    """
    free = max(limit - in_use - RESERVE - PER_BACKEND * backends, 2 * _FEWEST)
    return Budget(min(wanted or free, free // 2), free)


def raise_limit() -> None:
    """Take the descriptors that the system grants; the lower limit is for programs that use
    select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class DescriptorUse:
    """What the process has open; to be made before clients come."""

    def __init__(self) -> None:
        self._in_use = len(os.listdir("/proc/self/fd"))

    def budget(self, *, backends: int, wanted: int) -> Budget:
        """The budget beside that: see `plan_budget`."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return plan_budget(limit=limit, in_use=self._in_use, backends=backends, wanted=wanted)
