"""Connections to backends that wait for their next request.

Last in, first out: the connection used last is the least likely to have been closed by the
backend meanwhile, and the ones that are not needed grow old at the other end and are closed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from lb.domain.backend import AppProtocol, Backend, BackendSpec, Port
from lb.domain.pool import PoolSnapshot
from lb.net.timers import Timer, TimerWheel

_NOBODY: Final = Backend(BackendSpec(name=""))
_SWEEPS: Final = 4
"""Looks for old connections per idle time, so that none stays more than a quarter longer."""


class Pooled:
    """A connection as the pool sees it."""

    __slots__ = ("backend", "idle_since", "port")

    def __init__(self, backend: Backend, port: Port) -> None:
        self.backend = backend
        self.port = port
        self.idle_since = 0.0

    @abstractmethod
    def hung(self) -> None:
        """The backend is silent: the request that is under way, if there is one, may leave it."""

    @abstractmethod
    def close(self) -> None:
        """Close it; no request is under way."""

    @abstractmethod
    def abort(self) -> None:
        """Close it; a request that is under way fails."""


AnyConnection = TypeVar("AnyConnection", bound=Pooled)


class UpstreamPool(Generic[AnyConnection]):
    """Idle connections by backend. There is no limit: what is in flight is limited elsewhere."""

    def __init__(
        self,
        first: PoolSnapshot,
        timers: TimerWheel,
        clock: Callable[[], float],
        idle_timeout_s: float,
    ) -> None:
        self._timers = timers
        self._clock = clock
        self.idle_timeout_s = idle_timeout_s
        self._idle: dict[Backend, list[AnyConnection]] = {}
        """Idle connections to each backend that may get requests; oldest first."""
        self._sweep_timer: Timer | None = None
        self._closed = False
        self.open: set[AnyConnection] = set()
        """All connections, those that serve a request included."""
        self.renewals = 0
        """How often connections were renewed, to whichever backend. See `dialled`."""
        self.on_snapshot(first)

    def __len__(self) -> int:
        """Idle connections."""
        return sum(len(idle) for idle in self._idle.values())

    def take(self, backend: Backend) -> AnyConnection | None:
        """The idle connection that was used last; None when there is none."""
        # HOT PATH (benchmarks/bench_http1_relay.py). Closed connections leave the list as they
        # close, so nothing is checked here.
        idle = self._idle.get(backend)
        return idle.pop() if idle else None

    def put(self, connection: AnyConnection) -> None:
        """Keep a connection for its next request, unless its backend gets none any more."""
        # HOT PATH (benchmarks/bench_http1_relay.py). One timer for all, not one per connection.
        idle = self._idle.get(connection.backend)
        if idle is None:
            connection.close()
            return
        connection.idle_since = self._clock()
        idle.append(connection)
        if self._sweep_timer is None:
            self._plan_sweep()

    def discard(self, connection: AnyConnection) -> bool:
        """A connection is closing. Whether it was waiting for a request."""
        idle = self._idle.get(connection.backend)
        if idle is None or connection not in idle:
            return False
        idle.remove(connection)
        return True

    def on_snapshot(self, snapshot: PoolSnapshot) -> None:
        """Close idle connections to backends that get nothing new: a Triton that shuts down waits
        for them (up to 30 s)."""
        eligible = () if self._closed else snapshot.usable(AppProtocol.HTTP)
        old, self._idle = self._idle, {}
        for backend in eligible:
            self._idle[backend] = old.pop(backend, [])
        for idle in old.values():
            for connection in idle:
                connection.close()
        for connection in tuple(self.open):
            if connection.port.may_hang:
                connection.hung()

    def renew(self, backend: Backend) -> None:
        """Close connections to a backend; those that serve a request, after it. See also
        `dialled`."""
        self.renewals += 1
        idle = self._idle.get(backend)
        if idle is not None:
            self._idle[backend] = []
            for connection in idle:
                connection.close()
        for connection in self.open:
            if connection.backend is backend:
                connection.backend = _NOBODY  # whose connections nobody keeps

    def dialled(self, connection: AnyConnection, renewals: int) -> None:
        """A connection is there, and its dial began after so many `renewals`. If there are more
        now, it may lead where its backend was before: it serves one request."""
        if renewals != self.renewals:
            connection.backend = _NOBODY

    def close_idle(self, count: int) -> int:
        """Close connections that wait for a request, the oldest of the longest lists first, since
        their descriptors are needed. Returns how many there were."""
        for closed in range(count):
            longest = max(self._idle.values(), key=len, default=None)
            if not longest:
                return closed
            self.drop(longest.pop(0))
        return count

    def drop(self, connection: AnyConnection) -> None:
        """Close a connection whose descriptor is needed: it counts as open no more, although its
        transport reports that only in the next iteration of the loop."""
        connection.close()
        self.open.discard(connection)

    def make_room(self, backend: Backend) -> None:
        """A new connection is dialled: close the oldest idle one to that backend, if there is one,
        so that retries do not make the list grow."""
        idle = self._idle.get(backend)
        if idle:
            self.drop(idle.pop(0))

    def close(self) -> None:
        """Close everything now, requests under way included."""
        self._closed = True
        self._idle = {}
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for connection in tuple(self.open):
            connection.abort()

    def _plan_sweep(self) -> None:
        self._sweep_timer = self._timers.after(self.idle_timeout_s / _SWEEPS, self._sweep)

    def _sweep(self) -> None:
        oldest = self._clock() - self.idle_timeout_s
        for idle in self._idle.values():
            while idle and idle[0].idle_since <= oldest:
                idle.pop(0).close()
        self._sweep_timer = None
        if any(self._idle.values()):
            self._plan_sweep()
