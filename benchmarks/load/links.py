"""Connections of the `player`: non-blocking, HTTP/1.1 or HTTP/2, plain or with TLS.

A link takes calls whose bytes are known in advance and tells of each answer. It keeps what the
socket or the peer's windows do not take yet, so bodies of any size may be under way.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tests.wire import frames

_RECEIVE_BYTES = 1 << 18
_CONNECT_LIMIT_S = 10.0
_DATA_BYTES = 16384
_FRAME_HEAD = struct.Struct(">BHBBI").pack
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

TLS_CIPHER = "TLS_AES_128_GCM_SHA256"
"""The only one that clients of the TLS cells offer (ours by `peers/client-tls.cnf`)."""


class LoadError(Exception):
    """The far side did something that ends the measurement."""


@dataclass(frozen=True)
class Call:
    """One request: the head of HTTP/1.1, or the header block of HTTP/2, and its body."""

    is_grpc: bool
    head: bytes
    body: bytes


Answered = Callable[["Link", float, bool, float], None]
"""Called with the link, when the call was due, whether the answer is good, and the time."""


class Link:
    """What both protocols share: the socket, and bytes that it has not taken yet."""

    def __init__(self, port: int, context: ssl.SSLContext | None, answered: Answered) -> None:
        raw = socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_LIMIT_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = raw
        if context is not None:
            self.socket = encrypted = context.wrap_socket(raw)
            if (cipher := encrypted.cipher()) is None or cipher[0] != TLS_CIPHER:
                raise LoadError(f"cipher {cipher} instead of {TLS_CIPHER}")
        self.socket.setblocking(False)
        self.fd = self.socket.fileno()
        self._is_tls = context is not None
        self._answered = answered
        self._unsent: deque[memoryview] = deque()

    def ask(self, call: Call, due: float) -> None:
        """Send a call; there is room for it."""
        raise NotImplementedError

    def _take(self, data: bytes, now: float) -> None:
        """React to bytes from the peer."""
        raise NotImplementedError

    @property
    def events(self) -> int:
        """What to wait for."""
        return select.EPOLLIN | select.EPOLLOUT if self._unsent else select.EPOLLIN

    @property
    def is_stuck(self) -> bool:
        """Whether it waits for room in the socket."""
        return bool(self._unsent)

    def receive(self) -> None:
        """Read what is there.

        Raises:
            LoadError: the connection ended.
        """
        while True:
            try:
                data = self.socket.recv(_RECEIVE_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            if not data:
                raise LoadError("the proxy closed a connection")
            self._take(data, time.perf_counter())
            if not self._is_tls:  # epoll tells again; OpenSSL may hold a record that it read
                return

    def flush(self) -> None:
        """Send as much as the socket takes."""
        while self._unsent:
            first = self._unsent[0]
            try:
                sent = self.socket.send(first)
            except (BlockingIOError, ssl.SSLWantWriteError):
                return
            if sent < len(first):
                self._unsent[0] = first[sent:]
            else:
                self._unsent.popleft()

    def _send(self, data: bytes) -> None:
        if self._unsent:
            self._unsent.append(memoryview(data))
            return
        try:
            sent = self.socket.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError):
            sent = 0
        if sent < len(data):
            self._unsent.append(memoryview(data)[sent:])


class Http1Link(Link):
    """One call at a time; the answer must be 200 and name its length."""

    def __init__(self, port: int, context: ssl.SSLContext | None, answered: Answered) -> None:
        super().__init__(port, context, answered)
        self._held = b""
        self._body_left = -1
        self._due = 0.0
        self._is_good = False

    def ask(self, call: Call, due: float) -> None:
        self._due = due
        if len(call.body) <= _DATA_BYTES:
            self._send(call.head + call.body)
            return
        self._send(call.head)
        self._send(call.body)

    def _take(self, data: bytes, now: float) -> None:
        if self._body_left < 0:
            head, found, data = (self._held + data).partition(b"\r\n\r\n")
            if not found:
                self._held = head
                return
            length = _LENGTH.search(head)
            if length is None:
                raise LoadError(f"an answer without its length: {head[:200]!r}")
            self._held = b""
            self._is_good = head.startswith(b"HTTP/1.1 200")
            self._body_left = int(length[1])
        self._body_left -= len(data)
        if self._body_left <= 0:
            self._body_left = -1
            self._answered(self, self._due, self._is_good, now)


class Http2Link(Link):
    """Many calls at once. An answer is good if a message came; it is read in small sizes only."""

    def __init__(self, port: int, context: ssl.SSLContext | None, answered: Answered) -> None:
        super().__init__(port, context, answered)
        self._reader = frames.FrameReader()
        self._next_stream = 1
        self._window = self._stream_window = frames.DEFAULT_WINDOW
        self._due: dict[int, float] = {}
        self._good: set[int] = set()
        self._rooms: dict[int, int] = {}
        self._bodies: dict[int, memoryview] = {}
        self.is_open = False
        self._send(frames.PREFACE + frames.opening())

    def ask(self, call: Call, due: float) -> None:
        stream = self._next_stream
        self._next_stream += 2
        self._due[stream] = due
        head, size = call.head, len(call.body)
        opening = _FRAME_HEAD(0, len(head), frames.HEADERS, frames.END_HEADERS, stream)
        if size <= min(_DATA_BYTES, self._window, self._stream_window):
            self._window -= size
            data = _FRAME_HEAD(0, size, frames.DATA, frames.END_STREAM, stream)
            self._send(b"".join((opening, head, data, call.body)))
            return
        self._rooms[stream] = self._stream_window
        self._bodies[stream] = memoryview(call.body)
        self._send(b"".join((opening, head, self._data(stream))))

    def _data(self, stream: int) -> bytes:
        """As much of a stream's body as the windows allow, in frames."""
        body = self._bodies[stream]
        room = min(self._window, self._rooms[stream])
        position, size = 0, len(body)
        parts: list[bytes | memoryview] = []
        while position < size and room > 0:
            piece = body[position : position + min(_DATA_BYTES, room)]
            position += len(piece)
            room -= len(piece)
            last = frames.END_STREAM if position == size else 0
            parts += (_FRAME_HEAD(0, len(piece), frames.DATA, last, stream), piece)
        self._window -= position
        if position == size:
            del self._bodies[stream], self._rooms[stream]
        else:
            self._rooms[stream] -= position
            self._bodies[stream] = body[position:]
        return b"".join(parts)

    def _take(self, data: bytes, now: float) -> None:
        for found in self._reader.feed(data):
            kind, flags, stream, payload = found
            if kind == frames.DATA:
                if payload:
                    self._good.add(stream)
            elif kind != frames.HEADERS:
                self._on_control(found)
                continue
            if flags & frames.END_STREAM:
                is_good = stream in self._good and stream not in self._bodies
                self._good.discard(stream)
                if self._bodies.pop(stream, None) is not None:
                    del self._rooms[stream]
                self._answered(self, self._due.pop(stream), is_good, now)

    def _on_control(self, found: frames.Frame) -> None:
        if reply := frames.due_reply(found):
            self._send(reply)
        stream = found.stream
        if found.kind == frames.WINDOW_UPDATE:
            if stream == 0:
                self._window += found.increment
            elif stream in self._rooms:
                self._rooms[stream] += found.increment
            for each in [stream] if stream in self._bodies else list(self._bodies):
                if data := self._data(each):
                    self._send(data)
        elif found.kind == frames.SETTINGS and not found.flags & frames.ACK:
            window = found.values.get(frames.INITIAL_WINDOW_SIZE, self._stream_window)
            for each in self._rooms:
                self._rooms[each] += window - self._stream_window
            self._stream_window = window
            self.is_open = True
        elif found.kind == frames.RST_STREAM and stream in self._due:
            raise LoadError(f"stream {stream} was reset, code {found.code}")
        elif found.kind == frames.GOAWAY:
            raise LoadError(f"GOAWAY {found.payload.hex()}")


def tls_context(protocol: str) -> ssl.SSLContext:
    """A client of TLS 1.3 that asks for one protocol and takes any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    return context
