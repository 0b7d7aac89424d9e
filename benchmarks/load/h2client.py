"""Load generator for what h2load cannot do: header blocks that never repeat, and streams.

Run as a program; prints one JSON object. `unique` sends unary calls whose `traceparent` and
`grpc-timeout` differ in every request, from byte strings made before the clock starts. `stream`
keeps many bidirectional calls open and one message in flight on each; a "request" is then a message
and its echo.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import select
import socket
import struct
import sys
import time

from benchmarks.load import payloads
from benchmarks.load.tally import tally
from tests.wire import frames

_RECEIVE_BYTES = 1 << 18
_TRACEPARENT_BYTES = 55
_TIMEOUT_BYTES = 8
_IDLE_LIMIT_S = 10.0


class LoadError(Exception):
    """The far side did something that ends the measurement."""


def header_prefix(path: str) -> bytes:
    """The request fields of a gRPC call, as grpc clients send them."""
    return (
        b"\x83\x86"  # :method POST, :scheme http (static table)
        + frames.literal(b":path", path.encode())
        + frames.literal(b":authority", b"triton.example:8001")
        + frames.literal(b"te", b"trailers")
        + frames.literal(b"content-type", b"application/grpc")
        + frames.literal(b"user-agent", b"grpc-python/1.60.0 grpc-c/37.0.0 (linux; chttp2)")
        + frames.literal(b"grpc-accept-encoding", b"identity, deflate, gzip")
    )


class Connection:
    """One HTTP/2 connection: reads frames, keeps the peer's windows, counts and times answers."""

    def __init__(self, streams: int, requests: int) -> None:
        self.streams = streams
        self.requests = requests
        self.sent = 0
        self.done = 0
        self.errors = 0
        self.latencies = array.array("d")
        self.is_open = False
        self.window = frames.DEFAULT_WINDOW
        self.stream_window = frames.DEFAULT_WINDOW
        self._reader = frames.FrameReader()

    def connect(self, port: int) -> None:
        """Connect and send our settings; `is_open` turns true with the peer's."""
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(frames.PREFACE + frames.opening())

    def start(self) -> None:
        """Send the first requests; the peer's settings are known."""
        raise NotImplementedError

    def flush(self) -> None:
        """Send what has become possible since the last call."""
        raise NotImplementedError

    def on_data(self, stream: int, payload: bytes, now: float) -> None:
        """Take a DATA frame."""
        raise NotImplementedError

    def on_end(self, stream: int, now: float) -> None:
        """The far side has ended a stream."""
        raise NotImplementedError

    def credit_stream(self, stream: int, credit: int) -> None:
        """The peer gave a stream more room; only long streams need it."""

    def receive(self) -> None:
        """Read once and react to every frame.

        Raises:
            LoadError: the connection ended.
        """
        data = self.socket.recv(_RECEIVE_BYTES)
        if not data:
            raise LoadError("the proxy closed a connection")
        now = time.perf_counter()
        for found in self._reader.feed(data):
            kind, flags, stream, payload = found
            if kind == frames.DATA:
                self.on_data(stream, payload, now)
            elif kind != frames.HEADERS:
                self._on_control(found)
                continue
            if flags & frames.END_STREAM:
                self.on_end(stream, now)
        if self.sent:
            self.flush()

    def _on_control(self, found: frames.Frame) -> None:
        if reply := frames.due_reply(found):
            self.socket.sendall(reply)
        if found.kind == frames.SETTINGS and not found.flags & frames.ACK:
            self.stream_window = found.values.get(frames.INITIAL_WINDOW_SIZE, self.stream_window)
            self.is_open = True
        elif found.kind == frames.WINDOW_UPDATE:
            if found.stream:
                self.credit_stream(found.stream, found.increment)
            else:
                self.window += found.increment
        elif found.kind == frames.RST_STREAM:
            raise LoadError(f"stream {found.stream} was reset, code {found.code}")
        elif found.kind == frames.GOAWAY:
            raise LoadError(f"GOAWAY {found.payload.hex()}")


