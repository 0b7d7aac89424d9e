"""Playing rows of the HTTP/2 corpus: what is sent, what must be heard, what may arrive behind."""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.corpus.http2_row import (
    TOKEN,
    TOKEN_FIELD,
    Acknowledged,
    GoAway,
    Ignored,
    Payload,
    Pong,
    Reach,
    Reset,
    Right,
    Row,
    SettingsFirst,
    Status,
)
from tests.wire import frames as fr
from tests.wire.frames import HANG_PATH, FieldPair, answer
from tests.wire.http2 import Peer, RawBackend, Script, greet
from tests.wire.waiting import eventually

PAUSE_S = 0.001
"""Between two pieces for another process: without it most of its reads bring several, with it 19 of
20 bring one. In this process, giving way to the event loop does."""
_REQUIRED = {b":method", b":scheme", b":path"}
_CONNECTION_FIELDS = {
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"transfer-encoding",
    b"upgrade",
}


# What arrives behind


class Arrival:
    """One request as it arrived at the backend."""

    def __init__(self, head: list[FieldPair]) -> None:
        self.head = head
        self.body = b""
        self.trailers: list[FieldPair] = []
        self.complete = False
        self.reset: int | None = None

    @property
    def path(self) -> bytes:
        return dict(self.head)[b":path"]

    @property
    def is_over(self) -> bool:
        """Nothing more of it will come."""
        return self.complete or self.reset is not None


class MemoryBudget:
    """Everything that reached a backend, by the token in its head."""

    def __init__(self) -> None:
        self.arrivals: dict[bytes, list[Arrival]] = defaultdict(list)

    def script(self, _: RawBackend) -> Script:
        """Note requests as they come, and answer them; see `raw_backend`."""
        return self._play

    async def _play(self, peer: Peer) -> None:
        under_way: dict[int, Arrival] = {}
        try:
            while (found := await self._next(peer)) is not None:
                if self._note(peer, found, under_way):
                    await self.reply(peer, found.stream)
        finally:
            for arrival in under_way.values():
                if not arrival.complete:
                    arrival.reset = fr.CANCEL

    async def _next(self, peer: Peer) -> fr.Frame | None:
        """The next frame, however long a connection is quiet."""
        while True:
            try:
                return await peer.next()
            except TimeoutError:
                pass

    async def reply(self, peer: Peer, stream: int) -> None:
        """Answer a complete request."""
        peer.send(answer(stream))

    def _note(self, peer: Peer, found: fr.Frame, under_way: dict[int, Arrival]) -> bool:
        """Returns whether a request is to be answered now."""
        stream = found.stream
        arrival = under_way.get(stream)
        if arrival is None:
            if stream not in peer.heads:
                return False
            head = peer.heads[stream][0]
            arrival = under_way[stream] = Arrival(head)
            self.arrivals[dict(head).get(TOKEN_FIELD, b"")].append(arrival)
        if found.kind == fr.RST_STREAM:
            arrival.reset = found.code
        elif stream in peer.ended and not arrival.complete:
            arrival.complete = True
            arrival.body = bytes(peer.bodies.get(stream, b""))
            arrival.trailers = peer.heads[stream][-1] if len(peer.heads[stream]) > 1 else []
            return arrival.path != HANG_PATH
        return False


def flaw(head: list[FieldPair]) -> str:
    """What is wrong with a head that we sent to a backend; empty when nothing is."""
    names = [name for name, _ in head]
    pseudo = [name for name in names if name.startswith(b":")]
    if names[: len(pseudo)] != pseudo or len(set(pseudo)) != len(pseudo):
        return "pseudo-fields after others, or twice"
    if not _REQUIRED <= set(pseudo) <= _REQUIRED | {b":authority"}:
        return "pseudo-fields missing or unknown"
    for name, value in head:
        if name != name.lower() or not name.isascii() or b" " in name or name in (b"", b":"):
            return f"name {name!r}"
        if any(byte in value for byte in b"\0\r\n") or value.strip(b" \t") != value:
            return f"value of {name!r}"
    if _CONNECTION_FIELDS & set(names) or (b"te", b"trailers") not in head:
        return "fields of a connection, or no te"
    return ""


