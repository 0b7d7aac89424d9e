"""HTTP/2 peers on asyncio that send any frames: what no library would, on either side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from hpack import Decoder

from tests.wire.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HANG_PATH,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    FieldPair,
    Frame,
    answer,
    ping,
    settings,
    window_update,
)
from tests.wire.waiting import WAIT_S

PIECES = 400
"""Long contents are sent in about so many pieces where short ones go byte by byte."""


class ConnectionOver(AssertionError):
    """The other side closed where more was expected."""


class Peer:
    """One end of a connection. Acknowledges SETTINGS, credits DATA, decodes header blocks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.seen: list[Frame] = []
        self.heads: dict[int, list[list[FieldPair]]] = {}
        """Decoded header blocks by stream."""
        self.bodies: dict[int, bytearray] = {}
        """Payload of DATA by stream."""
        self.ended: set[int] = set()
        """Streams that the other side ended."""
        self.resets: dict[int, int] = {}
        """Codes by stream that the other side reset."""
        self.credits = True
        """Whether DATA is credited as it comes."""
        self.acknowledges = True
        """Whether SETTINGS are acknowledged."""
        self.closed = False
        self.values: dict[int, int] = {}
        """The other side's SETTINGS."""
        self.frame_size = 16_384
        """The longest frame that this side takes."""
        self._held: list[bytes] | None = None
        """What follows `send_in_pieces`."""
        self._decoder = Decoder()
        self._block = b""
        self._ends = False

    def send(self, *parts: bytes) -> None:
        """Send all at once."""
        if self._held is not None:
            self._held.extend(parts)
        elif not self.closed:
            self.writer.write(b"".join(parts))

    async def send_in_pieces(self, content: bytes, pause_s: float = 0.0) -> None:
        """Send byte by byte, or in `PIECES`, so that each is read by itself.

        What another task sends meanwhile follows: it would end up in the midst of a frame."""
        step = 1 + len(content) // PIECES
        self._held = held = list[bytes]()
        try:
            for at in range(0, len(content), step):
                if self.writer.is_closing() or self.reader.at_eof():
                    return
                self.writer.write(content[at : at + step])
                await asyncio.sleep(pause_s)
        finally:
            self._held = None
        self.send(*held)

    async def next(self) -> Frame | None:
        """The next frame; None when the other side has closed."""
        try:
            async with asyncio.timeout(WAIT_S):
                head = await self.reader.readexactly(9)
                length = int.from_bytes(head[:3], "big")
                payload = await self.reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed = True
            return None
        stream = int.from_bytes(head[5:9], "big") & 0x7FFFFFFF
        found = Frame(head[3], head[4], stream, payload)
        self.seen.append(found)
        self._note(found)
        return found

    def _note(self, found: Frame) -> None:
        kind, flags, stream, payload = found
        assert len(payload) <= self.frame_size, found[:3]
        if kind == SETTINGS and not flags & ACK:
            self.values.update(found.values)
            if self.acknowledges:
                self.send(SETTINGS_ACK)
        elif kind == DATA:
            self.bodies.setdefault(stream, bytearray()).extend(payload)
            if payload and self.credits:
                self.send(window_update(0, len(payload)))
                if not flags & END_STREAM:
                    self.send(window_update(stream, len(payload)))
        elif kind == RST_STREAM:
            self.resets[stream] = found.code
        elif kind in (HEADERS, CONTINUATION):
            self._block = payload if kind == HEADERS else self._block + payload
            self._ends = found.ends_stream if kind == HEADERS else self._ends
            if flags & END_HEADERS:
                fields = [(bytes(n), bytes(v)) for n, v in self._decoder.decode(self._block, True)]
                self.heads.setdefault(stream, []).append(fields)
        if (kind == DATA and found.ends_stream) or (
            kind in (HEADERS, CONTINUATION) and flags & END_HEADERS and self._ends
        ):
            self.ended.add(stream)

    def allow_table(self, size: int) -> None:
        """Insist on a dynamic table of at most so many bytes, as SETTINGS said."""
        self._decoder.max_allowed_table_size = size

    async def until(self, wanted: Callable[[Frame], bool]) -> Frame:
        """Read up to the frame that is wanted."""
        while True:
            found = await self.next()
            if found is None:
                raise ConnectionOver(f"closed; seen: {self.seen[-8:]}")
            if wanted(found):
                return found

    async def until_kind(self, kind: int, stream: int | None = None) -> Frame:
        """Read up to a frame of a kind, on a stream if given."""
        return await self.until(lambda f: f.kind == kind and stream in (None, f.stream))

    def is_over(self, stream: int) -> bool:
        """Whether the other side ended or reset a stream."""
        return stream in self.ended or stream in self.resets

    async def until_over(self, stream: int) -> None:
        """Read until a stream was ended or reset by the other side."""
        while not self.is_over(stream):
            await self.until(lambda f: f.stream == stream)

    async def until_closed(self) -> None:
        """Read until the other side closes."""
        while await self.next() is not None:
            pass

    async def is_alive(self, token: bytes = b"alive?!?") -> bool:
        """Whether the other side answers a PING."""
        self.send(ping(token))
        try:
            await self.until(lambda f: f.kind == PING and bool(f.flags & ACK) and f[3] == token)
        except ConnectionOver:
            return False
        return True

    def fields(self, stream: int, block: int = -1) -> dict[bytes, bytes]:
        """One decoded header block of a stream, the last by default."""
        return dict(self.heads[stream][block])

    def status(self, stream: int) -> int | None:
        """The gRPC status that a stream ended with; None where it has none."""
        value = self.fields(stream).get(b"grpc-status") if stream in self.heads else None
        return None if value is None else int(value)

    async def close(self) -> None:
        """Close this end."""
        self.closed = True
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass

    def abort(self) -> None:
        """Close this end with a TCP reset where data is unread, without waiting."""
        self.closed = True
        self.writer.transport.abort()


