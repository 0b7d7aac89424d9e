"""Payload that waits for the peer of one connection, and does not move.

A stream may be silent for ever; one that has payload for a peer which takes none of it holds
memory, and work of somebody else's. What counts as movement: bytes of the stream that went out;
for streams that wait for the connection itself, its window or its socket, anything that moved
there, since among very many streams the turn of one may come late.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from lb.net.timers import Timer
from lb.proxy.http2.shared import Http2Shared
from lb.wire.http2.flow import Pipe

_LOOKS: Final = 10
"""Looks within the limit: a stall is found at most two of them late."""


class Sender(Protocol):
    """A connection, as what looks for stalls sees it."""

    relay: Http2Shared
    transport: asyncio.Transport | None
    streams: dict[int, Pipe[Any]]
    waiting: dict[Pipe[Any], None]
    congested: bool
    credit: int
    credited: int

    def bytes_of(self, pipe: Pipe[Any]) -> int:
        """All payload that has come for an outbound pipe, sent or not."""
        ...

    def on_stream_stalled(self, pipe: Pipe[Any]) -> None:
        """The peer has taken nothing of a stream for too long."""
        ...

    def on_stalled(self) -> None:
        """The peer has read nothing for too long."""
        ...


class StallWatch:
    """Looks at a connection now and then, while anything waits there."""

    __slots__ = ("_buffered", "_credited", "_link", "_marks", "_moved_at", "_timer")

    def __init__(self, connection: Sender) -> None:
        self._link = connection
        self._timer: Timer | None = None
        self._marks: dict[Pipe[Any], tuple[int, float]] = {}
        """For pipes that wait for their own windows: bytes that had gone out, and since when."""
        self._moved_at = 0.0
        """When the connection was last seen to move."""
        self._buffered = 0
        self._credited = 0

    @property
    def _limit_s(self) -> float:
        """Seconds without movement after which a stream ends; 0 is no limit."""
        return self._link.relay.options.stream_stalled_s

    def begin(self) -> None:
        """Something waits."""
        if self._timer is None:
            self._note_connection(self._link.relay.now)
            self._arm()

    def end(self) -> None:
        """The connection is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._marks.clear()

    def _arm(self) -> None:
        self._timer = self._link.relay.timers.after(self._limit_s / _LOOKS, self._look)

    def _look(self) -> None:
        self._timer = None
        connection = self._link
        now = connection.relay.now = connection.relay.clock()
        waiting = [pipe.opposite for pipe in connection.streams.values() if pipe.opposite.queue]
        if not (waiting and self._limit_s) or connection.transport is None:
            self._marks.clear()
            return
        is_stuck = self._check_stuck(now)
        if is_stuck and connection.congested:
            connection.on_stalled()
            return
        stalled = []
        marks, self._marks = self._marks, {}
        for pipe in waiting:
            if pipe in connection.waiting:
                if is_stuck:
                    stalled.append(pipe)
                continue
            out = connection.bytes_of(pipe) - pipe.waiting
            before, since = marks.get(pipe, (out, now))
            if out > before:
                since = now
            elif now - since >= self._limit_s:
                stalled.append(pipe)
            self._marks[pipe] = (out, since)
        for pipe in stalled:
            if pipe.owner is not None:  # else the end of another one took it along
                connection.on_stream_stalled(pipe)
        self._arm()

    def _check_stuck(self, now: float) -> bool:
        """Note whether something has moved on the connection. Returns whether nothing at all has
        for too long."""
        connection = self._link
        transport = connection.transport
        buffered = transport.get_write_buffer_size() if transport is not None else 0
        is_blocked = connection.congested or connection.credit <= 0
        if not is_blocked or buffered < self._buffered or connection.credited != self._credited:
            self._note_connection(now)
            return False
        return now - self._moved_at >= self._limit_s

    def _note_connection(self, now: float) -> None:
        connection = self._link
        self._moved_at = now
        self._credited = connection.credited
        if connection.transport is not None:
            self._buffered = connection.transport.get_write_buffer_size()
