"""Memory of batches that are cut: one account for each, and room for the answers to its parts.

Answers can only be joined once all of them have come, so they are held whole, and nothing holds the
backends back meanwhile. So a batch begins when there is room for its answers, as far as earlier
ones tell how long they are. Otherwise it stays whole, if one backend takes it, or waits. Answers
that clients are slow to read delay it for a bounded time, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Final, NamedTuple, Protocol

from lb.net.iteration import IterationBudget
from lb.net.timers import TICK_S, Timer, TimerWheel
from lb.wire.memory_budget import Holder, MemoryBudget, Payer

_LOOK_S: Final = 0.05
"""How often those that wait, and unread answers, are looked at: clients that read make room without
a word."""
_STEP_S: Final = _LOOK_S + TICK_S
"""What counts at most of the time between two looks: timers are late by a tick, unless the process
stalls."""
_LEARNING_S: Final = 0.3
"""How long a batch waits for the first answer of its model, which shows how long answers are. A
model that takes longer is not worth the delay."""
_PATIENCE_S: Final = 5.0
"""How long a batch waits for clients that read. Those that take longer for tens of megabytes are
slow, and are the first to give way."""
_READING_S: Final = 1.0
"""How long any client has for an answer before it may have to give way. Those that are not slow
read tens of megabytes meanwhile. A longer time would let fewer answers fill the room: the batches
of many slow clients, which are in line too, would delay all others by more than `_PATIENCE_S`."""
_PASSED_OVER: Final = 64
"""Batches that are looked at behind the first one for which there is no room, to bound the work."""


class MemoryOwner(Protocol):
    """Whose bytes are held."""

    def evict(self) -> None:
        """End the work that needs them, and drop them."""
        ...

    @property
    def charged_to(self) -> Payer:
        """On whose behalf they are held."""
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
        # Until it has the rest, what is drawn stays reserved: an owner that gives way releases it.
        if drawn < size and not self._memory_budget.take(self, size - drawn):
            return False
        self._reserved -= drawn
        return True

    def release(self, size: int) -> None:
        """Hold fewer bytes."""
        if size:
            self._memory_budget.release(self, size)

    def evict(self) -> None:
        """See `lb.wire.memory_budget.Holder`."""
        self._owner.evict()

    @property
    def charged_to(self) -> Payer:
        """See `lb.wire.memory_budget.Holder`."""
        return self._owner.charged_to


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
    since: float
    """See `AnswerRoom`."""
    begin: Callable[[], None]


class AnswerRoom:
    """Says when batches may begin.

    Half of the memory budget is for them and for whatever else is held. Those that wait count only
    once they begin. One whose answers need more than that may begin while nobody else holds
    anything. A smaller one may overtake those for which there is no room, until the first of them
    is overdue: it has waited for `_PATIENCE_S`.

    For overdue ones, joined answers that clients have not read do not count. They may fill three
    quarters of the memory budget, which leaves room for all other requests. Beyond that, unread
    answers give way: the longest of those that are older than `_PATIENCE_S`, then the oldest.
    """

    __slots__ = (
        "_clock", "_is_due", "_memory_budget", "_now", "_row_sizes", "_running", "_timer",
        "_timer_set_at", "_unread", "_waiting", "_waiting_held",
    )  # fmt: skip

    def __init__(self, memory_budget: MemoryBudget, clock: Callable[[], float]) -> None:
        self._memory_budget = memory_budget
        self._clock = clock
        self._row_sizes: dict[bytes, int] = {}
        """Bytes of answer for each row, by model, as the last answer had."""
        self._running: dict[BatchMemory, bytes] = {}
        """Batches whose answers are awaited, and their models."""
        self._waiting: dict[BatchMemory, _Waiting] = {}
        self._waiting_held = 0
        """Bytes of all their requests."""
        self._unread: dict[Holder, float] = {}
        """Who holds a joined answer that its client reads, and `_now` when it was handed over, the
        oldest first. They are looked at, too: a connection may hold other bytes soon."""
        self._is_due = False
        """Whether those that wait are looked at in the next iteration of the event loop."""
        self._timer: Timer | None = None
        """Has all of them looked at a little later."""
        self._now = 0.0
        """Seconds that have passed while there was something to look at. Of a stall of the process
        little counts: nobody could answer or read meanwhile."""
        self._timer_set_at = 0.0
        """By the clock."""

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
        if self._waiting:
            first = next(iter(self._waiting.values()))
            if not must or self._is_overdue(first):
                return False
        others = self._memory_budget.held - self._waiting_held - memory.held
        if not self._fits(memory, model, rows, others, must=must):
            return False
        self._begin(memory, model, rows, self._memory_budget.keep_up_to)
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
        self._waiting[memory] = _Waiting(model, rows, memory.held, self._now, begin)
        self._waiting_held += memory.held
        self._look_again(clockwork)

    def answered(self, model: bytes, rows: int, size: int, clockwork: Clockwork) -> None:
        """Note how long the answer to some rows was."""
        is_news = model not in self._row_sizes
        self._row_sizes[model] = -(-size // rows)
        if is_news:
            self._look_soon(clockwork)

    def handed_over(self, reader: Holder, clockwork: Clockwork) -> None:
        """The joined answer of a batch is for its client to read.

        Args:
            reader: holds what the client does not read, from the next iteration at the latest.
            clockwork: of the process.
        """
        if reader in self._unread and reader.held:
            return  # it has not read an earlier one yet
        self._unread.pop(reader, None)
        self._unread[reader] = self._now
        self._look_again(clockwork)

    def _forget_read(self) -> None:
        """Forget those that hold nothing any more."""
        self._unread = {
            reader: since
            for reader, since in self._unread.items()
            if reader.held or self._now - since < 2 * _LOOK_S  # it is counted in a moment
        }

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
        if not self._waiting and not self._unread and self._timer is not None:
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

    def _is_overdue(self, waiting: _Waiting) -> bool:
        return self._now - waiting.since >= _PATIENCE_S

    def _may_begin(self, memory: BatchMemory, waiting: _Waiting) -> bool:
        """Whether a batch in line may begin. If it is overdue, others may give way for that."""
        if waiting.model not in self._row_sizes and self._now - waiting.since >= _LEARNING_S:
            return True
        others = self._memory_budget.held - self._waiting_held
        if self._fits(memory, waiting.model, waiting.rows, others, must=True):
            return True
        return self._is_overdue(waiting) and self._makes_room(memory, waiting, others)

    def _makes_room(self, memory: BatchMemory, waiting: _Waiting, others: int) -> bool:
        """Whether an overdue batch may begin: there is room for it but for unread answers, and
        those have given way as far as it needs.

        Args:
            memory: of the batch.
            waiting: the batch.
            others: bytes that are held but for those of batches that wait.
        """
        others -= sum(reader.held for reader in self._unread)
        # Clients of other requests may be slow, too. While no answers are awaited, only they and
        # those that send keep it from beginning.
        if self._running and not self._fits(memory, waiting.model, waiting.rows, others, must=True):
            return False
        budget = self._memory_budget
        answer = min(self._row_sizes.get(waiting.model, 0) * waiting.rows, budget.keep_up_to)
        most = self._most_overdue
        if budget.held + answer > most:
            for reader in self._giving_way():
                if budget.held + answer <= most:
                    break
                if reader.held:
                    budget.evict_holder(reader)
            self._forget_read()
        # What is left of the unread is to be read, or is old enough in a moment.
        return budget.held + answer <= most or not self._unread

    @property
    def _most_overdue(self) -> int:
        """Bytes up to which batches begin that are overdue."""
        return self._memory_budget.keep_up_to * 3 // 2

    def _giving_way(self) -> list[Holder]:
        """Who gives way, in this order. Among the slow ones whose answers are of one length those
        that began last have read the least."""
        slow: list[tuple[int, float, Holder]] = []
        other: list[Holder] = []
        for reader, since in self._unread.items():
            if self._now - since >= _PATIENCE_S:
                slow.append((reader.held, since, reader))
            elif self._now - since >= _READING_S:
                other.append(reader)
        slow.sort(key=itemgetter(0, 1), reverse=True)
        return [*(reader for _, _, reader in slow), *other]

    def _begin(self, memory: BatchMemory, model: bytes, rows: int, most: int) -> None:
        """Begin a batch, and reserve room for its answers while no more is held than `most`."""
        self._running[memory] = model
        room = max(0, most - self._memory_budget.held)
        memory.reserve(min(self._row_sizes.get(model, 0) * rows, room))

    def _look_soon(self, clockwork: Clockwork) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            clockwork.iteration.later(partial(self._look, clockwork))

    def _look_again(self, clockwork: Clockwork) -> None:
        if self._timer is None:
            self._timer_set_at = self._clock()
            self._timer = clockwork.timers.after(_LOOK_S, partial(self._on_timer, clockwork))

    def _on_timer(self, clockwork: Clockwork) -> None:
        self._timer = None
        self._now += min(self._clock() - self._timer_set_at, _STEP_S)
        self._forget_read()
        self._look_soon(clockwork)
        if self._unread:
            self._look_again(clockwork)

    def _look(self, clockwork: Clockwork) -> None:
        """Begin those that wait, as far as there is room."""
        self._is_due = False
        passed_over = 0
        for memory, waiting in tuple(self._waiting.items()):
            if clockwork.iteration.left <= 0 or passed_over > _PASSED_OVER:
                break
            # Some have left since: their clients gave way.
            may_begin = memory in self._waiting and self._may_begin(memory, waiting)
            if may_begin and memory in self._waiting:
                is_overdue = self._is_overdue(waiting)
                most = self._most_overdue if is_overdue else self._memory_budget.keep_up_to
                self._leave_line(memory)
                self._begin(memory, waiting.model, waiting.rows, most)
                waiting.begin()
            elif memory in self._waiting:
                if self._is_overdue(waiting):
                    break
                passed_over += 1
        if clockwork.iteration.left <= 0:
            self._look_soon(clockwork)
        elif self._waiting:
            self._look_again(clockwork)
