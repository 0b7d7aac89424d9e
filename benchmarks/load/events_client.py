"""Load generator of the server-sent events: many clients that read what is sent to them.

Run as a program; prints one JSON object. A "request" is one event; its latency is from the sending
of the stand-in (its time is in the event) to its reading here. Events that are missing, or a rate
that is not kept, are errors.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import sys
import time

from benchmarks.load import payloads
from benchmarks.load.events_backend import EVENT_FIGURES, EVENTS_PER_SECOND
from benchmarks.load.tally import tally

_KEPT_SHARE = 0.5
"""Of the events that are sent: with fewer a proxy keeps them back, with a busy load core a few."""
_IDLE_LIMIT_S = 10.0


class StreamError(Exception):
    """A stream ended, or is no stream of events."""


class EventReader:
    """Takes the body of one answer apart, however it was cut into chunks and reads."""

    def __init__(self) -> None:
        self._head = b""
        self._in_head = True
        self._wire = b""
        self._body = b""
        self.next_number = 0
        self.missed = 0

    def feed(self, data: bytes) -> list[int]:
        """When the events that are complete now were sent, in ns.

        Raises:
            StreamError: not status 200, not chunked, or the body ended.
        """
        if self._in_head:
            self._head += data
            head, found, data = self._head.partition(b"\r\n\r\n")
            if not found:
                return []
            if not head.startswith(b"HTTP/1.1 200") or b"chunked" not in head.lower():
                raise StreamError(f"not a stream: {head[:200]!r}")
            self._in_head = False
        self._body += self._unchunked(data)
        whole, found, rest = self._body.rpartition(b"\n\n")
        if not found:
            return []
        self._body = rest
        sent = []
        for number, sent_ns in EVENT_FIGURES.findall(whole):
            self.missed += int(number) != self.next_number
            self.next_number = int(number) + 1
            sent.append(int(sent_ns))
        return sent

    def _unchunked(self, data: bytes) -> bytes:
        wire = self._wire + data
        position = 0
        parts = []
        while (stop := wire.find(b"\r\n", position)) >= 0:
            size = int(wire[position:stop], 16)
            if size == 0:
                raise StreamError("the stream was ended")
            if len(wire) < stop + 2 + size + 2:
                break
            parts.append(wire[stop + 2 : stop + 2 + size])
            position = stop + 2 + size + 2
        self._wire = wire[position:]
        return b"".join(parts)


def run(port: int, clients: int, seconds: float) -> dict[str, float]:
    """Read events for that long, after every client has got its first.

    Raises:
        StreamError: a stream broke, or fell silent.
    """
    poll = select.epoll()
    readers: dict[int, tuple[socket.socket, EventReader]] = {}
    body = payloads.small_http_request()
    ask = (
        b"POST /v2/models/simple/generate_stream HTTP/1.1\r\nHost: triton.example:8000\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    for _ in range(clients):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(ask)
        poll.register(connection, select.EPOLLIN)
        readers[connection.fileno()] = (connection, EventReader())
    latencies: list[float] = []
    begun = 0.0
    while not begun or time.perf_counter() - begun < seconds:
        ready = poll.poll(_IDLE_LIMIT_S)
        if not ready:
            raise StreamError(f"no event for {_IDLE_LIMIT_S:g} s")
        for fd, _ in ready:
            connection, reader = readers[fd]
            data = connection.recv(65536)
            if not data:
                raise StreamError("the proxy closed a connection")
            sent = reader.feed(data)
            now = time.monotonic_ns()
            if begun:
                latencies += [(now - each) / 1e3 for each in sent]
        if not begun and all(reader.next_number for _, reader in readers.values()):
            begun = time.perf_counter()
    took = time.perf_counter() - begun
    missed = sum(reader.missed for _, reader in readers.values())
    if len(latencies) < _KEPT_SHARE * took * clients * EVENTS_PER_SECOND:
        missed += 1
    for connection, _ in readers.values():
        connection.close()
    return tally(latencies, took, missed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("port", "connections"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    try:
        result = run(given.port, given.connections, given.seconds)
    except (StreamError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
