"""The HTTP/1.1 data plane: what its connections share, and their life."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from lb.domain.backend import AppProtocol, Backend
from lb.proxy.exchange import Exchange
from lb.proxy.http1.client import Http1ClientConnection
from lb.proxy.http1.exchange import Http1Attempt, Http1Exchange
from lb.proxy.http1.server import Http1ServerConnection
from lb.proxy.http1.shared import Http1Shared

_CLOSING_TURNS: Final = 100
"""Turns of the loop that connections get to report that they are closed; they need a few."""


class Http1Relay(Http1Shared):
    """Owns downstream connections and the pool of upstream ones."""

    def server_protocol(self) -> Http1ServerConnection:
        """A protocol for one accepted connection."""
        return Http1ServerConnection(self)

    @property
    def upstream_connections(self) -> int:
        """Open connections to backends."""
        return len(self.upstreams.open)

    def under_way(self) -> list[Exchange]:
        """Requests whose attempt has a connection."""
        attempts = (connection.attempt for connection in self.upstreams.open)
        return [
            attempt.exchange
            for attempt in attempts
            if attempt is not None and attempt.exchange.attempt is attempt
        ]

    def open_exchanges(self) -> Iterator[Exchange]:
        """Requests that have begun and are not finished."""
        for server in self.servers:
            exchange = server.exchange
            if exchange is not None and not exchange.finished:
                yield exchange

    def owing(self) -> list[Http1ClientConnection]:
        """Connections to backends over which answers are to come."""
        return [each for each in self.upstreams.open if each.attempt is not None]

    def hedge(self, exchange: Exchange) -> Http1Attempt | None:
        """Send a request to a second backend; None where that cannot be."""
        return exchange.begin_hedge() if isinstance(exchange, Http1Exchange) else None

    def cancel_hedge(self, exchange: Exchange) -> None:
        """Nobody needs the second attempt of a request any more."""
        if isinstance(exchange, Http1Exchange):
            exchange.cancel_hedge()

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
        self.unsubscribe()
        for server in tuple(self.servers):
            server.abort()
        self.upstreams.close()
        # connection_lost comes in the next iterations of the loop.
        for _ in range(_CLOSING_TURNS):
            if not self.servers and not self.upstreams.open:
                break
            await asyncio.sleep(0)
