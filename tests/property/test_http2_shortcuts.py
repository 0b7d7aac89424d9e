"""The short ways for whole small messages write, byte for byte, what the long ways write."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute
from lb.domain.schedule import Capacity, QueuePlan
from lb.wire.http2 import frames as fr
from tests.fakes.http2_connections import GREETING, PaperRelay, Side, frames_of
from tests.fakes.relay import USUAL, WITHOUT_SHORT_WAYS, Options
from tests.wire import frames as ff

FIELDS: list[tuple[ff.FieldPair, ...]] = [
    (),
    (),
    (),
    ((b"grpc-timeout", b"5S"),),
    ((b"grpc-timeout", b"0S"),),
    ((b"grpc-timeout", b"soon"),),
    ((b"content-length", b"8"),),
    ((b"content-length", b"9"),),
    ((b"traceparent", b"00-1"),),
    ((b"Bad", b"x"),),
    ((b"x-large", b"y" * 17_000),),
]
PATHS = st.sampled_from(
    [
        *[ff.METHOD_PATH] * 4,
        b"/inference.GRPCInferenceService/ModelStreamInfer",
        b"/inference.GRPCInferenceService/ModelMetadata",
        b"/grpc.health.v1.Health/Check",
        b"/other.Service/Call",
    ]
)
FACTS = ModelFacts(is_stateful=False, is_decoupled=False)
INPUT = b"\x2a\x07\x12\x01x\x1a\x02\x08\x10"
BODIES = st.sampled_from(
    [ff.named(), ff.named(), ff.named(b"other"), ff.message(), b"", b"\0",
     ff.named(b"m", INPUT), ff.named(b"m", b"\x12\x012" + INPUT),
     ff.named(b"m", bytes(900)), ff.named(b"m", bytes(4200)), ff.message(b"\x12\x011")]
)  # fmt: skip
CUT = st.none() | st.integers(0, 60) | st.integers(0, 6000)
SHAPES = st.sampled_from([*["whole"] * 5, "two frames", "padded", "open", "end apart", "trailers"])
STATUSES = st.sampled_from(
    [ff.OK_TRAILERS, ff.OK_TRAILERS, [(b"grpc-status", b"5")], [],
     [(b"grpc-status", b"0"), (b"x-large", b"y" * 17_000)]]
)  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> tuple[Any, ...]:
    fields, path = draw(st.sampled_from(FIELDS)), draw(PATHS)
    return "request", fields, path, draw(BODIES), draw(SHAPES), draw(CUT)


@st.composite
def answers(draw: st.DrawFn) -> tuple[Any, ...]:
    which, shape, cut = draw(st.integers(0, 3)), draw(SHAPES), draw(CUT)
    return "answer", which, draw(BODIES), draw(STATUSES), shape, cut


EVENTS = st.sampled_from(
    [
        ("client", fr.ping(b"12345678", ack=False)),
        ("client", fr.window_update(0, 2000)),
        ("client", fr.settings({fr.SETTINGS_INITIAL_WINDOW_SIZE: 3})),
        ("client", fr.settings({fr.SETTINGS_INITIAL_WINDOW_SIZE: 100_000})),
        ("client", fr.rst_stream(1, 8)),
        ("client", fr.rst_stream(5, 8)),
        ("client", ff.data(1, b"late")),
        ("client", ff.data(3, b"more", end=True)),
        ("client", ff.data(5)),
        ("client", ff.headers(1, [(b"checksum", b"1")], end=True)),
        ("client", ff.headers(3, [(b"checksum", b"1")])),
        ("client", fr.window_update(3, 0)),
        ("client", ff.frame(ff.PRIORITY, 0, 3, bytes(4))),
        ("client", fr.goaway(0, 0)),
        ("backend", fr.window_update(0, 2000)),
        ("backend", fr.settings({fr.SETTINGS_INITIAL_WINDOW_SIZE: 3})),
        ("backend", fr.settings({fr.SETTINGS_MAX_CONCURRENT_STREAMS: 2})),
        ("backend", fr.rst_stream(3, 7)),
        ("backend", fr.rst_stream(5, 8)),
        ("backend", fr.goaway(3, 0)),
        ("pause", "client"),
        ("pause", "backend"),
        ("resume", "client"),
        ("resume", "backend"),
        ("drain",),
        ("wait", 6.0),
    ]
)
PLAIN_REQUEST = ("request", (), ff.METHOD_PATH, ff.named(), "whole", None)
PLAIN_ANSWER = ("answer", 0, ff.message(b"x"), ff.OK_TRAILERS, "whole", None)
PLAIN = st.sampled_from([("read", [PLAIN_REQUEST]), ("read", [PLAIN_ANSWER])])
WARM_UP = (("read", [PLAIN_REQUEST]), ("read", [PLAIN_ANSWER]))
"""Heads are known and the first stream is used after it: from here on there are short ways."""
STEPS = st.lists(
    st.one_of(
        PLAIN,
        st.lists(requests(), min_size=1, max_size=4).map(lambda some: ("read", some)),
        st.lists(answers(), min_size=1, max_size=4).map(lambda some: ("read", some)),
        EVENTS,
    ),
    max_size=15,
)
SMALL = fr.settings({}) + fr.SETTINGS_ACK
"""A greeting that leaves the connection its 64 KiB."""
GREETINGS = st.sampled_from([GREETING, GREETING, SMALL, fr.settings({})])


def parts_of(stream: int, head: Any, body: bytes, shape: str, last: bytes) -> list[bytes]:
    """The frames of a message; `last` is its trailers, or empty."""
    end = not last
    if shape == "two frames":
        return [
            ff.headers(stream, head),
            ff.data(stream, body[:3]),
            ff.data(stream, body[3:], end=end) + last,
        ]
    if shape == "end apart":
        return [ff.headers(stream, head), ff.data(stream, body), ff.data(stream, end=end) + last]
    if shape == "open":
        return [ff.headers(stream, head), ff.data(stream, body)]
    if shape == "trailers":
        return [last or ff.headers(stream, head, end=True)]
    pad = 4 if shape == "padded" else None
    return [ff.headers(stream, head), ff.data(stream, body, pad=pad, end=end) + last]


def said(data: bytes) -> list[ff.Frame]:
    """The frames in `data`, empty DATA left out: its END_STREAM belongs to the head before it."""
    frames: list[ff.Frame] = []
    for frame in frames_of(data):
        before = frames[-1] if frames else frame
        if frame.kind == ff.DATA and not frame.payload and not frame.flags:
            continue
        empty_end = frame.kind == ff.DATA and frame.flags == ff.END_STREAM and not frame.payload
        if empty_end and before.kind == ff.HEADERS and before.stream == frame.stream:
            frames[-1] = before._replace(flags=before.flags | ff.END_STREAM)
        else:
            frames.append(frame)
    return frames


class Traffic:
    """One relay with one client and one backend, driven step by step."""

    def __init__(
        self,
        plain: bool,
        greetings: tuple[bytes, bytes],
        options: Options,
        limit: Capacity | None = None,
    ) -> None:
        self.paper = PaperRelay(
            options=options,
            form=WITHOUT_SHORT_WAYS if plain else USUAL,
            has_own_queue=limit is not None,
        )
        if limit is not None:
            self._schedule(limit)
        self.client = self.paper.client(greetings[0])
        self.backend = self.paper.backend(0, greetings[1])
        self._next = 1
        self.over = False

    def _schedule(self, limit: Capacity) -> None:
        paper = self.paper
        route = ModelRoute(facts=FACTS, is_uniform=True, plan=QueuePlan(limits={}, default=limit))
        paper.pool.publish(replace(paper.pool.current, routes={b"m": route}))

    def step(self, step: tuple[Any, ...]) -> None:
        kind = step[0]
        if kind == "read":
            side = self.client if step[1][0][0] == "request" else self.backend
            build = self._request if side is self.client else self._answer
            data, cuts = b"", [0]
            for one in step[1]:
                if one[-1] is not None:
                    cuts.append(len(data) + one[-1])
                data += build(*one[1:-1])
            cuts = sorted({min(cut, len(data)) for cut in (*cuts, len(data))})
            for start, stop in pairwise(cuts):
                self._send(side, data[start:stop])
        elif kind in ("client", "backend"):
            self._send(getattr(self, kind), step[1])
        elif kind in ("pause", "resume"):
            getattr(getattr(self, step[1]), kind)()
        elif kind == "drain":
            self.paper.begin_drain()
        else:
            self.paper.loop.advance(step[1])
        self.paper.flush()
        self.paper.loop.advance(0.0)
        self.paper.flush()

    def _send(self, side: Side, data: bytes) -> None:
        if not side.transport.is_closing() and not side.transport.eof:
            side.sends(data)

    def _request(self, fields: Any, path: bytes, body: bytes, shape: str) -> bytes:
        stream = self._next
        self._next += 2
        head = ff.request_fields(*fields, path=path)
        last = b""
        if shape == "trailers":
            last = ff.headers(stream, [(b"checksum", b"1")], end=True)
            return ff.headers(stream, head) + ff.data(stream, body) + last
        return b"".join(parts_of(stream, head, body, shape, last))

    def _answer(self, which: int, body: bytes, status: Any, shape: str) -> bytes:
        open_streams = sorted(self.backend.facts.streams) or [1]
        stream = open_streams[which % len(open_streams)]
        last = ff.headers(stream, status, end=True) if status else b""
        head = ff.RESPONSE_FIELDS
        if shape == "trailers":
            return ff.headers(stream, [*head, *status], end=True)
        return b"".join(parts_of(stream, head, body, shape, last))

    def shows(self) -> tuple[Any, ...]:
        """Everything that can be seen of the relay."""
        paper = self.paper
        records = [
            {
                name: getattr(record, name)
                for name in ("status", "grpc_status", "reason", "model", "bytes_in", "bytes_out",
                             "attempts", "ended_at", "first_byte_at", "placed_at", "request_id")
            }
            for record in paper.finished.records
        ]  # fmt: skip
        connections = [
            (
                connection.credit,
                connection.owed,
                connection.is_paused,
                sorted(connection.streams),
                connection.waiting,
            )
            for connection in (self.client.facts, self.backend.facts)
        ]
        transports = [
            (said(side.transport.written), side.transport.eof, side.transport.is_closing())
            for side in (self.client, self.backend)
        ]
        (backend,) = paper.backends
        port = backend.ports[1]
        assert port is not None
        counts = (port.codes, port.failures, port.bytes_sent, port.bytes_received, port.attempts)
        left = {key: n for key, n in paper.leftovers().items() if key != "tasks"}
        return (
            transports,
            records,
            connections,
            counts,
            left,
            len(paper.timers),
            paper.outcomes.seen,
        )


@given(
    STEPS,
    st.tuples(GREETINGS, GREETINGS),
    st.sampled_from([0, 20, 3000]),
    st.sampled_from([None, None, Capacity(2, instances=2), Capacity(0)]),
)
def test_short_and_long_ways_cannot_be_told_apart(
    steps: list[tuple[Any, ...]],
    greetings: tuple[bytes, bytes],
    message_size: int,
    limit: Capacity | None,
) -> None:
    options = {
        "concurrent_streams": 6,
        "stream_window": 8000,
        "stream_window_max": 8000,
        "message_size": message_size,
    }

    async def compare() -> None:
        fast, plain = (Traffic(each, greetings, options, limit) for each in (False, True))
        try:
            for step in (*WARM_UP, *steps):
                for traffic in (fast, plain):
                    traffic.step(step)
                assert fast.shows() == plain.shows()
        finally:
            for traffic in (fast, plain):
                await traffic.paper.tasks.aclose()
                traffic.paper.timers.close()

    asyncio.run(compare())
