"""A codec that only notes what it is told, as a server would be told it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from lb.wire.http2.blocks import BlockReader, HeadCaches
from lb.wire.http2.codec import Http2Codec
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import ErrorCode, Http2Error, StreamError
from lb.wire.memory_budget import MemoryBudget
from tests.wire.frames import settings

WINDOW = 2000
FRAME_LIMIT = 16_384
HEADER_LIMIT = 500

Event = tuple[Any, ...]


class NotingCodec(Http2Codec):
    """Opens a stream for every new head; joins the parts of payload in which they come."""

    def __init__(self, *, window: int = WINDOW) -> None:
        super().__init__(
            BlockReader(HeadCaches(), HEADER_LIMIT),
            frame_limit=FRAME_LIMIT,
            header_limit=HEADER_LIMIT,
        )
        self.events: list[Event] = []
        self.now = 0.0
        self._window = window
        self._memory_budget = MemoryBudget(2**20)
        self.receive(settings())
        self.events.clear()
        self.out.clear()
        self.control = 0

    def open(self, stream_id: int) -> Pipe[Any]:
        """Open a stream; both its pipes belong to its id."""
        inbound: Pipe[Any] = Pipe(stream_id, self._memory_budget, self._window, self._window)
        outbound: Pipe[Any] = Pipe(stream_id, self._memory_budget, self._window, self._window)
        inbound.opposite, outbound.opposite = outbound, inbound
        outbound.credit = self.peer_window
        self.streams[stream_id] = inbound
        self.last_peer_id = max(self.last_peer_id, stream_id)
        return inbound

    def feed(self, data: bytes, *cuts: int) -> Http2Error | None:
        """Receive `data` cut at `cuts`; returns the error that ended the connection."""
        edges = [0, *sorted(cuts), len(data)]
        try:
            for start, stop in pairwise(edges):
                self.receive(data[start:stop])
        except Http2Error as error:
            return error
        return None

    def on_head(self, stream_id: int, block: bytes, end_stream: bool) -> None:
        pipe = self.streams.get(stream_id) or self.open(stream_id)
        pipe.ended |= end_stream
        self.events.append(("head", stream_id, block, end_stream))
        if block == b"bad":
            raise StreamError(ErrorCode.PROTOCOL_ERROR, "bad")

    def on_data(self, pipe: Pipe[Any], payload: Payload, end_stream: int) -> None:
        whole = bytes(payload)
        if self.events and self.events[-1][:2] == ("data", pipe.owner):
            whole = self.events.pop()[2] + whole
        pipe.ended |= bool(end_stream)
        self.events.append(("data", pipe.owner, whole, bool(end_stream)))

    def on_run(self, pipe: Pipe[Any], pieces: list[Payload], length: int) -> None:
        raise AssertionError("there is no room for runs")

    def on_reset(self, pipe: Pipe[Any], code: int) -> None:
        self.events.append(("reset", pipe.owner, code))
        self._close(pipe.owner)

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        self.events.append(("goaway", last_stream_id, code))

    def on_credit(self, pipe: Pipe[Any] | None) -> None:
        self.events.append(("credit", pipe and pipe.owner))

    def on_stream_error(self, stream_id: int, error: StreamError) -> None:
        self.events.append(("error", stream_id, int(error.code)))
        self.write_reset(stream_id, error.code)
        self._close(stream_id)

    def on_ping_ack(self, payload: bytes) -> None:
        self.events.append(("pong", payload))

    def on_settings(self) -> None:
        self.events.append(("settings", self.peer_window, self.peer_frame_size))

    def is_idle(self, stream_id: int) -> bool:
        return stream_id > self.last_peer_id or not stream_id & 1

    def clock(self) -> float:
        return self.now

    def _close(self, stream_id: int) -> None:
        pipe = self.streams.pop(stream_id, None)
        if pipe is not None:
            pipe.ended = True
