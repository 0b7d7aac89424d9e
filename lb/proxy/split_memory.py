"""Memory of batches that are cut: one account for each, and room for the answers to its parts.

Answers can only be joined once all of them have come, so they are held whole, and nothing holds the
backends back meanwhile. So a batch begins when there is room for its answers, as far as earlier
ones tell how long they are. Otherwise it stays whole, if one backend takes it, or waits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from lb.net.iteration import IterationBudget
from lb.net.timers import Timer, TimerWheel
from lb.wire.memory_budget import MemoryBudget

_LOOK_S: Final = 0.05
"""How often those that wait are looked at: clients that read make room without a word."""
_LEARNING_S: Final = 0.25
"""How long a batch waits for the first answer of its model, which shows how long answers are. A
model that takes longer is not worth the delay."""
_PATIENCE_S: Final = 5.0
"""How long the first one waits for clients that read. Those that take longer for tens of megabytes
are slow, and give way if memory becomes short."""


class MemoryOwner(Protocol):
    """Whose bytes are held."""

    def evict(self) -> None:
        """End the work that needs them, and drop them."""
        ...


class BatchMemory:
    """What one batch holds: its request, and the answers to its parts. The memory budget sees one
    holder however many parts there are, since whoever holds most gives way first."""

    __slots__ = ("_memory_budget", "_owner", "_reserved", "held")

    def __init__(self, memory_budget: MemoryBudget, owner: MemoryOwner) -> None:
        """
        Args:
            memory_budget: the account.
            owner: gives way when the memory budget wants the bytes back.
        """
        self._memory_budget = memory_budget
        self._owner = owner
        self._reserved = 0
        """Bytes on the account that nothing is held of yet."""
        self.held = 0
        """See `lb.wire.memory_budget.Holder`."""

    def reserve(self, size: int) -> None:
        """Put bytes on the account that answers will need; there is room for them."""
        if size and self._memory_budget.take(self, size):
            self._reserved += size

    def end_reservation(self) -> None:
        """All answers have come."""
        reserved, self._reserved = self._reserved, 0
        self.release(reserved)

    def take(self, size: int) -> bool:
        """Hold more bytes, those that are reserved first. Returns False if the owner had to give
        way instead."""
        drawn = min(size, self._reserved)
        self._reserved -= drawn
        return drawn == size or self._memory_budget.take(self, size - drawn)

    def release(self, size: int) -> None:
        """Hold fewer bytes."""
        if size:
            self._memory_budget.release(self, size)

    def evict(self) -> None:
        """See `lb.wire.memory_budget.Holder`."""
        self._owner.evict()


class Clockwork(Protocol):
    """What of the process says when those that wait are looked at."""

    @property
    def timers(self) -> TimerWheel: ...

    @property
    def iteration(self) -> IterationBudget: ...


class _Waiting(NamedTuple):
    """A batch for which there is no room yet. Its request is complete."""

    model: bytes
    rows: int
    held: int
    """Bytes of its request."""
    since: int
    """How often those that wait had been looked at before."""
    begin: Callable[[], None]


class AnswerRoom:
    """Says when batches may begin, first come, first served.

    Half of the memory budget is for them and for whatever else is held. Those that wait count only
    once they begin. One whose answers need more than that may begin while nobody else holds
    anything.
    """

    __slots__ = (
        "_idle_looks", "_is_due", "_looks", "_memory_budget", "_row_sizes", "_running", "_timer",
        "_waiting", "_waiting_held",
    )  # fmt: skip

    def __init__(self, memory_budget: MemoryBudget) -> None:
        self._memory_budget = memory_budget
        self._row_sizes: dict[bytes, int] = {}
        """Bytes of answer for each row, by model, as the last answer had."""
        self._running: dict[BatchMemory, bytes] = {}
        """Batches whose answers are awaited, and their models."""
        self._waiting: dict[BatchMemory, _Waiting] = {}
        self._waiting_held = 0
        """Bytes of all their requests."""
        self._is_due = False
        """Those that wait are looked at in the next iteration of the event loop."""
        self._timer: Timer | None = None
        """Has them looked at a little later."""
        self._looks = 0
        """How often they were."""
        self._idle_looks = 0
        """How often in a row there was no room although no answers are awaited."""

    def forget(self) -> None:
        """Forget how long answers are: models may be others."""
        self._row_sizes = {}

    def begin(self, memory: BatchMemory, model: bytes, rows: int, *, must: bool) -> bool:
        """Begin a batch if there is room for its answers, which is reserved for it.

        Args:
            memory: of the batch.
            model: of it.
            rows: of it.
            must: no backend takes all of its rows at once.

        Returns:
            Whether it has begun.
        """
        others = self._memory_budget.held - memory.held
        if self._waiting or not self._fits(memory, model, rows, others, must=must):
            return False
        self._begin(memory, model, rows)
        return True

    def wait(
        self,
        memory: BatchMemory,
        model: bytes,
        rows: int,
        begin: Callable[[], None],
        clockwork: Clockwork,
    ) -> None:
        """Have a batch that must be cut wait for room.

        Args:
            memory: of the batch, whose request is complete.
            model: of it.
            rows: of it.
            begin: called once room is reserved.
            clockwork: of the process.
        """
        if not self._waiting:
            self._idle_looks = 0
        self._waiting[memory] = _Waiting(model, rows, memory.held, self._looks, begin)
        self._waiting_held += memory.held
        self._look_again(clockwork)

    def answered(self, model: bytes, rows: int, size: int, clockwork: Clockwork) -> None:
        """Note how long the answer to some rows was."""
        is_news = model not in self._row_sizes
        self._row_sizes[model] = -(-size // rows)
        if is_news:
            self._look_soon(clockwork)

    def leave(self, memory: BatchMemory, clockwork: Clockwork) -> None:
        """A batch has ended, or goes on as a whole. Idempotent."""
        self._leave_line(memory)
        if self._running.pop(memory, None) is not None:
            memory.end_reservation()
            # By the next iteration, what its client does not read at once is counted.
            self._look_soon(clockwork)

    def _leave_line(self, memory: BatchMemory) -> None:
        waiting = self._waiting.pop(memory, None)
        if waiting is None:
            return
        self._waiting_held -= waiting.held
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fits(
        self, memory: BatchMemory, model: bytes, rows: int, others: int, *, must: bool
    ) -> bool:
        """Whether a batch may begin while others hold so many bytes."""
        row_size = self._row_sizes.get(model)
        if row_size is None:
            # The first one shows how long answers are.
            return model not in self._running.values()
        most = self._memory_budget.keep_up_to
        needed = memory.held + row_size * rows
        return others + (min(needed, most) if must else needed) <= most

    def _may_begin(self, memory: BatchMemory, first: _Waiting) -> bool:
        """Whether the first one in line may begin."""
        if self._idle_looks * _LOOK_S >= _PATIENCE_S:
            return True
        if first.model not in self._row_sizes and (
            (self._looks - first.since) * _LOOK_S >= _LEARNING_S
        ):
            return True
        others = self._memory_budget.held - self._waiting_held
        return self._fits(memory, first.model, first.rows, others, must=True)

    def _begin(self, memory: BatchMemory, model: bytes, rows: int) -> None:
        self._running[memory] = model
        budget = self._memory_budget
        room = max(0, budget.keep_up_to - budget.held)
        memory.reserve(min(self._row_sizes.get(model, 0) * rows, room))

    def _look_soon(self, clockwork: Clockwork) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            clockwork.iteration.later(partial(self._look, clockwork))

    def _look_again(self, clockwork: Clockwork) -> None:
        if self._timer is None:
            self._timer = clockwork.timers.after(_LOOK_S, partial(self._on_timer, clockwork))

    def _on_timer(self, clockwork: Clockwork) -> None:
        self._timer = None
        self._looks += 1
        self._idle_looks = 0 if self._running else self._idle_looks + 1
        self._look_soon(clockwork)

    def _look(self, clockwork: Clockwork) -> None:
        """Begin those that wait, as far as there is room."""
        self._is_due = False
        while self._waiting and clockwork.iteration.left > 0:
            memory, first = next(iter(self._waiting.items()))
            if not self._may_begin(memory, first):
                break
            self._idle_looks = 0
            self._leave_line(memory)
            self._begin(memory, first.model, first.rows)
            first.begin()
        if clockwork.iteration.left <= 0:
            self._look_soon(clockwork)
        elif self._waiting:
            self._look_again(clockwork)
