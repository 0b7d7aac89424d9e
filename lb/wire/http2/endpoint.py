"""One end of an HTTP/2 connection: what its owner does, the states of its streams, and what it lets
the peer do how often."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from typing import Any, ClassVar, Final

from lb.wire.http2 import frames as fr
from lb.wire.http2.budget import ConnectionTraffic, FloodGuard, Spending
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import ErrorCode, Http2Error, StreamError
from lb.wire.http2.states import (
    AS_SERVER,
    FrameFate,
    Lately,
    StreamState,
    StreamTable,
    stream_table,
)
from lb.wire.native import mypyc_attr

_REMEMBERED: Final = 1024
"""Streams that were reset lately, as many as are open at once: what was on its way for those that
we reset is no error."""
_FREE_WHEN_OVER: Final = frozenset({fr.DATA, fr.PRIORITY, fr.WINDOW_UPDATE})
"""Ignored frames that cost nothing, or were paid for."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Http2Endpoint(metaclass=ABCMeta):
    """What a codec needs of its subclass, and what both know of streams.

    Its owner extends it instead of being called through a Protocol, which would take a call, and a
    look-up of two attributes, more for each frame (docs/decisions/0021-compiling.md).
    """

    __slots__ = ("_guard", "_reset_by_us", "control", "out", "reset_by_peer", "streams")

    table: ClassVar[StreamTable] = stream_table(AS_SERVER)
    """What becomes of frames by the state of their stream."""

    may_enable_push: ClassVar[bool] = True
    """The peer is a client."""

    def __init__(self, guard: FloodGuard) -> None:
        self._guard = guard
        self.streams: dict[int, Pipe[Any]] = {}
        """Open streams: the inbound pipe by stream id."""
        self._reset_by_us = Lately(_REMEMBERED)
        self.reset_by_peer = Lately(_REMEMBERED)
        self.out: list[Payload] = []
        """Bytes to write, in order."""
        self.control = 0
        """Answers that the peer made us write (acknowledgements, resets) since the subclass last
        found that it reads them."""

    # What the subclass does

    @abstractmethod
    def on_head(self, stream_id: int, block: bytes, end_stream: bool) -> None:
        """A complete header block arrived: a request, a response, or trailers."""

    def on_large_block(self, stream_id: int, end_stream: bool) -> None:
        """A header block turns out to be too large. Where this returns, the block is skipped.

        Raises:
            Http2Error: the connection is lost.
        """
        raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "header block too large")

    def take_whole(self, data: bytes, pos: int, stream_id: int, block: bytes) -> int:
        """Handle a whole small message at once: `block` and the frames behind it, from `pos` on.

        What it saves is calls: it must do exactly what `on_head` and `on_data` would. At least the
        head of another frame is there, and it is DATA.

        Returns:
            The position after it; 0 when it is not that simple.
        """
        return 0

    @abstractmethod
    def on_data(self, pipe: Pipe[Any], payload: Payload, end_stream: int) -> None:
        """Payload arrived; its windows are accounted for. May be part of a frame."""

    def on_postponed(self, pipe: Pipe[Any], payload: Payload, end_stream: int) -> None:
        """Payload that was postponed comes again."""
        self.on_data(pipe, payload, end_stream)

    def run_room(self, pipe: Pipe[Any], length: int) -> int:
        """Bytes of payload that may pass by `on_run`, in frames of `length`; 0 once `pipe` has
        ended."""
        return 0

    @abstractmethod
    def on_run(self, pipe: Pipe[Any], pieces: list[Payload], length: int) -> None:
        """Payload of several DATA frames, each of `length`, of a stream that goes on."""

    @abstractmethod
    def on_reset(self, pipe: Pipe[Any], code: int) -> None:
        """The peer reset an open stream; it is still in `streams`."""

    @abstractmethod
    def on_goaway(self, last_stream_id: int, code: int) -> None:
        """The peer will not process streams of ours above `last_stream_id`."""

    @abstractmethod
    def on_credit(self, pipe: Pipe[Any] | None) -> None:
        """A stream (the outbound pipe) or, for None, the connection or all got credit."""

    @abstractmethod
    def on_stream_error(self, stream_id: int, error: StreamError) -> None:
        """The peer broke the rules on one stream: reset it."""

    def on_ping_ack(self, payload: bytes) -> None:
        """A PING of ours came back."""

    def on_settings(self) -> None:
        """The peer's SETTINGS were applied."""

    def on_acknowledged(self) -> None:
        """The peer has applied ours."""

    @abstractmethod
    def is_idle(self, stream_id: int) -> bool:
        """Whether a stream was never opened by either side (RFC 9113 5.1)."""

    def on_unfinished(self) -> None:
        """A read ended within a frame, or within a header block."""

    def on_last_ids(self) -> None:
        """The peer runs out of stream ids."""

    @abstractmethod
    def clock(self) -> float:
        """The time of the read under way, in seconds."""

    @abstractmethod
    def traffic(self) -> ConnectionTraffic:
        """What the connection has seen so far."""

    # Budgets

    def spend(self, what: Spending) -> None:
        """The peer does something that it may not do too often.

        Raises:
            Http2Error: it did.
        """
        if not self._guard.take(what, self.clock(), self.traffic):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, what.detail)

    # States

    def state(self, stream_id: int) -> StreamState:
        """The state of a stream."""
        pipe = self.streams.get(stream_id)
        if pipe is not None:
            if pipe.ended:
                return StreamState.HALF_CLOSED_REMOTE
            is_over = pipe.opposite.finished
            return StreamState.HALF_CLOSED_LOCAL if is_over else StreamState.OPEN
        if self.is_idle(stream_id):
            return StreamState.IDLE
        if stream_id in self._reset_by_us:
            return StreamState.RESET_BY_US
        if stream_id in self.reset_by_peer:
            return StreamState.RESET_BY_PEER
        return StreamState.CLOSED

    def admit_frame(self, kind: int, stream_id: int) -> bool:
        """Admit a frame by the state of its stream. False where it is not admitted: what must
        become of it is done.

        Raises:
            Http2Error: the frame ends the connection.
        """
        state = self.state(stream_id)
        fate, code = self.table[state][kind]
        if fate is FrameFate.ACCEPTED:
            return True
        if fate is not FrameFate.IGNORED:
            detail = f"{fr.NAMES[kind]} on a stream that is {state.words}"
            if fate is FrameFate.ENDS_CONNECTION:
                raise Http2Error(code, detail)
            self.on_stream_error(stream_id, StreamError(code, detail))
        elif kind not in _FREE_WHEN_OVER:
            self.spend(Spending.STRAY)
        return False

    def write_reset(self, stream_id: int, code: int) -> None:
        """RST_STREAM; what the peer still sends for the stream is ignored from now on."""
        self.control += 1
        self._reset_by_us.add(stream_id)
        self.out.append(fr.rst_stream(stream_id, code))
