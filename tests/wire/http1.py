"""A scripted HTTP/1.1 backend and a raw client: bytes in, bytes out, nothing repaired.

The backend runs a script per connection; the client reads answers with h11, which is an
independent judge of whether they are legal.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import h11

from tests.wire.waiting import eventually, soon

GET = b"GET /v2/models/simple HTTP/1.1\r\nHost: a\r\n\r\n"
INFER = b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: a\r\n"
"""The head of an inference request without the fields of its body."""


def post(body: bytes = b"hello", fields: bytes = b"", *, size: int | None = None) -> bytes:
    """An inference request; its head says that the body has `size` bytes, where that is given."""
    length = len(body) if size is None else size
    return INFER + fields + b"Content-Length: %d\r\n\r\n" % length + body


def post_chunked(*chunks: bytes) -> bytes:
    """An inference request whose body comes in these chunks."""
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
    return INFER + b"Transfer-Encoding: chunked\r\n\r\n" + framed


def reset_on_close(writer: asyncio.StreamWriter) -> None:
    """Make the next close a reset."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def unread_bytes(writer: asyncio.StreamWriter) -> int:
    """What was sent over a connection of 127.0.0.1 and waits in the kernel, at either end."""
    here, there = (
        f"0100007F:{writer.get_extra_info(name)[1]:04X}" for name in ("sockname", "peername")
    )
    waiting = 0
    # Local and remote address, state, and bytes in the queues for sending and receiving (proc(5)).
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        sending, receiving = (int(each, 16) for each in queues.split(":"))
        if (local, remote) == (here, there):
            waiting += sending
        elif (local, remote) == (there, here):
            waiting += receiving
    return waiting


@dataclass
class Received:
    """One request as the backend got it."""

    head: bytes
    body: bytes = b""
    chunks: int = 0

    @property
    def target(self) -> bytes:
        """Its request target."""
        return self.head.split(b" ")[1]

    def field(self, name: bytes) -> bytes | None:
        """Value of a field; None where there is none."""
        match = re.search(rb"(?im)^" + re.escape(name) + rb":[ \t]*(.*?)[ \t]*\r$", self.head)
        return match[1] if match else None


class Peer:
    """The backend's end of one connection."""

    def __init__(
        self, backend: ScriptedBackend, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.backend = backend
        self.reader = reader
        self.writer = writer

    async def head(self) -> Received:
        """Read a request's head."""
        received = Received(await self.reader.readuntil(b"\r\n\r\n"))
        self.backend.requests.append(received)
        return received

    async def body(self, received: Received) -> None:
        """Read the body of `received`."""
        if received.field(b"transfer-encoding") is not None:
            while size := int((await self.reader.readuntil(b"\r\n"))[:-2], 16):
                received.chunks += 1
                received.body += (await self.reader.readexactly(size + 2))[:-2]
            assert await self.reader.readexactly(2) == b"\r\n"
        else:
            length = int(received.field(b"content-length") or 0)
            received.body = await self.reader.readexactly(length)

    async def request(self) -> Received:
        """Read a whole request."""
        received = await self.head()
        await self.body(received)
        return received

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def until_read(self) -> None:
        """Wait until the relay has taken all that was sent from its kernel's buffer."""
        await eventually(lambda: not unread_bytes(self.writer))

    async def reset(self) -> None:
        """Close with RST."""
        reset_on_close(self.writer)
        self.writer.close()

    async def closed(self) -> bytes:
        """Wait until the relay closes; what it sent before."""
        try:
            return await self.reader.read(-1)
        except ConnectionResetError:
            return b""


Script = Callable[[Peer], Awaitable[None]]


def reply(body: bytes = b"ok", fields: bytes = b"", status: bytes = b"200 OK") -> bytes:
    """A plain answer."""
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, fields, len(body), body)


def inference_response(model: bytes = b"simple") -> bytes:
    """The body of a short response to an inference, as it must be to be taken for one."""
    return b'{"model_name":"%b","outputs":[]}' % model


