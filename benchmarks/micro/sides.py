"""Both relays in memory: the product's own parts on transports that only take what is written.

What the kernel and the event loop cost comes on top: `python -m benchmarks.load`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, cast

from lb.balancing.least_loaded import LeastLoaded
from lb.domain.backend import AppProtocol, Backend, BackendSpec, parse_address
from lb.domain.model import ModelFacts
from lb.domain.outcome import Outcome
from lb.domain.pool import ModelRoute, Placement, PoolRef, PoolSnapshot
from lb.domain.schedule import Plan
from lb.net.tasks import TaskOwner
from lb.net.timers import TimerWheel
from lb.proxy.dispatch import Dispatcher
from lb.proxy.http1.client import ClientConnection
from lb.proxy.http1.options import Http1Options
from lb.proxy.http1.relay import Http1Relay
from lb.proxy.http2.client import ClientLink
from lb.proxy.http2.relay import Http2Options, Http2Relay
from lb.telemetry.meter import Meter
from lb.wire.hops import new_identity
from lb.wire.http2 import frames as fr
from lb.wire.ledger import Ledger

Clock = Callable[[], float]
MODEL = b"simple"
WIDE_WINDOW = 2**31 - 1
"""The largest there is (RFC 9113 6.9.1): flow control stays out of the way for 2 GiB."""
_CEILING = 2**28


class Sink(asyncio.Transport):
    """Forgets what is written, but for who was written to last."""

    last: Sink

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self.protocol: Any = protocol

    def write(self, data: Any) -> None:
        Sink.last = self

    def writelines(self, list_of_data: Any) -> None:
        Sink.last = self

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """No limits."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """What comes is given by hand."""

    resume_reading = pause_reading

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing to close."""

    abort = close


class IgnoredOutcomes:
    """There is no control plane."""

    def report(self, backend: Backend, protocol: AppProtocol, outcome: Outcome, now: float) -> None:
        """Nobody cares."""


class StillLoop:
    """Stands for the event loop, whose own work is not counted: makes no call."""

    def __init__(self, clock: Clock) -> None:
        self.time = clock

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        """Never: whoever drives the relay calls `flush`."""

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> StillLoop:
        """Never; what is returned can be cancelled."""
        return self

    def cancel(self) -> None:
        """Of a call."""

    def create_future(self) -> asyncio.Future[Any]:
        """Of the loop that runs."""
        return asyncio.get_running_loop().create_future()


class Wiring:
    """What both relays need, over so many backends, of which so many have a stateless model; or
    all of them have it, and it is scheduled."""

    def __init__(
        self,
        backends: int,
        clock: Clock,
        having_model: int | None = None,
        plan: Plan | None = None,
    ) -> None:
        self.backends = tuple(
            Backend(
                BackendSpec(
                    name=f"gpu-{number}",
                    http=parse_address("127.0.0.1:1"),
                    grpc=parse_address("127.0.0.1:1"),
                )
            )
            for number in range(backends)
        )
        policy = LeastLoaded(Random(1))
        placement = Placement(self.backends, policy.build(self.backends), policy)
        facts = ModelFacts(is_stateful=False, is_decoupled=False)
        ready = frozenset({b"1"})
        route = ModelRoute(
            facts=facts, ready_versions=ready, is_uniform=True, is_plain=plan is None, plan=plan
        )
        if having_model is not None:
            some = self.backends[:having_model]
            special = Placement(some, policy.build(some), policy)
            route = ModelRoute(facts=facts, ready_versions=ready, placements=(special, special))
        snapshot = PoolSnapshot(1, self.backends, (placement, placement), {MODEL: route})
        self.ledger = Ledger(_CEILING)
        self.meter = Meter()
        self.dispatcher = Dispatcher(
            PoolRef(snapshot),
            IgnoredOutcomes(),
            self.meter,
            clock=clock,
            ledger=self.ledger,
            max_attempts=3,
        )
        self.dispatcher.identity = new_identity(bytes)
        self.loop = cast(asyncio.AbstractEventLoop, StillLoop(clock))
        self.timers = TimerWheel(self.loop)
        self.tasks = TaskOwner()


class Http1Sides:
    """A client's connection and one idle connection to each backend. Needs a running loop."""

    def __init__(
        self,
        clock: Clock,
        *,
        backends: int = 1,
        having_model: int | None = None,
        plan: Plan | None = None,
    ) -> None:
        wiring = Wiring(backends, clock, having_model, plan)
        self.relay = Http1Relay(
            wiring.dispatcher,
            wiring.timers,
            wiring.ledger,
            wiring.tasks,
            wiring.meter.traffic[AppProtocol.HTTP],
            Http1Options(),
        )
        self.relay.loop = wiring.loop
        self.server = self.relay.server_protocol()
        self.server.connection_made(Sink(self.server))
        for backend in reversed(wiring.backends):
            connection = ClientConnection(self.relay, backend, backend.port(AppProtocol.HTTP))
            connection.connection_made(Sink(connection))
            self.relay.upstreams.put(connection)
            self.upstream = connection
            """Of the first backend."""

    def client_sends(self, data: bytes) -> None:
        """One read on the client's connection."""
        self.server.data_received(data)

    def backend_sends(self, data: bytes) -> None:
        """One read on the connection that was written to last."""
        Sink.last.protocol.data_received(data)


class Http2Sides:
    """A client's connection and one connection to the backend. Needs a running loop."""

    def __init__(self, clock: Clock, plan: Plan | None = None) -> None:
        wiring = Wiring(1, clock, plan=plan)
        self.relay = Http2Relay(
            wiring.dispatcher,
            wiring.timers,
            wiring.ledger,
            wiring.tasks,
            wiring.meter.traffic[AppProtocol.GRPC],
            Http2Options(),
        )
        self.server = self.relay.server_protocol()
        self.server.connection_made(Sink(self.server))
        pool = self.relay.pool(wiring.backends[0])
        self.upstream = ClientLink(pool)
        self.upstream.connection_made(Sink(self.upstream))
        pool.discard(self.upstream)
        pool.links.append(self.upstream)
        self.relay.loop = wiring.loop
        greeting = fr.settings({fr.SETTINGS_INITIAL_WINDOW_SIZE: WIDE_WINDOW}) + fr.SETTINGS_ACK
        greeting += fr.window_update(0, WIDE_WINDOW - fr.DEFAULT_WINDOW)
        self.server.data_received(fr.PREFACE + greeting)
        self.upstream.data_received(greeting)
        self.relay.flush()

    def client_sends(self, data: bytes) -> None:
        """One read on the client's connection, and the end of the loop's turn."""
        self.server.data_received(data)
        self.relay.flush()

    def backend_sends(self, data: bytes) -> None:
        """One read on the backend's connection, and the end of the loop's turn."""
        self.upstream.data_received(data)
        self.relay.flush()
