"""The execution time that each tenant has had, over all workers.

Start-time fair queuing: Goyal, Vin and Cheng, "Start-time fair queueing: a scheduling algorithm for
integrated services packet switching networks", 1996. A tenant has a virtual time, which grows with
what its requests take, divided by its weight. The tenant with the least one is next. One that had
nothing queued begins at the time of the request that was served last.

Workers tell each other these times as those of limits (`lb.sharing.usage`): the latest one that
anybody has written is the tenant's.
"""

from __future__ import annotations

from typing import Final

from lb.sharing.board import key_of
from lb.sharing.usage import ClientUsage, UsageTable

_SCALE: Final = 1 / 1024
"""Of virtual times. They stay before the clock's, so that slots of tenants that have nothing queued
can be used again."""
_KEPT: Final = 1024
"""Tenants without queued requests that are remembered here."""


class _Tenant:
    """One tenant."""

    __slots__ = ("paid", "queues", "time", "usage")

    def __init__(self, usage: ClientUsage) -> None:
        self.usage = usage
        self.time = 0.0
        """As it was told here last."""
        self.queues = 0
        """Queues of this worker that have requests of it."""
        self.paid = 0.0
        """What it has paid in advance, since a request was put back."""


class TenantTimes:
    """The virtual times of the tenants of one priority of a model."""

    def __init__(self, table: UsageTable, model: bytes, version: bytes, level: int) -> None:
        self._table = table
        self._names = (b"tenant", model, version, b"%d" % level)
        self._present = table.client(key_of(b"tenants", *self._names[1:]))
        self._present_time = 0.0
        self._tenants: dict[str, _Tenant] = {}

    def time(self, tenant: str) -> float:
        """Find the virtual time of a tenant that has requests queued here."""
        found = self._tenants[tenant]
        told: float = found.usage.due()
        return told if told > found.time else found.time

    def slot(self, tenant: str) -> int:
        """The number by which other workers find the tenant; see `UsageTable.client_at`."""
        found: int = self._tenants[tenant].usage.slot
        return found

    def joined(self, tenant: str, now: float) -> None:
        """A queue has requests of a tenant again."""
        found = self._tenants.get(tenant)
        if found is None:
            found = self._new(tenant)
        found.queues += 1
        if found.queues > 1:
            return
        time = self.time(tenant)
        if not found.usage.open():
            present = max(self._present_time, self._present.due())
            time = max(time, present)
        found.time = time
        found.usage.tell(time, 1, now)

    def left(self, tenant: str, now: float) -> None:
        """A queue has no more requests of a tenant."""
        found = self._tenants[tenant]
        found.queues -= 1
        if not found.queues:
            found.usage.tell(found.time, 0, now)

    def serve(self, tenant: str, took_s: float, now: float) -> None:
        """A tenant's request begins.

        Args:
            tenant: which.
            took_s: what it takes, in seconds divided by the tenant's weight.
            now: the time.
        """
        found = self._tenants[tenant]
        begun = self.time(tenant)
        due = took_s * _SCALE
        paid = min(found.paid, due)
        found.paid -= paid
        found.time = begun + due - paid
        found.usage.tell(found.time, 1, now)
        if begun > self._present_time:
            self._present_time = begun
            self._present.tell(begun, 1, now)

    def put_back(self, tenant: str, took_s: float) -> None:
        """A request of a tenant that was to begin is queued again. It has paid: others may have
        added to the time by now, so it is not turned back."""
        self._tenants[tenant].paid += took_s * _SCALE

    def _new(self, tenant: str) -> _Tenant:
        tenants = self._tenants
        if len(tenants) >= _KEPT:
            for name in [name for name, each in tenants.items() if not each.queues]:
                del tenants[name]
        key = key_of(*self._names, tenant.encode("utf-8", "surrogatepass"))
        tenants[tenant] = found = _Tenant(self._table.client(key))
        return found
