"""Stand-in for the HTTP side of a Triton that streams: 1,000 events a second to every client.

Run as `python -m benchmarks.load.events_backend PORT...`. A POST to `.../generate_stream` is
answered with server-sent events until the client goes; each carries its number and the time when
it was sent (CLOCK_MONOTONIC, ns). The clients take turns, so that their events are spread over the
millisecond. Health calls are answered at once.
"""

from __future__ import annotations

import re
import select
import socket
import sys
import time

from benchmarks.load import payloads
from benchmarks.load.timer import Timer

EVENTS_PER_SECOND = 1000

_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_EVENT = (
    b'data: {"model_name":"simple","model_version":"1","number":"%09d","sent_ns":"%019d",'
    b'"text_output":" token"}\n\n'
)
EVENT_FIGURES = re.compile(rb'"number":"(\d{9})","sent_ns":"(\d{19})"')
"""Number and time of an event."""

_REQUEST = re.compile(rb"(\S+) (\S+) HTTP/1\.1\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_MODEL = re.compile(r"/v2/models/([a-z]+)/?(versions/1/)?(ready|config)$")


def event(number: int, now_ns: int) -> bytes:
    """One event as a chunk of its own."""
    text = _EVENT % (number, now_ns)
    return b"%x\r\n%s\r\n" % (len(text), text)


def answer(path: str) -> bytes:
    """What a Triton says to health checks; the body is empty or JSON."""
    model = _MODEL.match(path)
    if path in {"/v2/health/ready", "/v2/health/live"} or (model and model[3] == "ready"):
        return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    if path == "/v2/repository/index":
        body = payloads.repository_index_json().encode()
    elif model:
        body = payloads.model_config_json(model[1]).encode()
    else:
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


class EventsBackend:
    """All connections of all ports; one thread, one epoll."""

    def __init__(self, ports: list[int]) -> None:
        self._poll = select.epoll()
        self._listeners: dict[int, socket.socket] = {}
        self._connections: dict[int, socket.socket] = {}
        self._held: dict[int, bytes] = {}
        self._streams: list[list[int]] = []  # descriptor and number of the next event
        self._turn = 0
        self._timer = Timer()
        self._poll.register(self._timer.fd, select.EPOLLIN)
        for port in ports:
            listener = socket.create_server(("127.0.0.1", port), backlog=1024)
            listener.setblocking(False)
            self._listeners[listener.fileno()] = listener
            self._poll.register(listener, select.EPOLLIN)

    def run(self) -> None:
        """Serve until the process is ended."""
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._timer.fd:
                    self._send_events(self._timer.expired())
                elif fd in self._listeners:
                    self._accept(self._listeners[fd])
                elif fd in self._connections:
                    self._receive(fd)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[connection.fileno()] = connection
        self._held[connection.fileno()] = b""
        self._poll.register(connection, select.EPOLLIN)

    def _receive(self, fd: int) -> None:
        try:
            data = self._connections[fd].recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(fd)
            return
        held = self._held[fd] + data
        head, found, rest = held.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not found or len(rest) < (int(length[1]) if length else 0):
            self._held[fd] = held
            return
        self._held[fd] = b""  # no client of this benchmark pipelines
        request = _REQUEST.match(head + b"\r\n")
        path = request[2].decode() if request else ""
        if path.endswith("/generate_stream"):
            self._connections[fd].send(_STREAM_HEAD)
            self._streams.append([fd, 0])
            self._set_pace()
        else:
            self._connections[fd].send(answer(path))

    def _send_events(self, due: int) -> None:
        for _ in range(min(due, 4 * len(self._streams))):
            if not self._streams:
                return
            self._turn = (self._turn + 1) % len(self._streams)
            stream = self._streams[self._turn]
            chunk = event(stream[1], time.monotonic_ns())
            stream[1] += 1
            try:
                whole = self._connections[stream[0]].send(chunk) == len(chunk)
            except OSError:
                whole = False
            if not whole:  # gone, or does not keep up with 0.1 MB/s
                self._close(stream[0])

    def _close(self, fd: int) -> None:
        self._connections.pop(fd).close()
        del self._held[fd]
        left = [stream for stream in self._streams if stream[0] != fd]
        if len(left) != len(self._streams):
            self._streams = left
            self._set_pace()

    def _set_pace(self) -> None:
        self._timer.set_rate(EVENTS_PER_SECOND * len(self._streams))


if __name__ == "__main__":
    EventsBackend([int(each) for each in sys.argv[1:]]).run()
