"""An HTTP/1.1 relay over fixed backends, without a control plane: for tests of the data plane."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from lb.access.gate import Gate
from lb.domain.backend import (
    Address,
    AppProtocol,
    Backend,
    BackendKind,
    BackendSpec,
    parse_address,
)
from lb.domain.pool import PoolRef
from lb.net.tasks import TaskOwner
from lb.net.timers import TimerWheel
from lb.proxy.dispatch import Dispatcher
from lb.proxy.http1.options import Http1Options
from lb.proxy.http1.relay import Http1Relay
from lb.wire.ledger import Ledger
from tests.fakes.relay import Finished, Outcomes, snapshot_of


class RunningHttp1Relay:
    """An HTTP/1.1 relay with a listener on a free port of loopback."""

    def __init__(
        self,
        backends: Sequence[Backend],
        options: Http1Options,
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
            clock=loop.time,
            ledger=self.ledger,
            max_attempts=3,
            gate=gate,
        )
        self.traffic = self.finished.meter.traffic[AppProtocol.HTTP]
        self.relay = Http1Relay(
            self.dispatcher, self.timers, self.ledger, self.tasks, self.traffic, options
        )
        self.port = 0

    def leftovers(self) -> dict[str, int]:
        """Everything that must be zero when no request is under way."""
        return {
            "open": self.dispatcher.open_exchanges,
            "held": self.ledger.held,
            "holders": len(self.ledger),
            "in_flight": sum(backend.in_flight for backend in self.backends),
            "tasks": len(self.tasks),
            "busy": sum(server.exchange is not None for server in self.relay.servers),
            "not pooled": self.relay.upstream_connections - len(self.relay.upstreams),
            "pumps": self.relay.pumps.running,
        }


@asynccontextmanager
async def running_http1_relay(
    *targets: Address | str,
    options: Http1Options | None = None,
    ceiling: int = 2**28,
    gate: Gate | None = None,
    kind: BackendKind = BackendKind.TRITON,
    **spec: Any,
) -> AsyncIterator[RunningHttp1Relay]:
    """Run an HTTP/1.1 relay over backends at `targets`."""
    backends = [
        Backend(
            BackendSpec(
                name=f"b{number}",
                http=target if isinstance(target, Address) else parse_address(target),
                kind=kind,
                **spec,
            )
        )
        for number, target in enumerate(targets)
    ]
    running = RunningHttp1Relay(backends, options or Http1Options(), ceiling, gate)
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
