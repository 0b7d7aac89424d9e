"""The relay between `h2` on both sides, in any order of events: `h2` refuses whatever breaks the
protocol or overruns a window, every byte arrives once the readers read, and nothing is left."""

from __future__ import annotations

import asyncio
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as st

from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.http2.flow import UNCOUNTED
from tests.fakes.http2_connections import PaperRelay, Side
from tests.wire.frames import METHOD_PATH, OK_TRAILERS, RESPONSE_FIELDS, FieldPair, request_fields

WINDOW = 3000
OPTIONS = {"stream_window": WINDOW, "stream_window_max": 4 * WINDOW, "retained_size": 1000}
CANCEL = 8
PATHS = [METHOD_PATH, b"/other.S/M"]
"""Not `ModelStreamInfer`, which passes whole messages only: see `test_stream_relay`."""


def pattern(stream: int, start: int, size: int) -> bytes:
    """Bytes that tell where in which stream they belong; an empty message is first."""
    whole = b"".join(b"%d@%d," % (stream, at) for at in range(start // 4, (start + size) // 4 + 2))
    begins = b"%05d" % stream if start else bytes(PREFIX_SIZE)
    return (begins + whole * 2)[:size]


class H2Peer:
    """One end of a connection of the relay, played by `h2`."""

    def __init__(self, side: Side, *, is_client: bool) -> None:
        self.side = side
        config = H2Configuration(client_side=is_client, header_encoding=None)
        self.h2 = H2Connection(config)
        self.h2.initiate_connection()
        self.got: dict[int, bytearray] = {}
        self.sent: dict[int, bytearray] = {}
        self.ended: set[int] = set()
        """Streams that the other side ended."""
        self.done: set[int] = set()
        """Streams that this side ended."""
        self.resets: dict[int, int] = {}
        self.owed: list[tuple[int, int]] = []
        """Payload received and not credited yet: stream and size."""
        self.news: list[Event] = []

    def pump(self, step: int) -> bool:
        """Exchange what there is, in pieces of `step` bytes. Whether there was anything."""
        outgoing = self.h2.data_to_send()
        for at in range(0, len(outgoing), step):
            self.side.sends(outgoing[at : at + step])
        incoming = self.side.transport.take()
        for event in self.h2.receive_data(incoming) if incoming else ():
            self._note(event)
        return bool(outgoing or incoming)

    def _note(self, event: Event) -> None:
        match event:
            case DataReceived():
                assert event.stream_id is not None
                self.got.setdefault(event.stream_id, bytearray()).extend(event.data or b"")
                self.owed.append((event.stream_id, event.flow_controlled_length or 0))
            case StreamEnded():
                self.ended.add(event.stream_id)
            case StreamReset():
                assert event.stream_id is not None
                self.resets[event.stream_id] = int(event.error_code or 0)
            case RequestReceived() | ResponseReceived() | TrailersReceived():
                self.news.append(event)

    def may_send(self, stream: int) -> bool:
        return stream not in self.done and stream not in self.resets

    def send(self, stream: int, size: int) -> None:
        """Send as much of `size` bytes as windows and frame size allow."""
        if not self.may_send(stream):
            return
        room = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
        body = self.sent.setdefault(stream, bytearray())
        payload = pattern(stream, len(body), max(0, min(size, room)))
        if payload:
            self.h2.send_data(stream, payload)
            body += payload

    def allow(self, window: int) -> None:
        """Change the initial window; not below zero, where `h2` refuses even the empty DATA that
        RFC 9113 6.9 allows."""
        window = max(window, *map(len, self.got.values()), 0)
        self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})

    def credit(self, count: int) -> None:
        """Take what was received off the windows."""
        for _ in range(min(count, len(self.owed))):
            stream, size = self.owed.pop(0)
            if size:
                self.h2.acknowledge_received_data(size, stream)


