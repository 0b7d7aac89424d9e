"""Whatever both sides do, in whatever order: no exception, every attempt ended once, every byte
in the memory budget given back, and each client gets only what was meant for it."""

from __future__ import annotations

import asyncio
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from lb.domain.backend import AppProtocol
from tests.fakes.clock import FakeLoop
from tests.fakes.http1_sides import FakeTransport, Sides

_CLIENT_BYTES = [
    b"GET /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhel",
    b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 6000\r\n\r\n" + b"x" * 6000,
    b"HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /x HTTP/1.0\r\n\r\n",
    b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n",
    b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"3\r\nabc\r\n",
    b"0\r\n\r\n",
    b"lo",
    b"GET /x",
    b"\x16\x03",
]
_BACKEND_BYTES = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nok",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
    b"2\r\nok\r\n",
    b"0\r\n\r\n",
    b"ok",
    b"HTTP/1.1 2",
    b"nonsense\r\n\r\n",
]
_WHO = st.integers(0, 2)
_STEP = st.one_of(
    st.tuples(st.just("client says"), _WHO, st.sampled_from(_CLIENT_BYTES)),
    st.tuples(st.just("client says"), _WHO, st.sampled_from(_CLIENT_BYTES[:6])),
    st.tuples(st.just("backend says"), _WHO, st.sampled_from(_BACKEND_BYTES)),
    st.tuples(st.just("backend says"), _WHO, st.sampled_from(_BACKEND_BYTES[:3])),
    st.tuples(
        st.sampled_from(
            [
                "client lost",
                "client eof",
                "client full",
                "client drained",
                "backend lost",
                "backend reset",
                "backend eof",
                "backend full",
                "backend drained",
                "evict",
                "drain",
                "time passes",
            ]
        ),
        _WHO,
        st.just(b""),
    ),
)


