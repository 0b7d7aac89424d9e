"""Both sides of the HTTP/1.1 relay on transports without sockets: every step is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random
from typing import Any

from lb.domain.backend import AppProtocol, Backend, BackendKind, BackendSpec, parse_address
from lb.domain.pool import PoolRef
from lb.net.tasks import TaskOwner
from lb.net.timers import TimerWheel
from lb.proxy.dispatch import Dispatcher
from lb.proxy.http1.client import ClientConnection
from lb.proxy.http1.options import Http1Options
from lb.proxy.http1.relay import Http1Relay
from lb.proxy.http1.server import ServerConnection
from lb.proxy.reruns import Reruns
from lb.wire.ledger import Ledger
from tests.fakes.clock import FakeLoop
from tests.fakes.relay import Finished, Outcomes, snapshot_of


class FakeTransport(asyncio.Transport):
    """Takes what is written. `waiting` is what a test says has not been sent yet."""

    def __init__(self, protocol: asyncio.Protocol, host: str = "10.1.2.3") -> None:
        super().__init__({"peername": (host, 4711), "sockname": (host, 8000)})
        self.protocol = protocol
        self.written = b""
        self.writes = 0
        self.waiting = 0
        self.reading = True
        self.ended = ""
        """`close` or `abort` once that was called."""
        self.eof_sent = False
        self.high = 0

    def write(self, data: Any) -> None:
        self.writes += 1
        self.written += bytes(data)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def take(self) -> bytes:
        """What was written since the last time."""
        written, self.written = self.written, b""
        return written

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof_sent = True

    def close(self) -> None:
        self.ended = self.ended or "close"

    def abort(self) -> None:
        self.ended = "abort"

    def lose(self, error: Exception | None = None) -> None:
        """The connection is gone, as the loop would report it."""
        self.protocol.connection_lost(error)


class Sides:
    """A relay whose connections are made by hand."""

    def __init__(
        self,
        options: Http1Options | None = None,
        *,
        backends: int = 1,
        kind: BackendKind = BackendKind.TRITON,
        ceiling: int = 1 << 20,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.now = 1000.0
        self.backends = [
            Backend(BackendSpec(name=f"b{at}", http=parse_address("127.0.0.1:1"), kind=kind))
            for at in range(backends)
        ]
        self.pool = PoolRef(snapshot_of(self.backends))
        self.outcomes = Outcomes()
        self.finished = Finished()
        self.ledger = Ledger(ceiling)
        self.tasks = TaskOwner()
        self.dispatcher = Dispatcher(
            self.pool,
            self.outcomes,
            self.finished,
            clock=lambda: self.now,
            ledger=self.ledger,
            max_attempts=3,
        )
        self.waits = FakeLoop(self.now)
        """Of requests that go again, alone."""
        self.dispatcher.reruns = Reruns(
            self.pool, self.waits.time, schedule=self.waits.call_later, rng=Random(1)
        )
        self.traffic = self.finished.meter.traffic[AppProtocol.HTTP]
        self.timers = TimerWheel(loop)
        self.relay = Http1Relay(
            self.dispatcher,
            self.timers,
            self.ledger,
            self.tasks,
            self.traffic,
            options or Http1Options(),
        )

    def client(self, host: str = "10.1.2.3") -> tuple[ServerConnection, FakeTransport]:
        """A client that has connected, to an address of its own machine."""
        server = self.relay.server_protocol()
        transport = FakeTransport(server, host)
        server.connection_made(transport)
        return server, transport

    def upstream(self, index: int = 0) -> tuple[ClientConnection, FakeTransport]:
        """An idle connection to a backend."""
        backend = self.backends[index]
        connection = ClientConnection(self.relay, backend, backend.port(AppProtocol.HTTP))
        transport = FakeTransport(connection)
        connection.connection_made(transport)
        connection.is_reused = True
        self.relay.upstreams.put(connection)
        return connection, transport

    @property
    def in_flight(self) -> int:
        """Attempts that the backends are counted for."""
        return sum(backend.in_flight for backend in self.backends)

    def is_clean(self) -> bool:
        """Nothing is left of any request."""
        return not (self.in_flight or self.dispatcher.open_exchanges or self.ledger.held)