class World:
    """A client, the relay and a backend."""

    def __init__(self, step: int, ceiling: int = 2**24) -> None:
        self.relay = PaperRelay(options=OPTIONS, ceiling=ceiling)
        self.step = step
        self.client = H2Peer(self.relay.silent_client(), is_client=True)
        self.server = H2Peer(self.relay.silent_backend(), is_client=False)
        self.pump()
        self.streams: list[int] = []
        """Streams of the client, in order."""
        self.answers: list[int] = []
        """Streams of the backend whose head was sent."""

    def pump(self) -> None:
        """Until all is quiet."""
        self.relay.flush()
        while self.client.pump(self.step) | self.server.pump(self.step):
            self.relay.flush()
        assert self.relay.memory_budget.held <= self.relay.memory_budget.ceiling

    def act(self, event: tuple[str, int, int]) -> None:
        kind, which, size = event
        stream = self.streams[which % len(self.streams)] if self.streams else 0
        incoming = [e.stream_id for e in self.server.news if isinstance(e, RequestReceived)]
        behind: Any = incoming[which % len(incoming)] if incoming else 0
        match kind:
            case "open":
                stream = self.client.h2.get_next_available_stream_id()
                self.streams.append(stream)
                self.client.h2.send_headers(stream, self.head(stream, which))
                self.client.send(stream, size)
            case "upload" if stream:
                self.client.send(stream, size)
            case "end" if stream and self.client.may_send(stream):
                self.client.h2.end_stream(stream)
                self.client.done.add(stream)
            case "cancel" if stream and stream not in self.client.resets:
                self.cancel(self.client, stream)
            case "answer" if behind:
                self.answer(behind)
                self.server.send(behind, size)
            case "finish" if behind in self.answers:
                self.finish(behind)
            case "refuse" if behind and behind not in self.server.resets:
                self.cancel(self.server, behind)
            case "client reads":
                self.client.credit(which + 1)
            case "backend reads":
                self.server.credit(which + 1)
            case "client settings":
                self.client.allow(size)
            case "backend settings":
                self.server.allow(size)
            case "congestion":
                side = (self.client, self.server)[which % 2].side
                side.resume() if side.facts.is_paused else side.pause()
        self.pump()

    def head(self, stream: int, which: int) -> list[FieldPair]:
        return request_fields((b"x", b"%d" % stream), path=PATHS[which % len(PATHS)])

    def cancel(self, peer: H2Peer, stream: int) -> None:
        if stream in peer.ended and stream in peer.done:
            return
        peer.h2.reset_stream(stream, CANCEL)
        peer.resets[stream] = CANCEL

    def answer(self, stream: int) -> None:
        if stream not in self.answers and self.server.may_send(stream):
            self.answers.append(stream)
            self.server.h2.send_headers(stream, RESPONSE_FIELDS)

    def finish(self, stream: int) -> None:
        if self.server.may_send(stream):
            self.server.h2.send_headers(stream, OK_TRAILERS, end_stream=True)
            self.server.done.add(stream)

    def settle(self) -> None:
        """Let everybody read, and end all streams."""
        for peer in (self.client, self.server):
            if peer.side.facts.is_paused:
                peer.side.resume()
            peer.allow(2**20)
            peer.h2.increment_flow_control_window(2**20)
        for stream in self.streams:
            if self.client.may_send(stream):
                self.client.h2.end_stream(stream)
                self.client.done.add(stream)
        self.pump()
        for event in tuple(self.server.news):
            if isinstance(event, RequestReceived) and event.stream_id is not None:
                self.answer(event.stream_id)
                self.finish(event.stream_id)
        for _ in range(3):
            self.client.credit(10**6)
            self.server.credit(10**6)
            self.pump()


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [*["open", "upload", "answer"] * 3, "end", "cancel", "finish", "refuse",
             "client reads", "backend reads", "client settings", "backend settings", "congestion"]
        ),
        st.integers(0, 5),
        st.sampled_from([0, 1, 5, 100, 1000, 3000, 9000, 20_000]),
    ),
    min_size=5,
    max_size=80,
)  # fmt: skip
STEPS = st.sampled_from([1 << 20, 1 << 20, 1000, 64, 7])


@given(EVENTS, STEPS)
@settings(max_examples=70, deadline=None)
def test_every_byte_arrives_when_readers_read(
    events: list[tuple[str, int, int]], step: int
) -> None:
    async def run() -> None:
        world = World(step)
        for event in [("open", 1, 100), *events]:
            world.act(event)
        world.settle()
        client, server = world.client, world.server
        heads = [event for event in server.news if isinstance(event, RequestReceived)]
        behind = {int(dict(event.headers or ())[b"x"]): event.stream_id or 0 for event in heads}
        for stream in world.streams:
            if stream not in behind:
                # It was cancelled before its message said the model, or ended within that.
                assert stream in client.resets or (
                    stream in client.ended and 0 < len(client.sent[stream]) < PREFIX_SIZE
                )
                continue
            other = behind[stream]
            if stream in client.resets or other in server.resets:
                assert client.resets.get(stream, CANCEL) in (0, CANCEL)
                continue
            assert server.got.get(other, b"") == client.sent.get(stream, b"")
            got, sent = client.got.get(stream, b""), server.sent.get(other, b"")
            # A short beginning of a message that never becomes whole is no answer.
            assert got == sent or (not got and len(sent) <= UNCOUNTED)
            assert other in server.ended
            assert stream in client.ended
        assert world.relay.leftovers() == dict.fromkeys(world.relay.leftovers(), 0)
        assert not server.side.facts.streams

    asyncio.run(run())


@given(EVENTS, STEPS, st.sampled_from([2000, 6000, 15_000]))
@settings(max_examples=60, deadline=None)
def test_memory_stays_below_its_ceiling_and_nothing_is_left(
    events: list[tuple[str, int, int]], step: int, ceiling: int
) -> None:
    async def run() -> None:
        world = World(step, ceiling)
        for event in [("open", 1, 100), *events]:
            world.act(event)
        world.settle()
        assert world.relay.leftovers() == dict.fromkeys(world.relay.leftovers(), 0)
        assert not world.server.side.facts.streams

    asyncio.run(run())
