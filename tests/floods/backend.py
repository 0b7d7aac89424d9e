"""A backend that observes: which requests of a flood reach it, how many at once, how they end.

HTTP/2 with raw frames and HTTP/1.1 with raw bytes, so that it costs little and believes nothing.
Run as `python -m tests.floods.backend`; the first line that it prints holds its ports.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any, cast

import uvloop
from hpack import Decoder

from tests.floods.observation import BIG_BYTES, BIG_MODEL, GOOD_MODEL, STREAM_PATH, Handled
from tests.wire import frames as fr

_READY_PATH = b"/inference.GRPCInferenceService/ServerReady"
_PIECE = bytes(16_384)
_WINDOW = 1 << 20
_HTTP_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
_RESPONSE_HEAD = fr.literals(fr.RESPONSE_FIELDS)
_TRAILERS = fr.literals(fr.OK_TRAILERS)


class Counters:
    """Everything that is counted."""

    def __init__(self) -> None:
        self.connections = 0
        self.running: set[Request] = set()
        self.clear()

    def clear(self) -> None:
        """Begin anew; what runs goes on."""
        self.good = 0
        self.flood = 0
        self.sent_bytes = 0
        self.peak = len(self.running)
        self.handled: list[Handled] = []

    def look(self) -> dict[str, Any]:
        """For `Observer`."""
        running = [Handled(each.started, 0.0, "") for each in self.running]
        return {
            "good": self.good,
            "flood": self.flood,
            "in_flight": len(self.running),
            "peak": self.peak,
            "connections": self.connections,
            "sent_bytes": self.sent_bytes,
            "handled": [*self.handled, *running],
        }


class Request:
    """A request of a flood."""

    __slots__ = ("_counters", "started")

    def __init__(self, counters: Counters) -> None:
        self.started = time.monotonic()
        self._counters = counters
        counters.flood += 1
        counters.running.add(self)
        counters.peak = max(counters.peak, len(counters.running))

    def end(self, how: str) -> None:
        """It is over."""
        if self in self._counters.running:
            self._counters.running.discard(self)
            self._counters.handled.append(Handled(self.started, time.monotonic(), how))


class Stream:
    """One HTTP/2 stream."""

    __slots__ = ("body", "credit", "owed", "path", "request", "to_send")

    def __init__(self, path: bytes, credit: int) -> None:
        self.path = path
        self.body = b""
        self.credit = credit
        self.owed = 0
        self.to_send = 0
        self.request: Request | None = None


class GrpcConnection(asyncio.Protocol):
    """gRPC by hand: counts streams that are not the good client's."""

    transport: asyncio.Transport

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._reader = fr.FrameReader(skips=len(fr.PREFACE))
        self._streams: dict[int, Stream] = {}
        self._credit = 65_535
        self._initial = 65_535
        self._owed = 0
        self._decoder = Decoder()
        self._paths: dict[bytes, bytes] = {}
        self._congested = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._counters.connections += 1
        transport.write(fr.settings({fr.INITIAL_WINDOW_SIZE: _WINDOW}) + fr.window_update(0, 2**30))

    def connection_lost(self, exc: Exception | None) -> None:
        self._counters.connections -= 1
        for stream in self._streams.values():
            if stream.request is not None:
                stream.request.end("lost")

    def pause_writing(self) -> None:
        self._congested = True

    def resume_writing(self) -> None:
        self._congested = False
        self._send_all()

    def data_received(self, data: bytes) -> None:
        for found in self._reader.feed(data):
            self._frame(found)

    def _frame(self, found: fr.Frame) -> None:
        kind, flags, stream_id, payload = found
        if kind == fr.DATA:
            self._data(stream_id, payload, bool(flags & fr.END_STREAM))
        elif kind == fr.HEADERS:
            self._head(stream_id, payload, bool(flags & fr.END_STREAM))
        elif kind == fr.RST_STREAM:
            stream = self._streams.pop(stream_id, None)
            if stream is not None and stream.request is not None:
                stream.request.end("cancelled")
        elif kind == fr.SETTINGS and not flags & fr.ACK:
            self._initial = found.values.get(fr.INITIAL_WINDOW_SIZE, self._initial)
        elif kind == fr.WINDOW_UPDATE:
            self._window(stream_id, found.increment)
        if reply := fr.due_reply(found):
            self.transport.write(reply)

    def _head(self, stream_id: int, block: bytes, end: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            path = self._paths.get(block)
            if path is None:
                fields = {bytes(n): bytes(v) for n, v in self._decoder.decode(block, True)}
                path = self._paths[block] = fields.get(b":path", b"")
                if len(self._paths) > 1000:
                    self._paths.clear()
            stream = self._streams[stream_id] = Stream(path, self._initial)
            if path == STREAM_PATH:
                stream.request = Request(self._counters)
        if end:
            self._complete(stream_id, stream)

    def _data(self, stream_id: int, payload: bytes, end: bool) -> None:
        self._owed += len(payload)
        if self._owed > 2**28:
            self.transport.write(fr.window_update(0, self._owed))
            self._owed = 0
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if len(stream.body) < 4096:
            stream.body += payload
        stream.owed += len(payload)
        if end:
            self._complete(stream_id, stream)
        elif stream.owed > _WINDOW // 2:
            self.transport.write(fr.window_update(stream_id, stream.owed))
            stream.owed = 0

    def _complete(self, stream_id: int, stream: Stream) -> None:
        if stream.path == _READY_PATH:
            self._answer(stream_id, fr.message(b"\x08\x01"))
        elif stream.path != STREAM_PATH:
            model = stream.body[7 : 7 + stream.body[6]] if len(stream.body) > 6 else b""
            if model == GOOD_MODEL:
                self._counters.good += 1
                self._answer(stream_id, stream.body)
                return
            stream.request = Request(self._counters)
            if model == BIG_MODEL:
                length = BIG_BYTES.to_bytes(4, "big")
                self.transport.write(fr.headers(stream_id, _RESPONSE_HEAD))
                stream.to_send = BIG_BYTES + 5
                self._send(stream_id, stream, b"\0" + length)

    def _answer(self, stream_id: int, body: bytes) -> None:
        self._streams.pop(stream_id)
        self.transport.write(
            fr.headers(stream_id, _RESPONSE_HEAD)
            + fr.data(stream_id, body)
            + fr.headers(stream_id, _TRAILERS, end=True)
        )

    def _window(self, stream_id: int, increment: int) -> None:
        if not stream_id:
            self._credit += increment
            self._send_all()
        elif stream_id in self._streams:
            stream = self._streams[stream_id]
            stream.credit += increment
            self._send(stream_id, stream)

    def _send_all(self) -> None:
        for stream_id, stream in tuple(self._streams.items()):
            self._send(stream_id, stream)

    def _send(self, stream_id: int, stream: Stream, first: bytes = b"") -> None:
        """Send a piece of a big answer; the next when others had their turn."""
        size = min(stream.credit, self._credit, stream.to_send, len(_PIECE))
        if size <= 0 or self._congested or stream_id not in self._streams:
            return
        stream.credit -= size
        self._credit -= size
        stream.to_send -= size
        self._counters.sent_bytes += size
        self.transport.write(fr.data(stream_id, (first + _PIECE)[:size]))
        if stream.to_send:
            asyncio.get_running_loop().call_soon(self._send, stream_id, stream)
            return
        self._streams.pop(stream_id)
        self.transport.write(fr.headers(stream_id, _TRAILERS, end=True))
        if stream.request is not None:
            stream.request.end("answered")


class HttpConnection(asyncio.Protocol):
    """HTTP/1.1 by hand, one request at a time."""

    transport: asyncio.Transport

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._buffer = b""
        self._need = -1
        """Length of the body under way; -1 while a head is awaited, -2 for chunks."""
        self._target = b""
        self._request: Request | None = None
        self._to_send = 0
        self._congested = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._counters.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._counters.connections -= 1
        if self._request is not None:
            self._request.end("cancelled")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._advance():
            pass

    def _advance(self) -> bool:
        """Whether there may be more to do with what has come."""
        if self._need == -1:
            head, mark, rest = self._buffer.partition(b"\r\n\r\n")
            if not mark:
                return False
            self._buffer = rest
            self._begin(head)
            return True
        if self._need == -2:
            body, mark, rest = self._buffer.partition(b"0\r\n\r\n")
            if not mark:
                self._buffer = self._buffer[-4:]
                return False
        elif len(self._buffer) >= self._need:
            body, rest = self._buffer[: self._need], self._buffer[self._need :]
        else:
            return False
        self._buffer = rest
        self._need = -1
        self._complete(body)
        return bool(rest)

    def _begin(self, head: bytes) -> None:
        self._target = head.split(b" ", 2)[1]
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        chunked = re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head)
        self._need = -2 if chunked else int(length[1]) if length else 0
        if b"/" + GOOD_MODEL not in self._target and b"/health/" not in self._target:
            self._request = Request(self._counters)

    def _complete(self, body: bytes) -> None:
        if b"/hang" in self._target:
            return
        if b"/" + GOOD_MODEL in self._target:
            self._counters.good += 1
        if b"/" + BIG_MODEL in self._target:
            self._to_send = BIG_BYTES
            self.transport.write(_HTTP_HEAD % BIG_BYTES)
            self._send()
            return
        self.transport.write(_HTTP_HEAD % len(body) + body)
        self._answered()

    def _answered(self) -> None:
        if self._request is not None:
            self._request.end("answered")
            self._request = None

    def pause_writing(self) -> None:
        self._congested = True

    def resume_writing(self) -> None:
        self._congested = False
        self._send()

    def _send(self) -> None:
        """Send a piece of a big answer; the next when others had their turn."""
        if not self._to_send or self._congested or self.transport.is_closing():
            return
        self._to_send -= len(_PIECE)
        self._counters.sent_bytes += len(_PIECE)
        self.transport.write(_PIECE)
        if self._to_send:
            asyncio.get_running_loop().call_soon(self._send)
        else:
            self._answered()


async def _control(
    counters: Counters, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    while word := (await reader.readline()).strip():
        if word == b"clear":
            counters.clear()
        writer.write(json.dumps(counters.look()).encode() + b"\n")
        await writer.drain()
    writer.close()


async def _serve() -> None:
    counters = Counters()
    loop = asyncio.get_running_loop()
    factories: tuple[Callable[[], asyncio.Protocol], ...] = (
        lambda: HttpConnection(counters),
        lambda: GrpcConnection(counters),
    )
    servers = [
        await loop.create_server(factory, "127.0.0.1", 0, backlog=4096) for factory in factories
    ]
    servers.append(
        await asyncio.start_server(lambda r, w: _control(counters, r, w), "127.0.0.1", 0)
    )
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    print(json.dumps(ports), flush=True)  # noqa: T201  # how the starter learns them
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve())
