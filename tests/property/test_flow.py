"""The core of flow control against a plain model: several streams on one memory budget, any
order."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from lb.wire.http2.flow import UNCOUNTED, Pipe
from lb.wire.memory_budget import MemoryBudget

SIZES = st.sampled_from([1, 50, 51, 99, 700, UNCOUNTED, UNCOUNTED + 1, 20_000])
MOST_STREAMS = 3


class Stream:
    """Both directions of a stream, and what a sender and a reader of each would know."""

    def __init__(self, memory_budget: MemoryBudget, window: int, limit: int, keep: int) -> None:
        self.over = False
        self.keep = keep
        self.ways = [Way(self, memory_budget, window, limit) for _ in range(2)]
        self.ways[0].pipe.retained = []

    def evict(self) -> None:
        self.end()

    def end(self) -> None:
        """As a call ends: its pipes let go of everything and forget it."""
        self.over = True
        for way in self.ways:
            way.pipe.ended = True
            way.pipe.clear()
            way.pipe.owner = None


class Way:
    """One direction: the pipe, and the model of it."""

    def __init__(
        self, stream: Stream, memory_budget: MemoryBudget, window: int, limit: int
    ) -> None:
        self.stream = stream
        self.pipe: Pipe[Any] = Pipe(stream, memory_budget, window, limit)
        self.granted = window
        """Bytes that the sender may send in all."""
        self.sent = b""
        self.out = b""
        """What reached the reader in this attempt."""
        self.furthest = 0
        """Most bytes that ever went out in one attempt."""

    def send(self, size: int) -> None:
        """The sender sends what its window allows; it goes out, or waits."""
        pipe = self.pipe
        size = min(size, self.granted - len(self.sent))
        if not size or pipe.ended:
            return
        start = len(self.sent)
        payload = bytes((start + at) % 251 for at in range(size))
        self.sent += payload
        pipe.window -= size
        assert pipe.window >= 0
        if pipe.retained is not None:
            pipe.retain(payload, self.stream.keep)
        if pipe.queue or pipe.credit < size:
            if pipe.push(payload):
                self.drain()
        else:
            self._goes_out(payload)

    def drain(self) -> None:
        """What waits goes out as far as the reader's credit allows."""
        pipe = self.pipe
        while pipe.queue and pipe.credit > 0:
            self._goes_out(pipe.pull(min(pipe.credit, 1000)))

    def _goes_out(self, payload: bytes | memoryview) -> None:
        pipe = self.pipe
        pipe.credit -= len(payload)
        self.out += payload
        self.furthest = max(self.furthest, len(self.out))
        self.granted += pipe.went_out(len(payload))

    def check(self) -> None:
        pipe = self.pipe
        waiting = b"".join(pipe.queue or ())
        assert self.sent == self.out + waiting
        kept = b"".join(pipe.retained or ())
        assert kept == (self.sent if pipe.retained is not None else b"")
        assert pipe.retained_size == len(kept)
        assert len(kept) <= self.stream.keep
        assert pipe.held == len(waiting) + (len(kept) if len(kept) > UNCOUNTED else 0)
        assert pipe.window == self.granted - len(self.sent) >= 0
        assert pipe.window_size <= pipe.window_limit
        assert self.granted <= self.furthest + pipe.window_size, "no byte is credited twice"


class Flow(RuleBasedStateMachine):
    """Streams that send, read, go out again, and end."""

    streams = Bundle("streams")

    @initialize(ceiling=st.sampled_from([300, 6000, 30_000, 10**6]))
    def begin(self, ceiling: int) -> None:
        self.memory_budget = MemoryBudget(ceiling)
        self.alive: list[Stream] = []

    @precondition(lambda self: len(self.alive) < MOST_STREAMS)
    @rule(
        target=streams,
        window=st.sampled_from([100, 101, 6000]),
        growth=st.integers(1, 4),
        keep=st.sampled_from([0, 200, 50_000, 50_000]),
    )
    def opens(self, window: int, growth: int, keep: int) -> Stream:
        stream = Stream(self.memory_budget, window, window * growth, keep)
        self.alive.append(stream)
        return stream

    @rule(stream=streams, way=st.integers(0, 1), size=SIZES)
    def sends(self, stream: Stream, way: int, size: int) -> None:
        if not stream.over:
            stream.ways[way].send(size)

    @rule(stream=streams, way=st.integers(0, 1), size=SIZES)
    def reads(self, stream: Stream, way: int, size: int) -> None:
        if not stream.over:
            stream.ways[way].pipe.credit += size
            stream.ways[way].drain()

    @rule(stream=streams, size=SIZES)
    def uploads_to_a_reader(self, stream: Stream, size: int) -> None:
        self.reads(stream, 0, size)
        self.sends(stream, 0, size)

    @rule(stream=streams, way=st.integers(0, 1), size=SIZES)
    def lowers_its_window(self, stream: Stream, way: int, size: int) -> None:
        stream.ways[way].pipe.credit -= size

    @rule(stream=streams, credit=SIZES)
    def goes_out_again(self, stream: Stream, credit: int) -> None:
        way = stream.ways[0]
        if stream.over or way.pipe.retained is None:
            return
        way.pipe.credit = credit
        way.out = b""
        if way.pipe.rewind():
            way.drain()

    @rule(stream=streams)
    def is_answered(self, stream: Stream) -> None:
        if not stream.over:
            stream.ways[0].pipe.drop_retained()

    @rule(stream=streams, way=st.integers(0, 1))
    def sends_no_more(self, stream: Stream, way: int) -> None:
        stream.ways[way].pipe.ended = True

    @rule(target=streams, stream=consumes(streams))
    def ends(self, stream: Stream) -> Any:
        stream.end()
        return multiple()

    @invariant()
    def books_are_right(self) -> None:
        if not hasattr(self, "memory_budget"):
            return
        self.alive = [stream for stream in self.alive if not stream.over]
        ways = [way for stream in self.alive for way in stream.ways]
        for way in ways:
            way.check()
        assert (
            self.memory_budget.held
            == sum(way.pipe.held for way in ways)
            <= self.memory_budget.ceiling
        )
        assert len(self.memory_budget) == sum(1 for way in ways if way.pipe.held)

    def teardown(self) -> None:
        """When all read, everything goes out and every sender may go on."""
        for stream in getattr(self, "alive", ()):
            for way in stream.ways:
                if not stream.over:
                    way.pipe.credit = 10**9
                    way.drain()
                    assert way.out == way.sent
                    assert way.pipe.ended or 2 * way.pipe.window > way.pipe.window_size
            stream.end()
        assert not hasattr(self, "memory_budget") or not (
            self.memory_budget.held or len(self.memory_budget)
        )


TestFlow = Flow.TestCase
TestFlow.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
