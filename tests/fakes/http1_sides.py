"""Both sides of the HTTP/1.1 relay on transports without sockets: every step is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from lb.domain.backend import AppProtocol, Backend, BackendKind, BackendSpec, parse_address
from tests.fakes.clock import FakeLoop
from tests.fakes.relay import Options, Relay


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
        self.is_lost = False
        """The connection is gone, and its protocol knows."""
        self.is_half_closed = False
        """A test says that the peer sends nothing more."""
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

    def is_closing(self) -> bool:
        return bool(self.ended)

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
        self.is_lost = True
        self.protocol.connection_lost(error)


class Sides(Relay):
    """A relay whose connections are made by hand."""

    def __init__(
        self,
        options: Options | None = None,
        *,
        backends: int = 1,
        kind: BackendKind = BackendKind.TRITON,
        ceiling: int = 1 << 20,
        loop: FakeLoop | None = None,
    ) -> None:
        """
        Args:
            options: values of the HTTP/1.1 side.
            backends: how many there are.
            kind: of the backends.
            ceiling: bytes that may be held.
            loop: has all clocks and timers; otherwise timers are real and the clock is `now`.
        """
        self.now = 1000.0
        self.waits = FakeLoop(self.now) if loop is None else loop
        """For retries alone, unless `loop` was given."""
        super().__init__(
            [
                Backend(BackendSpec(name=f"b{at}", http=parse_address("127.0.0.1:1"), kind=kind))
                for at in range(backends)
            ],
            http1=options,
            ceiling=ceiling,
            clock=(lambda: self.now) if loop is None else loop.time,
            timers=None if loop is None else loop.wheel(),
            retry_loop=self.waits,
        )
        self.traffic = self.finished.meter.traffic[AppProtocol.HTTP]
        # For unit tests of these classes.
        self.relay = self.parts.http1
        self.dispatcher = self.parts.dispatcher

    def client(self, host: str = "10.1.2.3") -> tuple[Any, FakeTransport]:
        """The protocol and the transport of a client that has connected, from `host`."""
        server = self.server_protocol(AppProtocol.HTTP)
        transport = FakeTransport(server, host)
        server.connection_made(transport)
        return server, transport

    def upstream(self, index: int = 0) -> tuple[Any, FakeTransport]:
        """The protocol and the transport of an idle connection to a backend."""
        made: list[FakeTransport] = []

        def connected(connection: asyncio.Protocol) -> FakeTransport:
            made.append(FakeTransport(connection))
            return made[0]

        backend = self.backends[index]
        connection = self.backend_protocol(backend, AppProtocol.HTTP, connected, is_reused=True)
        return connection, made[0]

    def is_clean(self) -> bool:
        """Nothing is left of any request; closed transports may not have been reported yet."""
        return not (self.in_flight or self.open_requests or self.memory_budget.held)
