"""Both relays in memory: the product's own parts on transports that only take what is written.

What the kernel and the event loop cost comes on top: `python -m benchmarks.load`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, cast

from lb.domain.backend import AppProtocol, Backend, BackendSpec, parse_address
from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute, Placement, PoolSnapshot
from lb.domain.schedule import QueuePlan
from lb.net.timers import TimerWheel
from lb.payloads.lines import PayloadRecord
from lb.payloads.log import payload_rules
from lb.payloads.writer import PayloadWriter
from lb.settings.reporting import PayloadLogSettings
from lb.wire.hops import new_identity
from lb.wire.http2 import frames as fr
from tests.fakes.relay import Relay, named_policy

Clock = Callable[[], float]
MODEL = b"simple"
WIDE_WINDOW = 2**31 - 1
"""The largest there is (RFC 9113 6.9.1): flow control stays out of the way for 2 GiB."""


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


def _snapshot(
    backends: tuple[Backend, ...], having_model: int | None, plan: QueuePlan | None
) -> PoolSnapshot:
    """The pool: some of the backends have a stateless model, or all of them, and it may be
    scheduled."""
    policy = named_policy("least_loaded")
    placement = Placement(backends, policy.build(backends), policy)
    facts = ModelFacts(is_stateful=False, is_decoupled=False)
    ready = frozenset({b"1"})
    route = ModelRoute(
        facts=facts, ready_versions=ready, is_uniform=True, is_plain=plan is None, plan=plan
    )
    if having_model is not None:
        some = backends[:having_model]
        special = Placement(some, policy.build(some), policy)
        route = ModelRoute(facts=facts, ready_versions=ready, placements=(special, special))
    return PoolSnapshot(1, backends, (placement, placement), {MODEL: route})


class _Forgotten:
    """Stands for the thread that writes the payload log: all is written at once, to nowhere."""

    bytes_per_second = 0

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def put(self, record: PayloadRecord, _: Any) -> None:
        self._relay.payload_log.settle(record, is_written=True)


def _relay(
    backends: int,
    clock: Clock,
    having_model: int | None = None,
    plan: QueuePlan | None = None,
    logged: float | None = None,
) -> Relay:
    """A relay whose event loop does nothing.

    Args:
        backends: how many.
        clock: monotonic seconds.
        having_model: how many of them have the model; None: all.
        plan: by which the model is scheduled; None: it is not.
        logged: share of the payloads that are logged; None: the payload log is off.
    """
    rules = None
    if logged is not None:
        rules = payload_rules(PayloadLogSettings(path=os.devnull, models={"*": logged}))
    options = {} if rules is None else {"payloads": rules}
    pool = tuple(
        Backend(
            BackendSpec(
                name=f"gpu-{number}",
                http=parse_address("127.0.0.1:1"),
                grpc=parse_address("127.0.0.1:1"),
            )
        )
        for number in range(backends)
    )
    loop = cast(asyncio.AbstractEventLoop, StillLoop(clock))
    relay = Relay(
        pool,
        snapshot=_snapshot(pool, having_model, plan),
        clock=clock,
        timers=TimerWheel(loop),
        identity=new_identity(bytes),
        forgets=True,
        http1=options,
        http2=options,
    )
    if rules is not None:
        relay.log_payloads(rules, cast(PayloadWriter, _Forgotten(relay)))
    relay.stand_still(loop)
    return relay


class Http1Sides:
    """A client's connection and one idle connection to each backend. Needs a running loop."""

    def __init__(
        self,
        clock: Clock,
        *,
        backends: int = 1,
        having_model: int | None = None,
        plan: QueuePlan | None = None,
        logged: float | None = None,
    ) -> None:
        self.relay = _relay(backends, clock, having_model, plan, logged)
        self.server = self.connect()
        for number in reversed(range(backends)):
            self.upstream = self.dial(number)
            """Of the first backend."""

    def connect(self) -> asyncio.Protocol:
        """The protocol of a further connection of a client."""
        server = self.relay.server_protocol(AppProtocol.HTTP)
        server.connection_made(Sink(server))
        return server

    def dial(self, number: int = 0, transport_of: type[Sink] = Sink) -> asyncio.Protocol:
        """The protocol of a further connection to a backend."""
        backend = self.relay.backends[number]
        return self.relay.backend_protocol(backend, AppProtocol.HTTP, transport_of)

    def client_sends(self, data: bytes) -> None:
        """One read on the client's connection."""
        self.server.data_received(data)

    def backend_sends(self, data: bytes) -> None:
        """One read on the connection that was written to last."""
        Sink.last.protocol.data_received(data)


class Http2Sides:
    """A client's connection and one connection to each backend. Needs a running loop."""

    def __init__(
        self,
        clock: Clock,
        plan: QueuePlan | None = None,
        logged: float | None = None,
        *,
        backends: int = 1,
        transport_of: type[Sink] = Sink,
    ) -> None:
        self.relay = _relay(backends, clock, plan=plan, logged=logged)
        self.server = self.connect()
        self.upstreams = [self.dial(number, transport_of) for number in range(backends)]
        """By backend."""
        self.upstream = self.upstreams[0]
        greeting = fr.settings({fr.SETTINGS_INITIAL_WINDOW_SIZE: WIDE_WINDOW}) + fr.SETTINGS_ACK
        greeting += fr.window_update(0, WIDE_WINDOW - fr.DEFAULT_WINDOW)
        self.server.data_received(fr.PREFACE + greeting)
        for upstream in self.upstreams:
            upstream.data_received(greeting)
        self.flush = self.relay.flush
        self.flush()

    def connect(self) -> asyncio.Protocol:
        """The protocol of a further connection of a client."""
        server = self.relay.server_protocol(AppProtocol.GRPC)
        server.connection_made(Sink(server))
        return server

    def dial(self, number: int = 0, transport_of: type[Sink] = Sink) -> asyncio.Protocol:
        """The protocol of a further connection to a backend."""
        backend = self.relay.backends[number]
        return self.relay.backend_protocol(backend, AppProtocol.GRPC, transport_of)

    def client_sends(self, data: bytes) -> None:
        """One read on the client's connection, and the end of the loop iteration."""
        self.server.data_received(data)
        self.flush()

    def backend_sends(self, data: bytes) -> None:
        """One read on the backend's connection, and the end of the loop iteration."""
        self.upstream.data_received(data)
        self.flush()
