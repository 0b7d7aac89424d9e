"""What the connections and requests of the HTTP/1.1 relay share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from lb.domain.backend import BackendKind
from lb.net.crowd import Crowd
from lb.net.iteration import IterationBudget
from lb.net.splice import Pumps
from lb.net.tasks import TaskOwner
from lb.net.timers import TimerWheel
from lb.net.tls.client import ClientTlsBook
from lb.proxy.dispatch import Dispatcher
from lb.proxy.fan_out.question import FanOut
from lb.proxy.http1.heads import HeadReader, RequestPlan
from lb.proxy.http1.options import Http1Options
from lb.proxy.http1.pool import UpstreamPool
from lb.proxy.http1.unread import Unread
from lb.telemetry.meter import Traffic
from lb.wire.ledger import Ledger


class Http1Shared:
    """The parts of the relay that its connections and requests use. It makes none of them, so it
    knows no class of theirs; `Http1Relay` does."""

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
        self.servers: set[Any] = set()
        """Clients' connections."""
        self.upstreams: UpstreamPool[Any] = UpstreamPool(
            dispatcher.pool.current, timers, self.clock, options.upstream_idle_s
        )
        """Connections to backends."""
        self.unsubscribe = dispatcher.pool.subscribe(self.upstreams.on_snapshot)
        """Ends that these follow the pool."""
        self.draining = False

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


def _know_nothing(_head: bytes) -> RequestPlan | None:
    return None
