"""A TCP proxy that disturbs what passes: what networks and dying peers do, on loopback.

One `Between` listens before one port of a backend. Its `fault` applies to every connection, open
or new, from the moment it is set; `reset_share` ends open ones.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from dataclasses import dataclass
from random import Random
from types import TracebackType

_PIECE = 65536
_MOST_UNDER_WAY = 256
"""Pieces on a line; one more waits in the sockets."""


@dataclass(frozen=True)
class Fault:
    """What happens to connections; the default is nothing. Upstream is toward the backend."""

    latency_s: float = 0.0
    """All bytes come this late, both ways; no fewer a second do."""
    bytes_per_s: float = 0.0
    """At most so many on each connection, each way; 0: no limit."""
    refuse: bool = False
    """New connections are accepted and reset at once."""
    black_hole: bool = False
    """Bytes go nowhere, both ways, and new connections get no backend. What lost some is reset once
    it is over."""
    stop_reading: bool = False
    """No bytes pass, nor are any taken beyond what is at hand: the sender's buffers fill up."""
    reset_after: int = 0
    """A new connection is reset once so many bytes went upstream; 0: never."""
    half_close_after: int = 0
    """The backend's side seems to end so many bytes after the begin of its answers; 0: never."""
    corrupt_after: int = 0
    """One bit changes, so many bytes after the begin of the answers; 0: never."""


NO_FAULT = Fault()


class Between:
    """One listener on loopback, and the connections through it."""

    def __init__(self, target_port: int, rng: Random) -> None:
        self.fault = NO_FAULT
        self.port = 0
        self.accepted = 0
        self.resets = 0
        self._target_port = target_port
        self._rng = rng
        self._open: dict[_Passage, asyncio.Task[None]] = {}
        self._server: asyncio.Server
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Between:
        await self.listen()
        return self

    async def listen(self) -> None:
        """Accept connections, after `shut` at the same port as before."""
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self.port, limit=_PIECE
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def shut(self) -> None:
        """Close the port: the kernel refuses connections. Open ones are reset."""
        self._server.close()
        for passing in self._open.values():
            passing.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def set(self, fault: Fault) -> None:
        """Apply a fault from now on; NO_FAULT heals."""
        self.fault = fault
        self._changed.set()
        self._changed = asyncio.Event()

    def reset_share(self, share: float, within_bytes: int = 200_000) -> None:
        """Doom a share of the open connections: each is reset in the midst of what it sends,
        after a number of further bytes that is drawn up to `within_bytes`."""
        for passage in self._open:
            if passage.doomed_at == 0 and self._rng.random() < share:
                passage.doomed_at = passage.sent + self._rng.randrange(1, within_bytes)

    @property
    def open_connections(self) -> int:
        return len(self._open)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.fault.refuse:
            _reset(writer)
            return
        passage = _Passage(self, reader, writer)
        self._open[passage] = asyncio.ensure_future(self._pass(passage))

    async def _pass(self, passage: _Passage) -> None:
        try:
            await passage.run(self._target_port)
        except OSError:
            pass  # either side reset it
        finally:
            del self._open[passage]
            passage.reset()

    async def changed(self) -> None:
        """Wait until another fault is set."""
        await self._changed.wait()


_Line = asyncio.Queue[tuple[float, bytes | None]]
_SOMETHING: bytes | None = b"-"


class _Passage:
    """One connection through the proxy: a pump each way."""

    def __init__(
        self, between: Between, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._between = between
        self._near = (reader, writer)
        self._far: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._reset_after = between.fault.reset_after
        self.sent = 0
        """Bytes that went upstream."""
        self.doomed_at = 0
        """Reset once so many bytes went upstream; 0: never."""
        self._answered = 0

    async def run(self, target_port: int) -> None:
        while self._between.fault.black_hole:
            await self._between.changed()
        self._far = await asyncio.open_connection("127.0.0.1", target_port, limit=_PIECE)
        self.doomed_at = self.doomed_at or self._reset_after
        up = asyncio.ensure_future(self._pump(self._near[0], self._far[1], upstream=True))
        down = asyncio.ensure_future(self._pump(self._far[0], self._near[1], upstream=False))
        try:
            await asyncio.gather(up, down)
        finally:
            up.cancel()
            down.cancel()
            await asyncio.gather(up, down, return_exceptions=True)

    def reset(self) -> None:
        """End both sides with RST; harmless after their ends."""
        for _, writer in (self._near, *([self._far] if self._far else [])):
            _reset(writer)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, upstream: bool
    ) -> None:
        """Read at once and write when it is time: what comes late is still under way meanwhile, as
        on a long line, and does not hold up what follows it."""
        line = _Line(_MOST_UNDER_WAY)
        reading = asyncio.ensure_future(self._fill(line, reader))
        try:
            await self._empty(line, writer, upstream=upstream)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if writer.can_write_eof():
            writer.write_eof()

    async def _fill(self, line: _Line, reader: asyncio.StreamReader) -> None:
        """Put on the line what comes, with the time at which it is there. Nothing is the end, None
        a reset."""
        between, data = self._between, _SOMETHING
        while data:
            try:
                data = await reader.read(_PIECE)
            except OSError:
                data = None
            while between.fault.stop_reading:
                await between.changed()
            if between.fault.black_hole:
                while between.fault.black_hole:
                    await between.changed()
                data = None  # no connection goes on with bytes missing
            await line.put((time.monotonic() + between.fault.latency_s, data))

    async def _empty(
        self,
        line: _Line,
        writer: asyncio.StreamWriter,
        *,
        upstream: bool,
    ) -> None:
        while True:
            due, data = await line.get()
            if data is None:
                raise ConnectionResetError
            if not data:
                return
            fault = self._between.fault
            if fault.latency_s and due > time.monotonic():
                await asyncio.sleep(due - time.monotonic())
            if fault.bytes_per_s:
                await asyncio.sleep(len(data) / fault.bytes_per_s)
            data, ends = self._cut(data, fault, upstream=upstream)
            writer.write(data)
            await writer.drain()
            if ends:
                return

    def _cut(self, data: bytes, fault: Fault, *, upstream: bool) -> tuple[bytes, bool]:
        """What passes of some bytes, and whether this direction then ends.

        Raises:
            ConnectionResetError: the connection was doomed and these bytes reach its end.
        """
        if upstream:
            self.sent += len(data)
            if self.doomed_at and self.sent >= self.doomed_at:
                self._between.resets += 1
                raise ConnectionResetError
            return data, False
        before, self._answered = self._answered, self._answered + len(data)
        if fault.half_close_after and self._answered >= fault.half_close_after:
            return data[: max(0, fault.half_close_after - before)], True
        if fault.corrupt_after and before < fault.corrupt_after <= self._answered:
            at = fault.corrupt_after - before - 1
            data = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        return data, False


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN; bytes that wait are thrown away."""
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
