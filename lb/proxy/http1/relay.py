"""The HTTP/1.1 data plane: what its connections share, and their life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from lb.domain.backend import AppProtocol, Backend, BackendKind
from lb.net.crowd import Crowd
from lb.net.iteration import IterationBudget
from lb.net.splice import Pumps
from lb.net.tasks import TaskOwner
from lb.net.timers import TimerWheel
from lb.net.tls.client import ClientTlsBook
from lb.proxy.dispatch import Dispatcher
from lb.proxy.exchange import Exchange
from lb.proxy.fan_out.question import FanOut
from lb.proxy.http1.client import ClientConnection
from lb.proxy.http1.exchange import Http1Exchange
from lb.proxy.http1.heads import HeadReader, RequestPlan
from lb.proxy.http1.hedge import HedgeExchange
from lb.proxy.http1.options import Http1Options
from lb.proxy.http1.pool import UpstreamPool
from lb.proxy.http1.server import ServerConnection
from lb.proxy.http1.unread import Unread
from lb.telemetry.meter import Traffic
from lb.wire.ledger import Ledger

_CLOSING_TURNS: Final = 100
"""Turns of the loop that connections get to report that they are closed; they need a few."""


class Http1Relay:
    """Owns downstream connections and the pool of upstream ones."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        timers: TimerWheel,
        ledger: Ledger,
        tasks: TaskOwner,
        traffic: Traffic,
        options: Http1Options,
        tls: ClientTlsBook | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.dispatcher = dispatcher
        self.timers = timers
        self.ledger = ledger
        self.tasks = tasks
        self.traffic = traffic
        """Counters of the clients' side."""
        self.tls = tls or ClientTlsBook()
        """For connections to backends."""
        self.pumps = Pumps(self.loop)
        self.crowd = Crowd()
        """How many connections each client has; the wiring gives both relays the same."""
        self.iteration = IterationBudget(self.loop)
        """For costly work; the wiring gives both relays the same."""
        self.clock: Callable[[], float] = dispatcher.clock
        self.unread = Unread(timers)
        """Clients that nothing is read from."""
        self._set(options)
        self.fan_out: FanOut | None = None
        """For requests that concern all backends; without one they are balanced like others."""
        self.kinds = frozenset(BackendKind)
        """Those of the backends: only they are asked. To be set before the first connection."""
        self.servers: set[ServerConnection] = set()
        self.upstreams = UpstreamPool(
            dispatcher.pool.current, timers, self.clock, options.upstream_idle_s
        )
        self.draining = False
        self._unsubscribe = dispatcher.pool.subscribe(self.upstreams.on_snapshot)

    def _set(self, options: Http1Options) -> None:
        """Go by `options` and the dispatcher's gate, and forget what heads meant before."""
        self.options = options
        self.heads = HeadReader(
            options.head,
            body_size=options.body_size,
            gate=self.dispatcher.gate,
            noted=options.noted,
            deadline=options.deadline_header,
            identity=self.dispatcher.identity,
        )
        self.known_plan: Callable[[bytes], RequestPlan | None] = self.heads.known_request
        self.plan: Callable[[bytes], RequestPlan | None] = self.heads.plan
        if options.x_forwarded or options.forwarded or options.private_fields:
            # The backend's head differs by client, so none is ready to be sent.
            self.known_plan = self.plan = _know_nothing

    def configure(self, options: Http1Options) -> None:
        """Go by other options, and by the gate that the dispatcher has now. Requests under way
        go on as they began; who a client is stays what it was when it connected."""
        self._set(options)
        self.upstreams.idle_timeout_s = options.upstream_idle_s
        for server in self.servers:
            server.configured()

    def server_protocol(self) -> ServerConnection:
        """A protocol for one accepted connection."""
        return ServerConnection(self)

    @property
    def downstream_connections(self) -> int:
        """Open connections of clients."""
        return len(self.servers)

    @property
    def upstream_connections(self) -> int:
        """Open connections to backends."""
        return len(self.upstreams.open)

    def under_way(self) -> list[Exchange]:
        """Attempts that have a connection."""
        exchanges = (connection.exchange for connection in self.upstreams.open)
        return [exchange for exchange in exchanges if exchange is not None]

    def owing(self) -> list[ClientConnection]:
        """Connections to backends over which answers are to come."""
        return [each for each in self.upstreams.open if each.exchange is not None]

    def hedge(self, exchange: Exchange) -> HedgeExchange | None:
        """Send a request to a second backend; None where that cannot be."""
        if (
            not isinstance(exchange, Http1Exchange)
            or exchange.server is None
            or not exchange.is_retained
            or exchange.is_uploading
        ):
            return None
        hedge = HedgeExchange(exchange)
        hedge.begin()
        return None if hedge.is_over else hedge

    def cut(self, backend: Backend) -> None:
        """Close all connections to a backend, whatever runs over them."""
        for connection in tuple(self.upstreams.open):
            if connection.port is backend.ports[AppProtocol.HTTP]:
                connection.abort()

    def renew(self, backend: Backend) -> None:
        """Use no connection to a backend again: its name leads elsewhere now."""
        self.upstreams.renew(backend)

    @property
    def idle(self) -> bool:
        """Whether no client waits for an answer."""
        return not any(server.exchange is not None for server in self.servers)

    def begin_drain(self, *, gently: bool = False) -> None:
        """Close connections without requests; the others close after their next answer. Gently,
        all do that, since a client may be about to use one that it thinks is open."""
        self.draining = True
        for server in tuple(self.servers):
            server.begin_drain(gently=gently)

    async def aclose(self) -> None:
        """Close everything, requests under way included."""
        self._unsubscribe()
        for server in tuple(self.servers):
            server.abort()
        self.upstreams.close()
        # connection_lost comes in the next turns of the loop.
        for _ in range(_CLOSING_TURNS):
            if not self.servers and not self.upstreams.open:
                break
            await asyncio.sleep(0)
        self.pumps.close()


def _know_nothing(_head: bytes) -> RequestPlan | None:
    return None
