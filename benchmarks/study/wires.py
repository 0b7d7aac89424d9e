"""Connections of the load generator: one request at a time over HTTP/1.1, many over HTTP/2.

They know just enough to be cheap: requests are bytes made before the clock starts, answers are read
for their status only. What is refused, reset or lost is an outcome like any other.
"""

from __future__ import annotations

import re
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from hpack import Decoder

from benchmarks.load.links import LoadError
from tests.wire import frames

GOOD, RESET, CLOSED, LATE, NEVER, UNSENT = "good", "reset", "closed", "late", "never", "unsent"
"""Outcomes; an answer that is an error has its HTTP status or gRPC code instead."""

Ended = Callable[[Any, int, str], None]
"""Called with the wire, the number of the request, and the outcome."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_READ_BYTES = 1 << 17


class Wire:
    """A connection to the balancer."""

    def __init__(self, port: int, ended: Ended) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10.0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.fd = self.socket.fileno()
        self.is_closed = False
        self._ended = ended
        self.socket.settimeout(5.0)

    def receive(self) -> None:
        """Take what the far side sent."""
        try:
            data = self.socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self.close()

    def close(self) -> None:
        """End it; requests on it end as CLOSED."""
        self.is_closed = True
        self.socket.close()

    def _send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError:
            self.close()

    def _take(self, data: bytes) -> None:
        raise NotImplementedError


class HttpWire(Wire):
    """HTTP/1.1, kept alive."""

    def __init__(self, port: int, ended: Ended) -> None:
        super().__init__(port, ended)
        self.request = -1
        self._held = b""
        self._left = -1
        self._outcome = ""
        self._ends = False

    def ask(self, number: int, data: bytes) -> None:
        """Send a request; none is under way."""
        self.request = number
        self._send(data)

    def close(self) -> None:
        super().close()
        if self.request >= 0:
            number, self.request = self.request, -1
            self._ended(self, number, CLOSED)

    def give_up(self) -> None:
        """The client does not wait any longer: all it can do is to close."""
        self.request = -1
        self.close()

    def _take(self, data: bytes) -> None:
        if self._left < 0:
            head, found, data = (self._held + data).partition(b"\r\n\r\n")
            if not found:
                self._held = head
                return
            self._held = b""
            length = _LENGTH.search(head)
            if length is None:
                raise LoadError(f"an answer without its length: {head[:200]!r}")
            status = head[9:12].decode()
            self._outcome = GOOD if status == "200" else status
            self._ends = _CLOSE.search(head) is not None
            self._left = int(length[1])
        self._left -= len(data)
        if self._left <= 0:
            self._left = -1
            number, self.request = self.request, -1
            if self._ends:
                self.close()
            self._ended(self, number, self._outcome)


class GrpcWire(Wire):
    """HTTP/2 with unary calls, each body within the window that a stream begins with."""

    def __init__(self, port: int, ended: Ended) -> None:
        super().__init__(port, ended)
        self._reader = frames.FrameReader()
        self._window = frames.DEFAULT_WINDOW
        self._held: deque[tuple[int, bytes]] = deque()
        self._stream = 1
        self._requests: dict[int, int] = {}
        self._streams: dict[int, int] = {}
        self._good: set[int] = set()
        # Without a dynamic table every block of fields can be read alone, or left unread.
        self._send(frames.PREFACE + frames.opening({frames.HEADER_TABLE_SIZE: 0}))

    def ask(self, number: int, head: bytes, body: bytes) -> None:
        """Send a call."""
        stream = self._stream
        self._stream += 2
        self._requests[stream] = number
        self._streams[number] = stream
        opening = frames.headers(stream, head)
        if self._held or len(body) > self._window:
            self._held.append((stream, body))
            self._send(opening)
            return
        self._window -= len(body)
        self._send(opening + frames.data(stream, body, end=True))

    def give_up(self, number: int) -> None:
        """Reset the stream of a call."""
        stream = self._streams.pop(number)
        del self._requests[stream]
        self._good.discard(stream)
        self._send(frames.rst(stream))

    def close(self) -> None:
        super().close()
        left = list(self._streams)
        self._streams.clear()
        self._requests.clear()
        for number in left:
            self._ended(self, number, CLOSED)

    def _take(self, data: bytes) -> None:
        for found in self._reader.feed(data):
            kind, flags, stream, payload = found
            if kind == frames.DATA:
                if payload:
                    self._good.add(stream)
            elif kind == frames.RST_STREAM:
                self._over(stream, RESET)
                continue
            elif kind == frames.GOAWAY:
                self.close()
                return
            elif kind != frames.HEADERS:
                self._on_control(found)
                continue
            if flags & frames.END_STREAM:
                is_good = stream in self._good
                self._over(stream, GOOD if is_good else _code(payload, kind))

    def _over(self, stream: int, outcome: str) -> None:
        number = self._requests.pop(stream, None)
        self._good.discard(stream)
        if number is not None:
            del self._streams[number]
            self._ended(self, number, outcome)

    def _on_control(self, found: frames.Frame) -> None:
        if found.kind == frames.WINDOW_UPDATE and found.stream == 0:
            self._window += found.increment
            self._send_held()
        elif reply := frames.due_reply(found):
            self._send(reply)

    def _send_held(self) -> None:
        while self._held and len(self._held[0][1]) <= self._window:
            stream, body = self._held.popleft()
            if stream in self._requests:
                self._window -= len(body)
                self._send(frames.data(stream, body, end=True))


def _code(block: bytes, kind: int) -> str:
    """The status of a call that ended without a message."""
    if kind != frames.HEADERS:
        return "no status"
    fields = {str(name): str(value) for name, value in map(_pair, Decoder().decode(block))}
    return f"grpc {fields.get('grpc-status', fields.get(':status', '?'))}"


def _pair(field: Any) -> tuple[str, str]:
    name, value = field
    return name, value


def grpc_timeout(seconds: float) -> bytes:
    """The value of the field `grpc-timeout`, in milliseconds."""
    return b"%dm" % max(1, round(seconds * 1000))
