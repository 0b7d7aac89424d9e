"""A backend that reads what reaches it with two independent parsers, and keeps a memory budget.

h11 and httptools must agree on every request; what only one of them accepts is a finding, since
some backend will be like the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import h11
import httptools

_REGISTERED: Final = frozenset(b"GET HEAD POST PUT DELETE OPTIONS PATCH TRACE".split())
"""httptools refuses methods that nobody registered."""


@dataclass
class Seen:
    """One request as it reached the backend."""

    head: bytes = b""
    method: bytes = b""
    target: bytes = b""
    host: bytes = b""
    fields: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Names in lower case."""
    body: bytes = b""
    chunks: int = 0
    """Pieces of payload that came with a chunk of their own."""
    is_complete: bool = False

    @property
    def lines(self) -> list[bytes]:
        """Of the head."""
        return self.head.split(b"\r\n")

    @property
    def names(self) -> set[bytes]:
        """Of its fields."""
        return {name for name, _ in self.fields}


class _Second:
    """What httptools makes of a request."""

    def __init__(self) -> None:
        self.parser: Any = httptools.HttpRequestParser(self)
        self.target = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.chunks = 0
        self.is_complete = False

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value.strip(b" \t")))  # RFC 9112 5.1: not of the value

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_chunk_header(self) -> None:
        self.chunks += 1

    def on_message_complete(self) -> None:
        self.is_complete = True


class MemoryBudget:
    """All that reached a backend."""

    def __init__(self) -> None:
        self.requests: list[Seen] = []
        self.violations: list[str] = []
        """Where the parsers disagree, or one refuses."""
        self.connections = 0

    def of(self, host: bytes) -> list[Seen]:
        """The requests with this Host, in their order."""
        return [seen for seen in self.requests if seen.host == host]

    def clear(self) -> None:
        """Forget what was seen."""
        self.requests.clear()
        self.violations.clear()


class _Connection(asyncio.Protocol):
    """One connection from the balancer."""

    def __init__(self, memory_budget: MemoryBudget) -> None:
        self._memory_budget = memory_budget
        self._transport: Any = None
        self._raw = b""
        self._begin()

    def _begin(self) -> None:
        self._raw = b""
        self._first = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        self._second = _Second()
        self._seen: Seen | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._memory_budget.connections += 1
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._seen is None:
            self._raw += data
        try:
            self._first.receive_data(data)
            self._read_first()
        except h11.RemoteProtocolError as error:
            self._violation(f"h11: {error}")
            return
        try:
            self._second.parser.feed_data(data)
        except httptools.HttpParserInvalidMethodError:
            if self._seen is None or self._seen.method in _REGISTERED:
                self._violation("httptools: method")
                return
            self._second.is_complete = self._seen.is_complete
            self._second.target = self._seen.target
            self._second.fields = self._seen.fields
            self._second.body = self._seen.body
        except httptools.HttpParserError as error:
            self._violation(f"httptools: {error}")
            return
        seen = self._seen
        if (seen is not None and seen.is_complete) or self._second.is_complete:
            self._answer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def _read_first(self) -> None:
        while True:
            event = self._first.next_event()
            if isinstance(event, h11.Request):
                head = self._raw[: self._raw.index(b"\r\n\r\n") + 2]
                fields = [(bytes(name), bytes(value)) for name, value in event.headers]
                host = next((value for name, value in fields if name == b"host"), b"")
                self._seen = Seen(head, bytes(event.method), bytes(event.target), host, fields)
                self._memory_budget.requests.append(self._seen)
            elif isinstance(event, h11.Data) and self._seen is not None:
                self._seen.body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage) and self._seen is not None:
                self._seen.is_complete = True
                if event.headers:
                    self._memory_budget.violations.append(f"trailers: {event.headers!r}")
            else:
                return

    def _answer(self) -> None:
        seen, second = self._seen, self._second
        if seen is None or (
            (seen.target, seen.fields, seen.body, seen.is_complete)
            != (second.target, second.fields, second.body, second.is_complete)
        ):
            self._violation("h11 and httptools differ")
            return
        if self._first.trailing_data[0]:
            self._violation("bytes behind the request")
            return
        seen.chunks = second.chunks
        said = told(seen.host, seen.target, seen.body)
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(said)
            + (b"" if seen.method == b"HEAD" else said)
        )
        self._begin()

    def _violation(self, what: str) -> None:
        self._memory_budget.violations.append(f"{what} in {self._raw[:300]!r}")
        if self._transport is not None:
            self._transport.abort()


def told(host: bytes, target: bytes, body: bytes) -> bytes:
    """What the backend answers: whose request it was."""
    return b"%b %b %d" % (host, target, len(body))


@asynccontextmanager
async def observing_backend(port: int = 0) -> AsyncIterator[tuple[int, MemoryBudget]]:
    """Listen on loopback; gives the port and the memory budget."""
    memory_budget = MemoryBudget()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(memory_budget), "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1], memory_budget
    finally:
        server.close()