@asynccontextmanager
async def raw_client(
    port: int,
    values: Mapping[int, int] | None = None,
    *,
    handshake: bool = True,
    acknowledges: bool = True,
    address: str = "127.0.0.1",
) -> AsyncIterator[Peer]:
    """A client of the relay at `port`, from an address of loopback; with its SETTINGS exchange
    done, unless told otherwise."""
    peer = Peer(
        *await asyncio.open_connection("127.0.0.1", port, limit=2**24, local_addr=(address, 0))
    )
    peer.acknowledges = acknowledges
    try:
        if handshake:
            await greet(peer, values)
        yield peer
    finally:
        await peer.close()


async def greet(peer: Peer, values: Mapping[int, int] | None = None) -> None:
    """Send preface and SETTINGS, see the server's SETTINGS and its acknowledgement of ours."""
    peer.send(PREFACE, settings(values or {}))
    await peer.until(lambda f: f.kind == SETTINGS and bool(f.flags & ACK))


Script = Callable[[Peer], Awaitable[None]]
"""What a backend does with a connection whose preface has come."""


class RawBackend:
    """A backend that plays a script on every connection."""

    def __init__(self) -> None:
        self.target = ""
        self.peers: list[Peer] = []
        """Connections in the order in which they came, closed ones included."""
        self.requests: list[tuple[dict[bytes, bytes], bytes]] = []
        """Heads and bodies of complete requests, where `serve_calls` plays."""
        self.failures: list[BaseException] = []

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.target.rpartition(":")[2])


@asynccontextmanager
async def raw_backend(
    script: Callable[[RawBackend], Script] | None = None,
    values: Mapping[int, int] | None = None,
    *,
    greets: bool = True,
) -> AsyncIterator[RawBackend]:
    """Run a backend; `script(backend)` gives what is played. Plain calls are echoed without one.

    Args:
        script: see `Script`.
        values: its SETTINGS.
        greets: send SETTINGS before the script begins.
    """
    backend = RawBackend()
    play = (script or serve_calls)(backend)
    tasks: set[asyncio.Task[None]] = set()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        backend.peers.append(peer)
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            assert await reader.readexactly(len(PREFACE)) == PREFACE
            if greets:
                peer.send(settings(values or {}))
            await play(peer)
        except (ConnectionOver, ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            backend.failures.append(error)
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(accepted, "127.0.0.1", 0, limit=2**24)
    backend.target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield backend
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for failure in backend.failures:
        raise failure


def serve_calls(backend: RawBackend, reply: Callable[[int, bytes], bytes] = answer) -> Script:
    """Answer every complete request with `reply(stream, body)`, an echo by default."""

    async def play(peer: Peer) -> None:
        answered: set[int] = set()
        while await peer.next() is not None:
            for stream in sorted(peer.ended - answered):
                answered.add(stream)
                body = bytes(peer.bodies.get(stream, b""))
                head = dict(peer.heads[stream][0])
                backend.requests.append((head, body))
                if head[b":path"] != HANG_PATH:
                    peer.send(reply(stream, body))

    return play


def replies(reply: Callable[[int, bytes], bytes]) -> Callable[[RawBackend], Script]:
    """A script for `raw_backend` that answers complete requests with `reply`."""
    return lambda backend: serve_calls(backend, reply)


def plays(script: Script) -> Callable[[RawBackend], Script]:
    """A script that needs nothing of its backend."""
    return lambda _: script


async def listens(peer: Peer) -> None:
    """A script that only reads: the test says what is sent."""
    while await peer.next() is not None:
        pass
