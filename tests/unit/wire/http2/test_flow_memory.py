"""What a pipe holds is what the memory budget sees, whoever has to give way."""

from __future__ import annotations

from typing import Any

from lb.wire.http2.flow import UNCOUNTED, Pipe
from lb.wire.memory_budget import MemoryBudget

WINDOW = 1 << 20


class Stream:
    """Two pipes of one owner, which ends as a call does."""

    def __init__(self, ceiling: int = 1 << 20) -> None:
        self.evictions = 0
        self.memory_budget = MemoryBudget(ceiling)
        self.first: Pipe[Any] = Pipe(self, self.memory_budget, WINDOW, WINDOW)
        self.second: Pipe[Any] = Pipe(self, self.memory_budget, WINDOW, WINDOW)

    def evict(self) -> None:
        self.evictions += 1
        for pipe in (self.first, self.second):
            pipe.clear()
            pipe.owner = None

    def is_clean(self) -> bool:
        return not self.memory_budget.held and not len(self.memory_budget)


def test_nothing_pushed_is_nothing_held() -> None:
    stream = Stream()
    assert stream.first.push(b"")
    assert not stream.first.queue
    stream.first.clear()
    assert stream.is_clean()


def test_evicting_the_other_direction_of_the_same_stream_ends_a_push() -> None:
    stream = Stream(ceiling=10)
    stream.first.push(bytes(8))
    assert not stream.second.push(bytes(3))
    assert stream.evictions == 1
    assert not stream.second.queue
    assert stream.is_clean()


def test_evicting_the_other_direction_of_the_same_stream_ends_collecting() -> None:
    stream = Stream(ceiling=2 * UNCOUNTED)
    stream.second.retained = []
    stream.first.push(bytes(2 * UNCOUNTED - 1))
    assert not stream.second.collect(bytes(UNCOUNTED + 1))
    assert stream.evictions == 1
    assert stream.is_clean()


def test_a_small_piece_that_waits_does_not_keep_its_whole_read() -> None:
    pipe = Stream().first
    pipe.push(memoryview(bytes(256 * 1024))[:5000])
    assert pipe.queue is not None
    assert pipe.queue[0] == bytes(5000)
    assert isinstance(pipe.queue[0], bytes)


def test_a_large_piece_that_waits_is_not_copied() -> None:
    read = bytes(256 * 1024)
    pipe = Stream().first
    pipe.push(memoryview(read)[9:])
    assert pipe.queue is not None
    kept = pipe.queue[0]
    assert isinstance(kept, memoryview)
    assert kept.obj is read
