"""How busy others keep the devices of backends (GPUs), which also others may share.

A device's utilisation is what everybody does on it, in a short while of which only the length is
known. What we do is known from above: while a request of ours is under way, it may be what the
device is busy with. So what others do is known where we have next to nothing there; and where we
have more than that, it makes itself felt in what is learnt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

from lb.domain.backend import Backend
from lb.domain.load import DeviceLoad

_RECENT_S: Final = 3.0
"""Utilisation may be that old: Triton looks every two seconds, at what was in the last one."""
_WINDOW_S: Final = 0.5
"""It is that of as little as so much time (NVML: a sixth of a second to one)."""
_LITTLE: Final = 0.25
"""More than that of ours cannot be told from what others do."""


class _Own:
    """What we have at one backend."""

    __slots__ = ("at", "backend", "devices", "in_flight", "recent", "spent_s")

    def __init__(self, backend: Backend, now: float) -> None:
        self.backend = backend
        self.at = now
        self.spent_s = 0.0
        self.in_flight = 0
        self.devices: frozenset[bytes] = frozenset()
        self.recent: deque[tuple[float, float]] = deque()
        """When it was looked at lately, and for how long requests had been there since the look
        before, at most."""
        self.note_work(now)
        self.recent.clear()

    def note_work(self, now: float) -> None:
        """Take note of what was under way since the last look."""
        ports = [port for port in self.backend.ports if port is not None]
        spent_s = sum([port.latency.sum for port in ports])
        lately_s = spent_s - self.spent_s
        if self.in_flight or self.backend.in_flight:
            lately_s += now - self.at  # for how long is known when they end
        self.at, self.spent_s, self.in_flight = now, spent_s, self.backend.in_flight
        self.recent.append((now, lately_s))
        while self.recent[0][0] < now - _RECENT_S:
            self.recent.popleft()

    def may_share_with(self, other: _Own) -> bool:
        """Whether the two may have a device in common: one that tells of none may be on any of its
        machine, such as a second Triton on a GPU which the first one reports."""
        if other.devices:
            return bool(self.devices & other.devices)
        return _host(self.backend) == _host(other.backend)

    @property
    def most(self) -> float:
        """The most that utilisation can have of us."""
        lately_s = sum([spent_s for _, spent_s in self.recent])
        return lately_s / _WINDOW_S + bool(self.in_flight)


def _host(backend: Backend) -> str:
    address = backend.spec.http or backend.spec.grpc
    return address.host if address is not None else ""


class DeviceBook:
    """What is known of all devices."""

    def __init__(self) -> None:
        self._own: dict[Backend, _Own] = {}

    def follow(self, backends: Collection[Backend], now: float) -> None:
        """Take note of all backends that there are, whether they tell of devices or not."""
        for backend in self._own.keys() - set(backends):
            del self._own[backend]
        for backend in backends:
            if backend not in self._own:
                self._own[backend] = _Own(backend, now)

    def others(self, backend: Backend, devices: tuple[DeviceLoad, ...], now: float) -> float | None:
        """The part of the time in which others keep the devices of a backend busy, which it says
        are so busy; None: that cannot be told."""
        own = self._own.get(backend)
        if own is None:
            own = self._own[backend] = _Own(backend, now)
        own.devices = frozenset([each.device for each in devices])
        shares = [each.utilization for each in devices if each.utilization is not None]
        if not shares:
            return None
        ours = 0.0
        for each in self._own.values():
            if own.may_share_with(each):
                each.note_work(now)
                ours += each.most
        ours /= len(shares)
        return max(0.0, sum(shares) / len(shares) - ours) if ours <= _LITTLE else None
