"""How busy others keep the devices of backends (GPUs), which also others may share.

A device's utilisation is what everybody does on it. What we do is known only from above: while a
request of ours is under way, it may be what the device is busy with. So what others do is known
where we have little there, and what we have there makes itself felt in what is learnt anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

from lb.domain.backend import Backend
from lb.domain.load import DeviceLoad

_RECENT_S: Final = 3.0
"""Utilisation may be that old: Triton looks every two seconds, at what was in the last one."""
_LITTLE: Final = 0.25
"""More than that of ours cannot be told from what others do."""


class _Own:
    """What we have at one backend."""

    __slots__ = ("at", "devices", "ended", "in_flight", "loads", "spent_s")

    def __init__(self) -> None:
        self.at: float | None = None
        self.spent_s = 0.0
        self.ended = 0
        self.in_flight = 0
        self.devices: frozenset[bytes] = frozenset()
        self.loads: deque[tuple[float, float]] = deque()
        """When it was looked at lately, and how many requests were under way on average."""

    def look(self, backend: Backend, now: float) -> None:
        """Count what was under way since the last look."""
        ports = [port for port in backend.ports if port is not None]
        spent_s = sum([port.latency.sum for port in ports])
        ended = sum([port.attempts - port.in_flight for port in ports])
        if self.at is None or now <= self.at:
            load = float(backend.in_flight)
        else:
            # Those that were there all the time are not among those that ended.
            stayed = max(0, self.in_flight - (ended - self.ended))
            load = stayed + max(0.0, spent_s - self.spent_s) / (now - self.at)
        self.at, self.spent_s, self.ended = now, spent_s, ended
        self.in_flight = backend.in_flight
        self.loads.append((now, load))
        while self.loads[0][0] < now - _RECENT_S:
            self.loads.popleft()

    @property
    def most(self) -> float:
        """The most that was under way lately."""
        return max([load for _, load in self.loads], default=0.0)


class DeviceBook:
    """What is known of all devices."""

    def __init__(self) -> None:
        self._own: dict[Backend, _Own] = {}

    def retain(self, backends: Collection[Backend]) -> None:
        """Forget all others."""
        for backend in self._own.keys() - set(backends):
            del self._own[backend]

    def others(self, backend: Backend, devices: tuple[DeviceLoad, ...], now: float) -> float | None:
        """The part of the time in which others keep the devices of a backend busy, which it says
        are so busy; None: that cannot be told."""
        own = self._own.get(backend)
        if own is None:
            own = self._own[backend] = _Own()
        own.devices = frozenset([each.device for each in devices])
        own.look(backend, now)
        shares = [each.utilization for each in devices if each.utilization is not None]
        if not shares:
            return None
        ours = sum([each.most for each in self._own.values() if each.devices & own.devices])
        ours /= len(shares)
        return max(0.0, sum(shares) / len(shares) - ours) if ours <= _LITTLE else None
