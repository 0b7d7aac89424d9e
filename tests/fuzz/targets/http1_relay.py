"""The HTTP/1.1 relay as a whole, without sockets: what a client or a backend sends, the other side
gets in a form that h11 accepts, or not at all; and nothing is left when all have gone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any

import h11

from tests.fakes.http1_sides import FakeTransport, Sides
from tests.fuzz.target import Target, cuttings
from tests.fuzz.targets.heads import REQUEST_WORDS, REQUESTS, RESPONSE_WORDS, RESPONSES
from tests.fuzz.watching import no_failure_is_logged

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
_REFUSALS = {400, 405, 413, 414, 417, 431, 501, 505}
_STATUS = re.compile(rb"HTTP/1\.1 ([2-5]\d\d) ")


class _Upstream:
    """A backend that answers every whole request, and lets h11 judge what it gets."""

    def __init__(self, sides: Sides) -> None:
        self.connection, self.transport = sides.upstream()
        self.requests: list[tuple[Any, ...]] = []
        self._new_judge()

    def _new_judge(self) -> None:
        self._judge = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 17)
        self._head: h11.Request | None = None
        self._body = b""

    def work(self) -> bool:
        """Take what was written; True when a request was answered."""
        written = self.transport.take()
        if not written:
            return False
        self._judge.receive_data(written)
        while True:
            event = self._judge.next_event()
            if isinstance(event, h11.Request):
                self._head = event
            elif isinstance(event, h11.Data):
                self._body += bytes(event.data)
            else:
                break
        if not isinstance(event, h11.EndOfMessage) or self._head is None:
            return False
        head = self._head
        self.requests.append((head.method, head.target, list(head.headers), self._body))
        assert not self._judge.trailing_data[0], "more than one request at a time"
        self._new_judge()
        if not self.transport.is_lost:
            body = b"" if head.method == b"HEAD" else b"ok"
            self.connection.data_received(_ANSWER + body)
        return True


class _World:
    """One client, and always an idle connection to a backend."""

    def __init__(self) -> None:
        self.sides = Sides(ceiling=1 << 20)
        self.server, self.client = self.sides.client()
        self.upstreams: list[_Upstream] = []
        self.requests: list[tuple[Any, ...]] = []
        self._gone: set[FakeTransport] = set()

    def client_says(self, data: bytes) -> None:
        """Bytes arrive, or their end, and everything that follows from them happens."""
        if not self.sides.idle_upstreams:
            self.upstreams.append(_Upstream(self.sides))
        if not self.client.ended and not self.client.is_half_closed:
            if data:
                self.server.data_received(data)
            else:
                self.client.is_half_closed = True
                self.server.eof_received()
        while sum(self._work(upstream) for upstream in tuple(self.upstreams)):
            pass

    def _work(self, upstream: _Upstream) -> bool:
        if not self.sides.idle_upstreams:
            self.upstreams.append(_Upstream(self.sides))
        worked = upstream.work()
        self.requests += upstream.requests
        upstream.requests.clear()
        return worked

    def lose(self, transport: FakeTransport) -> None:
        if transport not in self._gone:
            self._gone.add(transport)
            transport.lose()

    async def end(self) -> None:
        """Everybody leaves."""
        self.lose(self.client)
        for upstream in self.upstreams:
            self.lose(upstream.transport)
        sides = self.sides
        await sides.tasks.aclose()
        sides.timers.close()
        assert sides.open_requests == 0
        assert sides.in_flight == 0
        assert (sides.memory_budget.held, len(sides.memory_budget)) == (0, 0)
        assert sides.client_connections == sides.upstream_connections == 0


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    with no_failure_is_logged():
        return asyncio.run(work)


async def _of_client(pieces: list[bytes]) -> tuple[Any, ...]:
    world = _World()
    for piece in pieces:
        world.client_says(piece)
    world.client_says(b"")
    statuses = [int(status) for status in _STATUS.findall(world.client.written)]
    # Which rule a bad head broke first depends on how much of it had come.
    seen = [400 if status in _REFUSALS else status for status in statuses]
    if seen[-1:] == [400]:
        # What begins with an empty line may be refused at once or when it stays incomplete.
        del seen[-1]
    written = len(world.client.written)
    await world.end()
    assert written <= 400 * (1 + len(statuses))
    return world.requests, seen


def _check_client(data: bytes) -> None:
    whole, *others = (_run(_of_client(pieces)) for pieces in cuttings(data))
    for other in others:
        assert other == whole, f"in pieces: {other!r}\nas a whole: {whole!r}"


async def _of_backend(pieces: list[bytes], method: bytes) -> tuple[Any, ...]:
    sides = Sides(ceiling=1 << 20)
    server, client = sides.client()
    connection, backend = sides.upstream()
    server.data_received(method + b" /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n")
    assert backend.take()
    for piece in pieces:
        if not backend.is_lost and not backend.ended:
            connection.data_received(piece)
    backend.lose()  # which is the end of some bodies
    answer = _answer(client.take(), method)
    client.lose()
    await sides.tasks.aclose()
    sides.timers.close()
    assert sides.open_requests == sides.in_flight == sides.memory_budget.held == 0
    return answer


def _answer(wire: bytes, method: bytes) -> tuple[Any, ...]:
    """What the client got, if it is complete; every byte of it must be legal."""
    judge = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 17)
    judge.send(h11.Request(method=method, target=b"/", headers=[(b"host", b"a")]))
    judge.send(h11.EndOfMessage())
    if not wire:
        return ()
    judge.receive_data(wire)
    head: h11.Response | None = None
    body = b""
    while True:
        event = judge.next_event()
        if isinstance(event, h11.EndOfMessage):
            break
        if isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif not isinstance(event, h11.InformationalResponse):
            return ()
    assert head is not None
    assert not judge.trailing_data[0], "more than one answer"
    return () if head.status_code == 502 else (head.status_code, list(head.headers), body)


def _check_backend(data: bytes) -> None:
    for method in (b"GET", b"HEAD"):
        whole, *others = (_run(_of_backend(pieces, method)) for pieces in cuttings(data))
        for other in others:
            assert other == whole


TARGETS = (
    Target("http1_clients", _check_client, REQUESTS, REQUEST_WORDS),
    Target("http1_backends", _check_backend, RESPONSES, RESPONSE_WORDS),
)
