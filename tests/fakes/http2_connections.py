"""The gRPC relay without sockets: tests hand over what is read and look at what is written."""

from __future__ import annotations

import asyncio
from typing import Any

from lb.access.gate import Gate
from lb.domain.backend import AppProtocol
from lb.wire.http2 import frames as fr
from tests.fakes.backends import make_backend
from tests.fakes.clock import FakeLoop
from tests.fakes.relay import USUAL, Form, Http2Facts, Options, Relay
from tests.fakes.transport import FakeTransport
from tests.wire.frames import Frame

GREETING = fr.settings({}) + fr.SETTINGS_ACK + fr.window_update(0, 2**30)


def frames_of(data: bytes) -> list[Frame]:
    """All frames in `data`, which must hold nothing else."""
    frames = []
    while data:
        length, kind, flags = int.from_bytes(data[:3], "big"), data[3], data[4]
        stream = int.from_bytes(data[5:9], "big")
        assert len(data) >= 9 + length
        frames.append(Frame(kind, flags, stream, data[9 : 9 + length]))
        data = data[9 + length :]
    return frames


class Side:
    """One connection of the relay, as its peer has it."""

    def __init__(
        self, bench: PaperRelay, connection: Any, transport: FakeTransport | None = None
    ) -> None:
        """
        Args:
            bench: the relay.
            connection: the protocol of its connection; only unit tests may use more of it.
            transport: where `connection` was connected already.
        """
        self.connection: Any = connection
        self._bench = bench
        if transport is None:
            transport = FakeTransport()
            connection.connection_made(transport)
            bench.flush()
        self.transport = transport

    def sends(self, *parts: bytes) -> int:
        """Bytes of the peer arrive in one read. Returns how many turns of the loop they take."""
        self.connection.data_received(b"".join(parts))
        self._bench.flush()
        turns = 1
        while not self.transport.reading and not self.transport.is_closing():
            self.transport.resume_reading()
            self._bench.read_on(self.connection)
            self._bench.flush()
            turns += 1
        return turns

    def gets(self) -> list[Frame]:
        """The frames that were written since the last time."""
        return frames_of(self.transport.take())

    @property
    def facts(self) -> Http2Facts:
        """The relay's state of the connection."""
        return self._bench.http2_facts(self.connection)

    def pause(self) -> None:
        """The peer takes nothing more."""
        self.connection.pause_writing()

    def resume(self) -> None:
        """The peer takes something again."""
        self.connection.resume_writing()

    def goes(self) -> None:
        """The peer closes the connection."""
        self.connection.connection_lost(None)
        self._bench.flush()


class PaperRelay(Relay):
    """A relay, its backends, and everything that counts. Needs a running loop."""

    def __init__(
        self,
        *,
        backends: int = 1,
        options: Options | None = None,
        ceiling: int = 2**24,
        gate: Gate | None = None,
        form: Form = USUAL,
        has_own_queue: bool = False,
    ) -> None:
        """
        Args:
            backends: how many there are.
            options: values of the HTTP/2 side.
            ceiling: bytes that may be held.
            gate: who may do what.
            form: of connections.
            has_own_queue: queued requests wait on our loop instead of the running one.
        """
        self.loop = FakeLoop()
        super().__init__(
            tuple(make_backend(f"b{number}") for number in range(backends)),
            http2=options,
            ceiling=ceiling,
            gate=gate,
            clock=self.loop.time,
            timers=self.loop.wheel(),
            retry_loop=self.loop,
            form=form,
            queue_loop=self.loop if has_own_queue else None,
        )
        self.ref = self.pool
        # For unit tests of these classes.
        self.relay = self.parts.http2
        self.dispatcher = self.parts.dispatcher

    def client(self, greeting: bytes = GREETING) -> Side:
        """A client connects and says `greeting` behind its preface."""
        side = self.silent_client()
        if greeting:
            side.sends(fr.PREFACE, greeting)
        side.gets()
        return side

    def silent_client(self) -> Side:
        """A client connects, and has said nothing yet."""
        return Side(self, self.server_protocol(AppProtocol.GRPC))

    def backend(self, number: int = 0, greeting: bytes = GREETING) -> Side:
        """A connection to a backend is made, and the backend says `greeting`."""
        side = self.silent_backend(number)
        if greeting:
            side.sends(greeting)
        preface = side.transport.written[: len(fr.PREFACE)]
        side.transport.written = side.transport.written.removeprefix(preface)
        side.gets()
        return side

    def silent_backend(self, number: int = 0) -> Side:
        """A connection to a backend is made, which has said nothing yet."""
        transport = FakeTransport()

        def connected(_link: asyncio.Protocol) -> FakeTransport:
            return transport

        connection = self.backend_protocol(self.backends[number], AppProtocol.GRPC, connected)
        return Side(self, connection, transport)

    @property
    def connections(self) -> list[Any]:
        """Downstream connections."""
        return list(self.parts.http2.servers)
