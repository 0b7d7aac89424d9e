"""What the connections and requests of the HTTP/1.1 relay share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import islice
from typing import Any

from lb.domain.backend import BackendKind
from lb.domain.outcome import Outcome
from lb.proxy.http1.heads import HeadReader, RequestPlan
from lb.proxy.http1.options import Http1Options
from lb.proxy.http1.paused_clients import PausedClients
from lb.proxy.http1.pool import UpstreamPool
from lb.proxy.parts import RelayParts
from lb.telemetry.meter import Traffic
from lb.telemetry.sampling import Draw


class Http1Shared:
    """The parts of the relay that its connections and requests use. It makes none of them, so it
    knows no class of theirs; `Http1Relay` does."""

    def __init__(self, parts: RelayParts, traffic: Traffic, options: Http1Options) -> None:
        """
        Args:
            parts: of the process.
            traffic: counters of the clients' side.
            options: limits and times.
        """
        self.parts = parts
        # Those of the parts that are looked up often stand here as well.
        self.loop = parts.loop
        self.dispatcher = dispatcher = parts.dispatcher
        self.placer = dispatcher.placer
        self.accounts = dispatcher.accounts
        self.retry = dispatcher.retry
        self.timers = parts.timers
        self.memory_budget = parts.memory_budget
        self.iteration = parts.iteration
        self.clock: Callable[[], float] = dispatcher.clock
        self.traffic = traffic
        self.pumps = parts.pumps
        self.paused_clients = PausedClients()
        """Clients that nothing is read from; for the monitor."""
        self._set(options)
        self.kinds = frozenset(BackendKind)
        """The kinds of the backends: only they are asked. Discovery says when there are others."""
        self.servers: set[Any] = set()
        """Clients' connections."""
        self.upstreams: UpstreamPool[Any] = UpstreamPool(
            dispatcher.pool.current, parts.timers, self.clock, options.upstream_idle_s
        )
        """Connections to backends."""
        self.abandoned: dict[Any, Outcome] = {}
        """Attempts for whose answers nobody waits but their connections, the longest abandoned
        first, and how they end without an answer."""
        self.dialling = 0
        """Connections to backends that are being made."""
        self.free_descriptors: Callable[[], int] = _no_limit
        """How many connections may be opened beside those that are open or being made."""
        self.unsubscribe = dispatcher.pool.subscribe(self.upstreams.on_snapshot)
        """Ends that these follow the pool."""
        self.draining = False
        self.draw: Draw | None = None
        """Whether the request at hand is traced, if nothing else says so; None: none is."""

    def find_descriptor(self) -> None:
        """Have one free for a connection to a backend that is about to be dialled."""
        free = self.free_descriptors()
        if free < 1:
            self.close_unneeded(1 - free)

    def close_unneeded(self, count: int) -> None:
        """Close connections to backends whose descriptors are needed: idle ones, and then those of
        abandoned attempts, the longest abandoned first."""
        count -= self.upstreams.close_idle(count)
        for attempt, outcome in tuple(islice(self.abandoned.items(), count)):
            attempt.disconnect(outcome)

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
            disclosure=options.disclosure,
            cors_origins=options.cors_origins,
            traces=options.traces,
            payloads=options.payloads,
            draws=self.parts.payloads.draws,
            variant_names=options.variant_names,
            split_models=options.split_models,
            spend=self.iteration.spend,
        )
        self.known_plan: Callable[[bytes], RequestPlan | None] = self.heads.known_request
        self.plan: Callable[[bytes], RequestPlan | None] = self.heads.plan
        if options.x_forwarded or options.forwarded or options.private_fields:
            # The backend's head differs by client, so none is ready to be sent.
            self.known_plan = self.plan = know_nothing

    def configure(self, options: Http1Options) -> None:
        """Go by other options, and by the gate that the dispatcher has now. Requests under way
        go on as they began; who a client is stays what it was when it connected."""
        self._set(options)
        self.upstreams.idle_timeout_s = options.upstream_idle_s
        for server in self.servers:
            server.configured()
        for connection in self.upstreams.open:
            connection.configured()


def _no_limit() -> int:
    return sys.maxsize


def know_nothing(_head: bytes) -> RequestPlan | None:
    return None
