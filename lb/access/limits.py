"""Limits per client: how many requests a second, and how many at once.

A leaky bucket as a meter (GCRA): one number per client, the time at which its bucket is empty
again; so nothing has to be refilled. In any T seconds a client gets at most `rate * T + burst`
requests through.

Memory is bounded whatever clients do: clients beyond `max_clients` replace those that were quiet
for longest, and clients whose bucket is empty are forgotten as others come. A client with requests
under way is never forgotten, so the count of those is exact.
"""

from __future__ import annotations

from hashlib import sha256
from itertools import islice
from typing import Final

MAX_CLIENTS: Final = 10_000
"""Clients remembered per rule: about 2 MiB."""
_DIGEST_BYTES: Final = 32
_SWEEP: Final = 2
"""Old entries looked at for each new one: more than one, so that a table of idle ones shrinks."""
_EVICTION_LOOK: Final = 8
"""As many when there are too many: those with requests under way stay."""
_ROUNDING_S: Final = 1e-9
"""Sums of floating point numbers may fall short of what they stand for."""


class _Usage:
    """What one client has used up."""

    __slots__ = ("due", "open")

    def __init__(self, now: float) -> None:
        self.due = now
        """When its bucket will be empty."""
        self.open = 0
        """Its requests under way."""


def client_key(value: bytes) -> bytes:
    """What stands for the client with this header, however long: clients choose its length, and
    many are remembered."""
    return value if len(value) <= _DIGEST_BYTES else sha256(value).digest()


class Limit:
    """One limit, kept for each client on its own."""

    __slots__ = ("_clients", "_depth_s", "_interval_s", "concurrent", "max_clients")

    def __init__(
        self,
        *,
        rate: float = 0.0,
        burst: float = 1.0,
        concurrent: int = 0,
        max_clients: int = MAX_CLIENTS,
    ) -> None:
        """
        Args:
            rate: requests per second; 0 is no limit.
            burst: requests that may come at once after a pause, at least 1.
            concurrent: requests under way at once; 0 is no limit.
            max_clients: that are remembered.
        """
        self._interval_s = 1.0 / rate if rate else 0.0
        self._depth_s = (burst - 1.0) * self._interval_s + _ROUNDING_S
        self.concurrent = concurrent
        self.max_clients = max_clients
        self._clients: dict[bytes, _Usage] = {}
        """Those used last come last."""

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def terms(self) -> tuple[float, float, int]:
        """What it was made from: seconds between two requests, for a burst, and at once."""
        return self._interval_s, self._depth_s, self.concurrent

    def open_of(self, client: bytes) -> int:
        """Requests of a client under way."""
        usage = self._clients.get(client)
        return usage.open if usage is not None else 0

    def is_full(self, client: bytes) -> bool:
        """Whether a client has as many requests under way as it may."""
        return bool(self.concurrent) and self.open_of(client) >= self.concurrent

    def wait_s(self, client: bytes, now: float) -> float:
        """Seconds until a client's next request may come; 0 when it may now."""
        usage = self._clients.get(client)
        if usage is None:
            return 0.0
        return max(0.0, usage.due - now - self._depth_s)

    def take(self, client: bytes, now: float) -> None:
        """Count a request that neither `is_full` nor `wait_s` speaks against."""
        usage = self._clients.pop(client, None)
        if usage is None:
            self._make_room(now)
            usage = _Usage(now)
        self._clients[client] = usage
        usage.due = max(usage.due, now) + self._interval_s
        usage.open += 1

    def give_back(self, client: bytes) -> None:
        """A request that was taken is over."""
        self._clients[client].open -= 1

    def _make_room(self, now: float) -> None:
        clients = self._clients
        for client in tuple(islice(clients, _SWEEP)):
            usage = clients[client]
            if not usage.open and usage.due <= now:
                del clients[client]
        if len(clients) < self.max_clients:
            return
        for client in tuple(islice(clients, _EVICTION_LOOK)):
            usage = clients.pop(client)
            if usage.open:
                clients[client] = usage  # to the end, so that the next look finds others
            elif len(clients) < self.max_clients:
                return
