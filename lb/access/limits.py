"""Limits per client: how many requests a second, and how many at once.

A leaky bucket as a meter (GCRA): one number per client, the time at which its bucket is empty
again; so nothing has to be refilled. In any T seconds a client gets at most `rate * T + burst`
requests through.

Memory is bounded whatever clients do: clients beyond `max_clients` replace those that were quiet
for longest, and clients whose bucket is empty are forgotten as others come. A client with requests
under way is never forgotten, so the count of those is exact.

With several workers a client has one bucket for all of them (`lb.sharing.usage`).
"""

from __future__ import annotations

from hashlib import sha256
from itertools import islice
from typing import Final

from lb.sharing.board import key_of
from lb.sharing.usage import ClientUsage, UsageTable

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

    __slots__ = ("due", "open", "shared")

    def __init__(self, due: float, shared: ClientUsage | None) -> None:
        self.due = due
        """When its bucket will be empty."""
        self.open = 0
        """Its requests under way."""
        self.shared = shared
        """What other workers say of it; None: there are none."""


def client_key(value: bytes) -> bytes:
    """What stands for the client with this header, however long: clients choose its length, and
    many are remembered."""
    return value if len(value) <= _DIGEST_BYTES else sha256(value).digest()


class Limit:
    """One limit, kept for each client on its own."""

    __slots__ = (
        "_clients", "_depth_s", "_interval_s", "_name", "_table", "concurrent", "max_clients",
    )  # fmt: skip

    def __init__(
        self,
        *,
        rate: float = 0.0,
        burst: float = 1.0,
        concurrent: int = 0,
        max_clients: int = MAX_CLIENTS,
        table: UsageTable | None = None,
        name: bytes = b"",
    ) -> None:
        """
        Args:
            rate: requests per second; 0 is no limit.
            burst: requests that may come at once after a pause, at least 1.
            concurrent: requests under way at once; 0 is no limit.
            max_clients: that are remembered.
            table: what workers tell each other; None: this process is alone.
            name: of the limit, the same in all workers.
        """
        self._interval_s = 1.0 / rate if rate else 0.0
        self._depth_s = (burst - 1.0) * self._interval_s + _ROUNDING_S
        self.concurrent = concurrent
        self.max_clients = max_clients
        self._table = table
        self._name = name
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
        if not self.concurrent:
            return False
        count = self.open_of(client)
        shared = self._shared(client)
        if shared is not None:
            count += shared.open()
        return count >= self.concurrent

    def wait_s(self, client: bytes, now: float) -> float:
        """Seconds until a client's next request may come; 0 when it may now."""
        if not self._interval_s:
            return 0.0
        usage = self._clients.get(client)
        shared = self._shared(client)
        if usage is None:
            due = 0.0 if shared is None else shared.latest()
        else:
            due = usage.due if shared is None else max(usage.due, shared.due())
        return max(0.0, due - now - self._depth_s)

    def take(self, client: bytes, now: float) -> None:
        """Count a request that neither `is_full` nor `wait_s` speaks against."""
        usage = self._clients.pop(client, None)
        if usage is None:
            self._make_room(now)
            shared = self._shared(client)
            # What this worker wrote before it forgot the client, or its predecessor, counts too.
            usage = _Usage(now if shared is None else shared.latest(), shared)
        self._clients[client] = usage
        usage.open += 1
        shared = usage.shared
        if shared is None:
            usage.due = max(usage.due, now) + self._interval_s
            return
        latest = shared.due()
        usage.due = max(usage.due, latest, now) + self._interval_s
        shared.tell(usage.due, usage.open, now)
        if (meanwhile := shared.due()) > latest:
            # Another worker has taken the same from the bucket. Of two at least one sees it.
            usage.due = max(usage.due, meanwhile) + self._interval_s
            shared.tell(usage.due, usage.open, now)

    def give_back(self, client: bytes) -> None:
        """A request that was taken is over."""
        usage = self._clients[client]
        usage.open -= 1
        if usage.shared is not None:
            usage.shared.tell(usage.due, usage.open, 0.0)

    def _shared(self, client: bytes) -> ClientUsage | None:
        """What other workers say of a client."""
        usage = self._clients.get(client)
        if usage is not None:
            return usage.shared
        if self._table is None:
            return None
        return self._table.client(key_of(self._name, client))

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