async def serve_ok(peer: Peer) -> None:
    """Answer every request."""
    while True:
        await peer.request()
        await peer.send(reply())


@dataclass
class ScriptedBackend:
    """Runs a script for each connection. `script` may be changed between connections."""

    script: Script = serve_ok
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    failures: list[BaseException] = field(default_factory=list)
    """What scripts raised, apart from connections that the relay closed."""
    target: str = ""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
        try:
            await self.script(Peer(self, reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:
            pass
        except Exception as error:
            self.failures.append(error)
        finally:
            writer.close()
            if task is not None:
                self._tasks.discard(task)

    async def stop(self) -> None:
        """End all scripts."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)


@asynccontextmanager
async def scripted_backend(
    script: Script = serve_ok, tls: ssl.SSLContext | None = None, *, port: int = 0
) -> AsyncIterator[ScriptedBackend]:
    """Run a scripted backend, on a free port unless one is given."""
    backend = ScriptedBackend(script)
    server = await asyncio.start_server(backend._serve, "127.0.0.1", port, ssl=tls)
    backend.target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield backend
    finally:
        server.close()
        await backend.stop()
    assert backend.failures == [], backend.failures


@dataclass
class Answer:
    """An answer as a client got it."""

    status: int
    fields: dict[bytes, bytes]
    body: bytes = b""
    complete: bool = False
    trailers: dict[bytes, bytes] = field(default_factory=dict)
    interim: list[int] = field(default_factory=list)


class RawClient:
    """A client that sends what it is told and reads answers with h11."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._left = b""

    async def send(self, data: bytes, *, step: int = 0) -> None:
        """Send bytes, `step` at a time if it is given."""
        for at in range(0, len(data), step or len(data) or 1):
            self.writer.write(data[at : at + (step or len(data))])
            await self.writer.drain()
            if step:
                await asyncio.sleep(0)

    async def begun(self) -> None:
        """Wait for the first bytes of an answer, which remain to be read."""
        if not self._left:
            with suppress(ConnectionResetError):  # then there is no answer
                self._left = await soon(self.reader.read(65536))

    async def answer(self, method: str = "GET") -> Answer:
        """Read one answer, which may turn out to be cut."""
        return await soon(self._answer(method))

    async def _answer(self, method: str) -> Answer:
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        parser.send(h11.Request(method=method, target="/", headers=[("Host", "a")]))
        parser.send(h11.EndOfMessage())
        if self._left:
            parser.receive_data(self._left)
            self._left = b""
        answer = Answer(0, {})
        while True:
            try:
                event = parser.next_event()
            except h11.RemoteProtocolError:
                return answer  # cut
            if event is h11.NEED_DATA:
                try:
                    data = await self.reader.read(65536)
                except ConnectionResetError:
                    return answer
                parser.receive_data(data)
            elif isinstance(event, h11.InformationalResponse):
                answer.interim.append(event.status_code)
            elif isinstance(event, h11.Response):
                answer.status = event.status_code
                answer.fields = dict(event.headers)
            elif isinstance(event, h11.Data):
                answer.body += event.data
            elif isinstance(event, h11.EndOfMessage):
                answer.complete = True
                answer.trailers = dict(event.headers)
                self._left = parser.trailing_data[0]
                return answer
            else:
                return answer

    async def is_closed(self) -> bool:
        """Wait until the relay closes; whether nothing more came before."""
        try:
            rest = await soon(self.reader.read(-1))
        except ConnectionError:  # reading it, or writing what it takes no more
            return not self._left
        return not rest and not self._left

    def half_close(self) -> None:
        """Send FIN."""
        self.writer.write_eof()

    def reset(self) -> None:
        """Close with RST."""
        reset_on_close(self.writer)
        self.writer.close()


@asynccontextmanager
async def raw_client(port: int, address: str = "127.0.0.1") -> AsyncIterator[RawClient]:
    """Connect to the relay, from an address of loopback."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass
