"""Workers that write, read, stand still and are killed at any store: what is counted is what the
living have in flight."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from lb.sharing.board import STALE_S, Board, Entry, Values, clear, key_of, size

pytestmark = pytest.mark.interpreted("it changes the attributes of a board")

WORKERS: Final = 3
KEYS: Final = tuple(key_of(b"%d" % number) for number in range(4))
TICK_S: Final = 0.1
MOST: Final = 50


class KilledError(Exception):
    """The worker is killed before a store."""


class Mortal:
    """Memory whose user is killed after a number of stores."""

    def __init__(self, memory: memoryview, life: list[int]) -> None:
        self._memory = memory
        self._life = life

    def __getitem__(self, at: int) -> int:
        found: int = self._memory[at]
        return found

    def __setitem__(self, at: int, value: int) -> None:
        if not self._life[0]:
            raise KilledError
        self._life[0] -= 1
        self._memory[at] = value


class Worker:
    """One process: its board, what it has in flight, and what it has read of the others."""

    def __init__(self, memory: memoryview, index: int) -> None:
        self.life = [1 << 60]
        self.board = Board(memory, index, WORKERS)
        for name in ("_cells", "_times"):
            setattr(self.board, name, Mortal(getattr(self.board, name), self.life))
        self.own = dict.fromkeys(KEYS, 0)
        self.read: dict[tuple[int, int], Values] = {}
        self.is_stopped = False

    def tell(self, key: int) -> None:
        entry = Entry(key)
        entry.count = self.own[key]
        self.board.write(entry)

    def seen(self, key: int) -> int:
        for place in self.board.changes():
            self.read[place] = self.board.read(*place)
        return sum(values[1] for values in self.read.values() if values[0] == key)


class Machine(RuleBasedStateMachine):
    """Workers and a supervisor."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 10.0
        self.memory = memoryview(bytearray(size(WORKERS)))
        self.workers = [Worker(self.memory, index) for index in range(WORKERS)]
        self.pass_time()

    def pass_time(self) -> None:
        self.now += TICK_S
        for _ in range(2):
            for worker in self.workers:
                if not worker.is_stopped:
                    worker.board.tick(self.now)

    @rule(index=st.integers(0, WORKERS - 1), key=st.sampled_from(KEYS), change=st.integers(-2, 3))
    def change(self, index: int, key: int, change: int) -> None:
        worker = self.workers[index]
        if not worker.is_stopped:
            worker.own[key] = max(0, min(MOST, worker.own[key] + change))
            worker.tell(key)
            self.check()

    @rule(index=st.integers(0, WORKERS - 1), key=st.sampled_from(KEYS), stores=st.integers(0, 16))
    def die_while_writing(self, index: int, key: int, stores: int) -> None:
        """It is killed in the middle of a change. Nothing that others read then is negative, or
        more than anybody ever had."""
        worker = self.workers[index]
        worker.life[0] = stores
        worker.own[key] += 1
        try:
            worker.tell(key)
        except KilledError:
            pass
        for other in self.workers:
            if other is not worker and not other.is_stopped:
                assert 0 <= other.seen(key) <= (WORKERS - 1) * (MOST + 1)
        clear(self.memory, index)  # by the supervisor, which has waited for it
        self.workers[index] = Worker(self.memory, index)
        self.pass_time()
        self.check()

    @rule(index=st.integers(0, WORKERS - 1))
    def stop(self, index: int) -> None:
        """It stands still: after a second nothing of it counts."""
        self.workers[index].is_stopped = True
        for _ in range(int(STALE_S / TICK_S) + 1):
            self.pass_time()
        self.check()

    @rule(index=st.integers(0, WORKERS - 1))
    def go_on(self, index: int) -> None:
        self.workers[index].is_stopped = False
        self.pass_time()
        self.check()

    def check(self) -> None:
        running = [worker for worker in self.workers if not worker.is_stopped]
        for worker in running:
            for key in KEYS:
                others = [other.own[key] for other in running if other is not worker]
                assert worker.seen(key) == sum(others)


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBoard = Machine.TestCase