class _World:
    """Three clients and always an idle connection to a backend."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.sides = Sides(
            {"retained_size": 5000, "buffer_size": 4000, "request_timeout_s": 100.0},
            ceiling=30_000,
            loop=self.loop,
        )
        self.clients = [self.sides.client() for _ in range(3)]
        self.backends: list[tuple[asyncio.Protocol, FakeTransport]] = []
        self.gone: set[FakeTransport] = set()

    def _settle(self) -> None:
        """Report what was closed, replace it, and provide an idle connection."""
        for at, (_, transport) in enumerate(self.clients):
            if transport.ended:
                self._lose(transport, None)
                self.clients[at] = self.sides.client()
        for connection, transport in tuple(self.backends):
            if transport.ended:
                self._lose(transport, None)
            if transport.is_lost:
                self.backends.remove((connection, transport))
        if not self.sides.idle_upstreams:
            self.backends.append(self.sides.upstream())

    def _lose(self, transport: FakeTransport, error: Exception | None) -> None:
        if transport not in self.gone:
            self.gone.add(transport)
            transport.lose(error)

    def step(self, what: str, who: int, data: bytes) -> None:
        """Do one thing that can happen."""
        self._settle()
        server, client = self.clients[who]
        busy = [pair for pair in self.backends if self.sides.serving(pair[0]) is not None]
        connection, backend = (busy or self.backends)[who % len(busy or self.backends)]
        if what == "client says" and client.reading and not client.is_half_closed:
            server.data_received(data)
        elif what == "backend says" and backend.reading:
            connection.data_received(data)
        elif what.startswith("client"):
            self._client_event(what, server, client)
        elif what.startswith("backend"):
            self._backend_event(what, connection, backend)
        elif what == "evict":
            self.sides.evict(server)
        elif what == "drain":
            self.sides.begin_drain()
        elif what == "time passes":
            self.loop.advance(20.0)

    def _client_event(self, what: str, server: asyncio.Protocol, client: FakeTransport) -> None:
        if what == "client lost":
            client.ended = "abort"
        elif what == "client eof" and not client.is_half_closed:
            client.is_half_closed = True
            server.eof_received()
        elif what == "client full":
            client.waiting = 5000
            server.pause_writing()
        elif what == "client drained":
            client.waiting = 0
            server.resume_writing()

    def _backend_event(
        self, what: str, connection: asyncio.Protocol, backend: FakeTransport
    ) -> None:
        if what == "backend eof":
            connection.eof_received()
        elif what in ("backend lost", "backend reset"):
            backend.ended = "abort"
            self._lose(backend, ConnectionResetError() if what == "backend reset" else None)
        elif what == "backend full":
            connection.pause_writing()
        elif what == "backend drained":
            connection.resume_writing()

    def check(self) -> None:
        """What must hold at every moment."""
        sides = self.sides
        assert 0 <= sides.memory_budget.held <= sides.memory_budget.ceiling
        assert sides.open_requests == sides.leftovers()["busy"]
        found = [sides.serving(connection) for connection, _ in self.backends]
        serving = [request for request in found if request is not None]
        assert len(set(map(id, serving))) == len(serving)
        assert sides.in_flight >= len(serving)
        assert sides.backends[0].port(AppProtocol.HTTP).in_flight >= len(serving)

    async def end(self) -> None:
        """Everybody leaves."""
        for _, transport in self.clients:
            self._lose(transport, None)
        for _, transport in self.backends:
            self._lose(transport, None)
        await self.sides.tasks.aclose()
        sides = self.sides
        sides.timers.close()
        assert sides.open_requests == 0
        assert sides.in_flight == 0
        assert (sides.memory_budget.held, len(sides.memory_budget)) == (0, 0)
        assert sides.client_connections == 0
        assert sides.upstream_connections == 0
        assert sides.traffic.connections == 0


@settings(max_examples=150, deadline=None)
@given(st.lists(_STEP, max_size=40))
def test_any_order_of_events_leaves_nothing(steps: list[tuple[str, int, bytes]]) -> None:
    async def run() -> None:
        world = _World()
        for step in steps:
            world.step(*step)
            world.check()
        await world.end()

    asyncio.run(run())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(1, 200)), max_size=40))
def test_answers_reach_only_those_who_asked(steps: list[tuple[int, bool, int]]) -> None:
    async def run() -> None:
        world = _World()
        asked = [0, 0, 0]
        for who, asks, cut in steps:
            world._settle()
            if asks:
                asked[who] += 1
                target = b"/%d/%d" % (who, asked[who])
                world.clients[who][0].data_received(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % target)
            for connection, backend in world.backends:
                wanted = re.search(rb"GET (\S+) ", backend.written)
                if wanted is None or world.sides.serving(connection) is None:
                    continue
                backend.written = backend.written[wanted.end() :]
                body = wanted[1]
                answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
                connection.data_received(answer[:cut])
                if answer[cut:]:
                    connection.data_received(answer[cut:])
        for who, (_, client) in enumerate(world.clients):
            got = re.findall(rb"\r\n\r\n/(\d)/(\d+)", client.written)
            assert [int(number) for _, number in got] == list(range(1, len(got) + 1))
            assert {int(owner) for owner, _ in got} <= {who}
        await world.end()

    asyncio.run(run())


_REQUESTS = [wire for wire in _CLIENT_BYTES[:6] if b"Transfer" not in wire and wire[-3:] != b"hel"]
_ANSWERS = [_BACKEND_BYTES[0], _BACKEND_BYTES[4], _BACKEND_BYTES[6]]


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(_REQUESTS),
    st.sampled_from(_ANSWERS),
    st.lists(st.integers(1, 300), max_size=3),
    st.lists(st.integers(1, 60), max_size=3),
)
def test_short_way_and_plain_form_relay_the_same(
    request: bytes, answer: bytes, request_cuts: list[int], answer_cuts: list[int]
) -> None:
    def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
        ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
        return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    async def run() -> None:
        sides = Sides()
        seen = set()
        for cut in ([], [], request_cuts, []):
            server, client = sides.client()
            connection, backend = sides.upstream()
            for piece in pieces(request, cut):
                server.data_received(piece)
            for piece in pieces(answer, answer_cuts if cut else []):
                connection.data_received(piece)
            record = sides.finished.records[-1]
            facts = (record.bytes_in, record.bytes_out, record.status, record.path, record.model)
            seen.add((backend.written, client.written, backend.ended, client.ended, *facts))
            for transport in (client, backend):
                transport.lose()
        assert len(seen) == 1
        assert sides.in_flight == 0
        sides.timers.close()

    asyncio.run(run())