async def check_arrivals(row: Row, arrivals: list[Arrival]) -> None:
    """What reached the backend is what may."""
    reach: Reach = row.reaches
    await eventually(
        lambda: len(arrivals) >= reach.least and all(arrival.is_over for arrival in arrivals)
    )
    complete = sum(arrival.complete for arrival in arrivals)
    assert reach.least <= complete <= reach.most, f"{complete} complete requests arrived"
    assert reach.begun or complete == len(arrivals), f"{len(arrivals)} requests began to arrive"
    for arrival in arrivals:
        assert not flaw(arrival.head), flaw(arrival.head)
        assert not set(row.absent) & {name for name, _ in arrival.head}, arrival.head
        if arrival.complete:
            carried = [*arrival.head, *arrival.trailers]
            assert set(row.carries) <= set(carried), carried
            assert row.body in (None, arrival.body), arrival.body[:100]


# What is heard


async def hear(right: Right, peer: Peer) -> None:
    """Check the answer; raises AssertionError where it is not the right one."""
    match right:
        case GoAway(code):
            found = await peer.until_kind(fr.GOAWAY)
            assert found.code == code, found
            assert len(found.payload) <= 8 + 100, "a short text"
            await peer.until_closed()
        case Reset(code, stream):
            found = await peer.until(
                lambda f: f.kind == fr.GOAWAY or (f.kind == fr.RST_STREAM and f.stream == stream)
            )
            assert (found.kind, found.code) == (fr.RST_STREAM, code), found
            assert await peer.is_alive()
        case Status(grpc, stream, http, then):
            await peer.until_over(stream)
            assert stream in peer.ended, peer.resets
            assert peer.heads[stream][0][0] == (b":status", http)
            assert peer.status(stream) == grpc, peer.heads[stream]
            assert await peer.is_alive()
            assert peer.resets.get(stream) == then
        case Ignored():
            before = len(peer.seen)
            assert await peer.is_alive()
            said = [f for f in peer.seen[before:] if f.kind not in (fr.WINDOW_UPDATE, fr.SETTINGS)]
            assert len(said) == 1, said
        case Payload(size, stream):
            assert await peer.is_alive()
            while len(peer.bodies.get(stream, b"")) < size:
                await peer.until_kind(fr.DATA, stream)
            assert await peer.is_alive(b"no more?")
            assert len(peer.bodies.get(stream, b"")) == size
        case Pong(payload):
            found = await peer.until_kind(fr.PING)
            assert (found.flags, found.payload) == (fr.ACK, payload), found
        case Acknowledged(times):
            assert await peer.is_alive()
            found_acks = [f for f in peer.seen if f.kind == fr.SETTINGS and f.flags & fr.ACK]
            assert len(found_acks) == times, found_acks
        case SettingsFirst():
            found = await peer.next() or peer.seen[0]
            assert (found.kind, found.flags & fr.ACK) == (fr.SETTINGS, 0), found


async def play(
    row: Row, peer: Peer, token: bytes, *, piecewise: bool, pause_s: float = 0.0
) -> None:
    """Play a row on a connection whose preface is still to be sent."""
    peer.acknowledges = row.acknowledges
    if any(isinstance(step, Payload) for step in row.steps):
        peer.credits = False
    if row.greets:
        await greet(peer)
    sending: asyncio.Task[None] | None = None
    try:
        for step in row.steps:
            if isinstance(step, bytes):
                sent = step.replace(TOKEN, token)
                if piecewise:
                    sending = asyncio.create_task(peer.send_in_pieces(sent, pause_s))
                else:
                    peer.send(sent)
                continue
            if sending is not None and not isinstance(step, GoAway):
                await sending
            await hear(step, peer)
    finally:
        # After GOAWAY nobody reads the rest, and writing on would lose what was heard.
        if sending is not None:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


@asynccontextmanager
async def connected(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    """A client's connection on which nothing was sent yet, with ALPN h2 where there is TLS."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1",
        port,
        limit=2**24,
        ssl=tls,
        server_hostname=None if tls is None else "localhost",
    )
    peer = Peer(reader, writer)
    try:
        yield peer
    finally:
        peer.abort()


async def good_call(port: int, tls: ssl.SSLContext | None = None) -> None:
    """A call on a fresh connection is answered."""
    async with connected(port, tls) as peer:
        await greet(peer)
        peer.send(fr.call(1))
        await peer.until_over(1)
        assert peer.status(1) == 0, peer.heads
