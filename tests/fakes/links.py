"""The gRPC relay without sockets: tests hand over what is read and look at what is written."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from lb.access.gate import Gate
from lb.domain.backend import AppProtocol
from lb.domain.pool import PoolRef
from lb.net.tasks import TaskOwner
from lb.proxy.dispatch import Dispatcher
from lb.proxy.http2.client import ClientLink
from lb.proxy.http2.link import Link
from lb.proxy.http2.relay import Http2Options, Http2Relay
from lb.proxy.http2.server import ServerLink
from lb.proxy.reruns import Reruns
from lb.wire.http2 import frames as fr
from lb.wire.ledger import Ledger
from tests.fakes.backends import make_backend
from tests.fakes.clock import FakeLoop
from tests.fakes.frames import Frame
from tests.fakes.relay import Finished, Outcomes, snapshot_of
from tests.fakes.transport import FakeTransport

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

    def __init__(self, bench: PaperRelay, link: ServerLink | ClientLink) -> None:
        self.link = link
        self.transport = FakeTransport()
        self._bench = bench
        link.connection_made(self.transport)
        bench.relay.flush()

    def sends(self, *parts: bytes) -> int:
        """Bytes of the peer arrive in one read. Returns how many turns of the loop they take."""
        self.link.data_received(b"".join(parts))
        self._bench.relay.flush()
        turns = 1
        while not self.transport.reading and not self.transport.is_closing():
            self.transport.resume_reading()
            Link.data_received(self.link, b"")
            self._bench.relay.flush()
            turns += 1
        return turns

    def gets(self) -> list[Frame]:
        """The frames that were written since the last time."""
        return frames_of(self.transport.take())

    def goes(self) -> None:
        """The peer closes the connection."""
        self.link.connection_lost(None)
        self._bench.relay.flush()


class PaperRelay:
    """A relay, its backends, and everything that counts. Needs a running loop."""

    def __init__(
        self,
        *,
        backends: int = 1,
        options: Http2Options | None = None,
        ceiling: int = 2**24,
        gate: Gate | None = None,
    ) -> None:
        self.backends = tuple(make_backend(f"b{number}") for number in range(backends))
        self.loop = FakeLoop()
        self.outcomes = Outcomes()
        self.finished = Finished()
        self.ledger = Ledger(ceiling)
        self.ref = PoolRef(snapshot_of(self.backends))
        self.dispatcher = Dispatcher(
            self.ref,
            self.outcomes,
            self.finished,
            clock=self.loop.time,
            ledger=self.ledger,
            max_attempts=3,
            gate=gate,
        )
        self.dispatcher.reruns = Reruns(
            self.ref, self.loop.time, schedule=self.loop.call_later, rng=Random(1)
        )
        self.timers = self.loop.wheel()
        self.tasks = TaskOwner()
        self.relay = Http2Relay(
            self.dispatcher,
            self.timers,
            self.ledger,
            self.tasks,
            self.finished.meter.traffic[AppProtocol.GRPC],
            options or Http2Options(),
        )

    def client(
        self, greeting: bytes = GREETING, make: Callable[[Http2Relay], ServerLink] = ServerLink
    ) -> Side:
        """A client connects and says `greeting` behind its preface."""
        side = Side(self, make(self.relay))
        if greeting:
            side.sends(fr.PREFACE, greeting)
        side.gets()
        return side

    def backend(
        self,
        number: int = 0,
        greeting: bytes = GREETING,
        make: Callable[..., ClientLink] = ClientLink,
    ) -> Side:
        """A connection to a backend is made, and the backend says `greeting`."""
        pool = self.relay.pool(self.backends[number])
        link = make(pool)
        side = Side(self, link)
        pool.discard(link)  # it waits for its greeting no more
        pool.links.append(link)
        if greeting:
            side.sends(greeting)
        preface = side.transport.written[: len(fr.PREFACE)]
        side.transport.written = side.transport.written.removeprefix(preface)
        side.gets()
        return side

    @property
    def links(self) -> list[Link]:
        """Downstream connections."""
        return list(self.relay.servers)

    def leftovers(self) -> dict[str, int]:
        """Everything that must be zero when no call is under way."""
        return {
            "open": self.dispatcher.open_exchanges,
            "held": self.ledger.held,
            "holders": len(self.ledger),
            "in_flight": sum(backend.in_flight for backend in self.backends),
            "streams": sum(len(link.streams) for link in self.links),
            "tasks": len(self.tasks),
        }

    def is_clean(self) -> bool:
        """Whether no call left anything behind."""
        return not any(self.leftovers().values())
