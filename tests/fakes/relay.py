"""A relay over fixed backends, without a control plane: for tests of the data plane."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from lb.access.gate import Gate
from lb.domain.backend import AppProtocol, Backend, BackendSpec, BackendTls, parse_address
from lb.domain.model import ModelFacts
from lb.domain.outcome import Outcome
from lb.domain.pool import ModelRoute, Placement, PoolRef, PoolSnapshot
from lb.net.tasks import TaskOwner
from lb.net.timers import TimerWheel
from lb.proxy.dispatch import Dispatcher
from lb.proxy.http2.relay import Http2Options, Http2Relay
from lb.telemetry.meter import Meter
from lb.telemetry.record import RequestRecord
from lb.wire.ledger import Ledger


class FewestInFlight:
    """The plainest policy and picker: the first of the least loaded."""

    def __init__(self, backends: Sequence[Backend] = ()) -> None:
        self._backends = backends

    def build(self, backends: Sequence[Backend]) -> FewestInFlight:
        return FewestInFlight(backends)

    def pick(self) -> Backend | None:
        free = [backend for backend in self._backends if backend.has_room]
        return min(free, key=lambda backend: backend.in_flight, default=None)


class Outcomes:
    """Remembers what the relay reported."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Outcome]] = []

    def report(self, backend: Backend, protocol: AppProtocol, outcome: Outcome, now: float) -> None:
        self.seen.append((backend.name, outcome))


class Finished:
    """Remembers finished requests and counts them as the product does."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.records: list[RequestRecord] = []

    def finished(self, record: RequestRecord) -> None:
        self.records.append(record)
        self.meter.finished(record)


_PLAIN = ModelRoute(
    facts=ModelFacts(is_stateful=False),
    ready_versions=frozenset({b"1"}),
    is_uniform=True,
    is_plain=True,
)


def snapshot_of(backends: Sequence[Backend], generation: int = 1) -> PoolSnapshot:
    """All of `backends` eligible, each on the ports that it has.

    Of the models m and simple it is known that they are stateless, of others nothing.
    """
    policy = FewestInFlight()
    placements = []
    for protocol in AppProtocol:
        eligible = tuple(b for b in backends if b.ports[protocol] is not None)
        picker = policy.build(eligible) if eligible else None
        placements.append(Placement(eligible, picker, policy))
    routes = {b"m": _PLAIN, b"simple": _PLAIN}
    return PoolSnapshot(generation, tuple(backends), (placements[0], placements[1]), routes)


class RunningRelay:
    """A gRPC relay with a listener on a free port of loopback."""

    def __init__(
        self,
        backends: Sequence[Backend],
        options: Http2Options,
        ceiling: int,
        gate: Gate | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.backends = backends
        self.pool = PoolRef(snapshot_of(backends))
        self.outcomes = Outcomes()
        self.finished = Finished()
        self.ledger = Ledger(ceiling)
        self.timers = TimerWheel(loop)
        self.tasks = TaskOwner()
        self.dispatcher = Dispatcher(
            self.pool,
            self.outcomes,
            self.finished,
            clock=time.monotonic,  # as in the product: uvloop's own has a resolution of 1 ms
            ledger=self.ledger,
            max_attempts=3,
            gate=gate,
        )
        traffic = self.finished.meter.traffic[AppProtocol.GRPC]
        self.relay = Http2Relay(
            self.dispatcher, self.timers, self.ledger, self.tasks, traffic, options
        )
        self.port = 0

    @property
    def target(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    def leftovers(self) -> dict[str, int]:
        """Everything that must be zero when no call is under way."""
        return {
            "open": self.dispatcher.open_exchanges,
            "held": self.ledger.held,
            "holders": len(self.ledger),
            "in_flight": sum(backend.in_flight for backend in self.backends),
            "streams": sum(len(server.streams) for server in self.relay.servers),
            "tasks": len(self.tasks),
        }

    async def until_clean(self) -> None:
        """Wait until nothing of any call is left; without clients, nothing of connections too."""
        for _ in range(2000):
            left = self.leftovers()
            if not self.relay.servers:
                left["timers"] = len(self.timers)
            if not any(left.values()):
                return
            await asyncio.sleep(0.001)
        raise AssertionError(left)


@asynccontextmanager
async def running_relay(
    *targets: str,
    options: Http2Options | None = None,
    ceiling: int = 2**28,
    gate: Gate | None = None,
    tls: BackendTls | None = None,
) -> AsyncIterator[RunningRelay]:
    """Run a gRPC relay over backends at `targets` (HOST:PORT)."""
    backends = [
        Backend(BackendSpec(name=f"b{number}", grpc=parse_address(target), tls=tls))
        for number, target in enumerate(targets)
    ]
    running = RunningRelay(backends, options or Http2Options(), ceiling, gate)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(running.relay.server_protocol, "127.0.0.1", 0)
    running.port = server.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        server.close()
        await running.relay.aclose()
        await running.tasks.aclose()
        running.timers.close()