class UniqueCalls(Connection):
    """Unary calls from a prepared byte string, `streams` of them in flight."""

    def __init__(self, streams: int, requests: int) -> None:
        super().__init__(streams, requests)
        self._message = payloads.small_grpc_request()
        self._prepared, self._size = self._prepare(requests)
        self._started = array.array("d", bytes(8 * requests))
        self._answered = 0

    def _prepare(self, requests: int) -> tuple[memoryview, int]:
        """All requests one after the other; each has the same size."""
        prefix = header_prefix(payloads.INFER_PATH)
        prefix += b"\x00\x0btraceparent" + bytes([_TRACEPARENT_BYTES])
        timeout_name = b"\x00\x0cgrpc-timeout" + bytes([_TIMEOUT_BYTES])
        size = len(prefix) + _TRACEPARENT_BYTES + len(timeout_name) + _TIMEOUT_BYTES
        kind_and_flags = struct.pack(">BB", frames.HEADERS, frames.END_HEADERS)
        head = struct.pack(">I", size)[1:] + kind_and_flags
        data_head = frames.frame(frames.DATA, frames.END_STREAM, 0, self._message)[:5]
        random = os.urandom(24 * requests).hex()
        parts = []
        for number in range(requests):
            stream = struct.pack(">I", 2 * number + 1)
            hexes = random[48 * number : 48 * number + 48]
            trace = f"00-{hexes[:32]}-{hexes[32:]}-01".encode()
            timeout = timeout_name + b"%07du" % (9_999_999 - number % 5_000_000)  # 5 to 10 s
            parts.append(
                b"".join((head, stream, prefix, trace, timeout, data_head, stream, self._message))
            )
        return memoryview(b"".join(parts)), len(parts[0])

    def start(self) -> None:
        self.flush()

    def flush(self) -> None:
        room = min(
            self.streams - (self.sent - self.done),
            self.requests - self.sent,
            self.window // len(self._message),
        )
        if room <= 0:
            return
        first = self.sent
        self.sent += room
        self.window -= room * len(self._message)
        now = time.perf_counter()
        for number in range(first, self.sent):
            self._started[number] = now
        self.socket.sendall(self._prepared[first * self._size : self.sent * self._size])

    def on_data(self, stream: int, payload: bytes, now: float) -> None:
        self._answered += bool(payload)

    def on_end(self, stream: int, now: float) -> None:
        self.done += 1
        if self._answered < self.done:  # an error: trailers without a message
            self._answered += 1
            self.errors += 1
        self.latencies.append(now - self._started[stream >> 1])


class Streams(Connection):
    """Bidirectional calls that stay open; one message in flight on each."""

    def __init__(self, streams: int, requests: int) -> None:
        super().__init__(streams, requests)
        self._message = payloads.small_grpc_request()
        self._ready = [2 * number + 1 for number in range(streams)]
        self._room = dict.fromkeys(self._ready, 0)
        self._missing = dict.fromkeys(self._ready, 0)
        self._started: dict[int, float] = {}

    def start(self) -> None:
        block = header_prefix(payloads.STREAM_PATH)
        for stream in self._ready:
            self._room[stream] = self.stream_window
            self.socket.sendall(frames.headers(stream, block))
        self.flush()

    def credit_stream(self, stream: int, credit: int) -> None:
        self._room[stream] += credit

    def flush(self) -> None:
        size = len(self._message)
        waiting: list[int] = []
        out: list[bytes] = []
        now = time.perf_counter()
        for stream in self._ready:
            if self.sent >= self.requests or self.window < size or self._room[stream] < size:
                waiting.append(stream)
                continue
            self.window -= size
            self._room[stream] -= size
            self.sent += 1
            self._missing[stream] = size
            self._started[stream] = now
            out.append(frames.data(stream, self._message))
        self._ready = waiting
        if out:
            self.socket.sendall(b"".join(out))

    def on_data(self, stream: int, payload: bytes, now: float) -> None:
        self._missing[stream] -= len(payload)
        if self._missing[stream] == 0:
            self.done += 1
            self.latencies.append(now - self._started[stream])
            self._ready.append(stream)

    def on_end(self, stream: int, now: float) -> None:
        raise LoadError(f"stream {stream} was ended by the far side")


KINDS: dict[str, type[Connection]] = {"unique": UniqueCalls, "stream": Streams}


def run(kind: str, port: int, connections: int, streams: int, requests: int) -> dict[str, float]:
    """Run to the last answer; returns requests, seconds, errors and latencies in microseconds.

    Raises:
        LoadError: the far side ended a connection or stream, or fell silent.
    """
    share = max(streams, requests // connections)
    peers = [KINDS[kind](streams, share) for _ in range(connections)]
    poll = select.epoll()
    by_fd: dict[int, Connection] = {}
    for peer in peers:
        peer.connect(port)
        poll.register(peer.socket, select.EPOLLIN)
        by_fd[peer.socket.fileno()] = peer

    def turn() -> None:
        events = poll.poll(_IDLE_LIMIT_S)
        if not events:
            raise LoadError(f"no byte for {_IDLE_LIMIT_S:g} s")
        for fd, _ in events:
            by_fd[fd].receive()

    while not all(peer.is_open for peer in peers):
        turn()
    begun = time.perf_counter()
    for peer in peers:
        peer.start()
    while not all(peer.done >= peer.requests for peer in peers):
        turn()
    seconds = time.perf_counter() - begun
    for peer in peers:
        peer.socket.close()
    latencies = (latency * 1e6 for peer in peers for latency in peer.latencies)
    return tally(latencies, seconds, sum(peer.errors for peer in peers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    for name in ("port", "connections", "streams", "requests"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    try:
        result = run(given.kind, given.port, given.connections, given.streams, given.requests)
    except (LoadError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
