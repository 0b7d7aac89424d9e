"""Whatever frames clients and backends send, in any order: no handler of ours fails, memory stays
within its ceiling, and when all connections are gone nothing is left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fakes.http2_connections import GREETING, PaperRelay, Side
from tests.fakes.relay import snapshot_of
from tests.wire import frames as f

CEILING = 40_000
OPTIONS = {
    "stream_window": 8000,
    "stream_window_max": 16_000,
    "concurrent_streams": 3,
    "retained_size": 6000,
}
BAD_STREAMS = (0, 2, 1, 2**31 - 1)
STREAM_PATH = f.METHOD_PATH.replace(b"ModelInfer", b"ModelStreamInfer")
LIVE_PATH = f.METHOD_PATH.replace(b"ModelInfer", b"ServerLive")
WATCH_PATH = b"/grpc.health.v1.Health/Watch"
REQUESTS = st.sampled_from(
    [
        *[f.request_fields()] * 3,
        f.request_fields(path=STREAM_PATH),
        f.request_fields(path=b"/other.Service/Method"),
        f.request_fields(path=LIVE_PATH),
        f.request_fields(path=WATCH_PATH),
        f.request_fields((b"grpc-timeout", b"1S")),
        f.request_fields((b"grpc-timeout", b"0S")),
        f.request_fields((b"content-length", b"8")),
        f.request_fields((b"Bad", b"x")),
        [(b"x", b"trailer")],
        f.RESPONSE_FIELDS,
    ]
).map(f.literals)
ANSWERS = st.sampled_from(
    [
        *[f.RESPONSE_FIELDS] * 4,
        *[f.OK_TRAILERS] * 2,
        [*f.RESPONSE_FIELDS, *f.OK_TRAILERS],
        [(b":status", b"103")],
        [(b":status", b"503")],
        [(b"grpc-status", b"13"), (b"grpc-message", b"no")],
        [(b"Bad", b"x")],
    ]
).map(f.literals)
PAYLOADS = st.sampled_from(
    [f.named(), f.named(more=bytes(3000)), f.message(bytes(7000)), bytes(9000), b"", b"\0", b"\0\0"]
)
PADS = st.sampled_from([None, None, None, 0, 255])
CODES = st.sampled_from([0, 1, 7, 7, 8, 11, 99])
INCREMENTS = st.sampled_from([1, 5000, 5000, 2**20, 0, 2**31 - 1])
SETTINGS = st.sampled_from(
    [(3, 0), (3, 1), (3, 100), (4, 0), (4, 10), (4, 20_000), (4, 2**20), (1, 0), (5, 16_384),
     (5, 2**20), (6, 1), (99, 9), (4, 2**31), (2, 2), (5, 1)]
)  # fmt: skip

Make = Callable[[int], bytes]
"""Frames for a stream."""


@st.composite
def frames(draw: st.DrawFn, *, client: bool) -> Make:  # one line per kind
    """What a client or a backend may send on a stream."""
    end, pad, payload = draw(st.booleans()), draw(PADS), draw(PAYLOADS)
    block = draw(REQUESTS if client else ANSWERS)
    match draw(st.integers(0, 27)):
        case 0 | 1 | 2 | 3:
            return lambda stream: f.headers(stream, block, end=end, pad=pad)
        case 4 | 5 | 6 | 7 | 8:
            return lambda stream: f.data(stream, payload, end=end, pad=pad)
        case 9 | 10 | 11 | 12:
            return lambda stream: (f.call if client else f.answer)(stream, payload)
        case 13 | 14:
            return lambda stream: f.headers(stream, block) + f.data(stream, payload, end=end)
        case 15 | 16:
            code = draw(CODES)
            return lambda stream: f.rst(stream, code)
        case 17 | 18 | 19:
            increment = draw(INCREMENTS)
            where = draw(st.booleans())
            return lambda stream: f.window_update(stream if where else 0, increment)
        case 20 | 21:
            values = [draw(SETTINGS)]
            return lambda _: f.settings(values)
        case 22:
            token = draw(st.sampled_from([b"12345678", b"tlbdrain", b"tlbcross"]))
            return lambda _: f.ping(token, ack=end)
        case 23:
            code = draw(CODES)
            return lambda stream: f.goaway(max(stream - 2 * end, 0), code)
        case 24:
            done = draw(st.sampled_from([True, True, True, False]))
            return lambda stream: (
                f.headers(stream, block[:9], done=False)
                + f.continuation(stream, block[9:], done=done)
            )
        case 25:
            return lambda _: f.SETTINGS_ACK
        case 26:
            return lambda stream: f.frame(2, 0, stream, bytes(5)) + f.frame(0x22, 9, stream, b"?")
        case _:
            kind, flags = draw(st.integers(0, 12)), draw(st.integers(0, 255))
            content = draw(st.binary(max_size=20))
            return lambda stream: f.frame(kind, flags, stream, content)


CUTS = st.sampled_from([0, 0, 0, 1, 5, 9, 10, 20, 60, 300])
BACKS = st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3, 9])
"""Which stream: 0 is the next one of a client, 1 the last that was opened, 9 a bad one."""
OTHERS = st.sampled_from(
    ["joins", "joins", "leaves", "backend joins", "backend joins", "backend leaves",
     "backend is out", "congestion", "congestion", "time", "time", "drain"]
)  # fmt: skip
SECONDS = st.sampled_from([0.1, 0.1, 2.0, 30.0, 700.0])


@st.composite
def steps(draw: st.DrawFn) -> tuple[Any, ...]:
    which = draw(st.sampled_from([0, 0, 0, 1, 2]))
    match draw(st.integers(0, 9)):
        case 0 | 1 | 2 | 3:
            return ("client sends", which, draw(frames(client=True)), draw(BACKS), draw(CUTS))
        case 4 | 5 | 6 | 7:
            back = max(draw(BACKS), 1)
            return ("backend sends", which, draw(frames(client=False)), back, draw(CUTS))
    other = draw(OTHERS)
    return (other, draw(SECONDS) if other == "time" else which)


class World:
    """Two backends, up to a few clients, and everybody may do anything."""

    def __init__(self) -> None:
        self.relay = PaperRelay(backends=2, options=OPTIONS, ceiling=CEILING)
        self.clients = [self.relay.client()]
        self.behind = [self.relay.backend(0), self.relay.backend(1)]

    def act(self, event: tuple[Any, ...]) -> None:
        match event:
            case ("joins", _):
                self.clients.append(self.relay.client(GREETING))
            case ("leaves", which):
                self.goes(self.clients, which)
            case ("backend joins", which):
                self.behind.append(self.relay.backend(which % 2))
            case ("backend leaves", which):
                self.goes(self.behind, which)
            case ("congestion", which):
                for side in (self.clients + self.behind)[which:][:1]:
                    side.resume() if side.facts.is_paused else side.pause()
            case ("time", seconds):
                self.relay.loop.advance(seconds)
            case ("drain", _):
                self.relay.begin_drain()
            case ("backend is out", which):
                backends = self.relay.backends[: which % 3]
                self.relay.pool.publish(snapshot_of(backends))
            case ("client sends", which, make, back, cut):
                self.clients = self.clients or [self.relay.client()]
                side = self.clients[which % len(self.clients)]
                stream = (side.facts.last_peer_stream + 1) // 2 * 2 + 1 - 2 * back
                self.sends(side, make(self.stream(stream, back)), cut)
            case ("backend sends", which, make, back, cut):
                self.behind = self.behind or [self.relay.backend(0), self.relay.backend(1)]
                side = self.behind[which % len(self.behind)]
                stream = side.facts.next_stream - 2 * back
                self.sends(side, make(self.stream(stream, back)), cut)
        self.relay.flush()
        self.closings()
        assert self.relay.memory_budget.held <= CEILING

    def stream(self, wanted: int, back: int) -> int:
        """Mostly a stream that was opened lately, or the next one."""
        return BAD_STREAMS[back % 4] if back == 9 else max(wanted, 1)

    def sends(self, side: Side, content: bytes, cut: int) -> None:
        for part in (content[:cut], content[cut:]):
            if part and not side.transport.is_closing() and not side.transport.eof:
                side.sends(part)

    def goes(self, sides: list[Side], which: int) -> None:
        for side in sides[which:][:1]:
            sides.remove(side)
            side.transport.closed = True
            side.goes()

    def closings(self) -> None:
        """Transports that the relay closed are lost in the next turn of the loop."""
        for sides in (self.clients, self.behind):
            for side in tuple(sides):
                if side.transport.is_closing() or side.transport.eof:
                    self.goes(sides, sides.index(side))

    def end(self) -> None:
        while self.clients:
            self.goes(self.clients, 0)
        while self.behind:
            self.goes(self.behind, 0)


class Failures(logging.Handler):
    """Errors that a handler of ours logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@given(st.lists(steps(), min_size=5, max_size=60))
@settings(max_examples=120, deadline=None)
@example([("client sends", 0, lambda stream: f.call(stream, b""), 0, 60), ("leaves", 0)])
def test_nothing_breaks_and_nothing_is_left(course: list[tuple[Any, ...]]) -> None:
    async def run() -> None:
        world = World()
        for step in course:
            world.act(step)
        world.end()
        await world.relay.tasks.aclose()
        assert world.relay.leftovers() == dict.fromkeys(world.relay.leftovers(), 0)
        assert not world.relay.loop.errors
        assert not world.relay.finished.meter.traffic[1].connections
        for backend in world.relay.backends:
            port = backend.ports[1]
            assert port is not None
            assert (port.connections, port.in_flight) == (0, 0)

    failures = Failures()
    logging.getLogger("lb").addHandler(failures)
    try:
        asyncio.run(run())
    finally:
        logging.getLogger("lb").removeHandler(failures)
    assert not failures.records, [record.exc_info for record in failures.records]
