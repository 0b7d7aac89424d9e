"""A model backend at a backend that puts what waits into one execution (Triton's dynamic batching).

An execution takes a base time and some for each row, so that one more request costs little where
others wait already. Executions are recognised by their ends: the answers of one come at once. While
one runs the next one fills, up to a whole batch per instance; more than that waits with us.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.cost import MIN_SAMPLES, Cost
from lb.balancing.model_backend import NO_LIMIT, OWN_EXECUTION_WEIGHT, ModelBackend
from lb.balancing.model_stats import ModelStats
from lb.domain.schedule import Capacity, Ending, Ticket

_AT_ONCE_S: Final = 0.002
"""Answers of one execution come so close together, or closer than that part of it."""
_AT_ONCE_SHARE: Final = 0.25
_KEEP: Final = 0.9
_JOINED: Final = 2.0
"""An execution that others wait for counts as so many where model backends are compared, and the
less of it is held against it: to join costs less work than to begin another one."""


class BatchingModelBackend(ModelBackend):
    """One model queue at one backend, which runs requests in batches."""

    __slots__ = (
        "_batch_began", "_batch_count", "_batch_ended", "_batch_good", "_batch_rows", "_batch_size",
        "_batch_took", "_ends_at_s", "_request_rows", "_running", "batch", "rows", "waiting_rows",
    )  # fmt: skip

    def __init__(self, penalty: BackendPenalty, plan: Capacity, stats: ModelStats) -> None:
        self.batch = max(2, plan.max_batch)
        """Rows of one execution at most."""
        self.rows = 0
        """Of all that is under way."""
        self.waiting_rows = 0
        """Of those that wait at the backend, as far as can be told."""
        self._running: deque[tuple[float, int]] = deque()
        """When executions began that probably run, and their rows."""
        self._request_rows = 1.0
        """Of a request on average."""
        self._ends_at_s = 0.0
        # The execution whose answers came last.
        self._batch_took = 0.0
        self._batch_ended = -1.0
        self._batch_rows = 0
        self._batch_size = 0
        self._batch_count = 0
        self._batch_good = False
        super().__init__(penalty, plan, stats)

    def apply(self, plan: Capacity) -> None:
        """Take over another limit."""
        self.batch = max(2, plan.max_batch)
        super().apply(plan)

    def inherit(self, before: ModelBackend, now: float) -> None:
        """Take the place of a model backend of another kind."""
        super().inherit(before, now)
        self.rows = self.in_flight
        self._batch_ended = now

    def end_inherited(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """An attempt is over that began in the model backend before this one."""
        super().end_inherited(ticket, now, ending)
        self.rows -= 1
        if not self._batch_count:
            self._batch_ended = now
        if not self.in_flight:
            self._ran_out()

    def adjust(self) -> None:
        """Admit one batch that executes and one that fills, per instance."""
        if self.adaptive is not None:
            self.limit = self.adaptive.limit
        elif self.plan.is_auto:
            self.limit = 2 * self.instances * self.batch

    @property
    def rate(self) -> float:
        """Requests per second that it can do, 0 where it is not known."""
        if not self.cost.count:
            return 0.0
        per_batch = max(1.0, self.batch / self._request_rows)
        took = self._execution_s(int(per_batch * self._request_rows), 0)
        return self.instances * per_batch / took

    @property
    def most_rows(self) -> int:
        """Rows that may be under way."""
        if self.is_exact or self.adaptive is not None:
            return NO_LIMIT
        return 2 * self.instances * self.batch

    def can_take(self) -> bool:
        """Whether it is open, as far as that does not change with the time.

        What nothing is known of gets one request, and whatever has many rows goes if it is alone.
        """
        count = self.in_flight
        if not count:
            return True
        return count < self.limit and self.cost.count >= MIN_SAMPLES and self.rows < self.most_rows

    def estimate(self, rows: int, size: int, now: float) -> float:
        """When a request would end here; sets `begins_at` and `is_open`."""
        can_take = self.can_take() or self.may_try(now)
        self.is_open = can_take and not self.is_shut()
        begins = now
        filled = rows
        if len(self._running) >= self.instances or not can_take:
            # What takes no more is free when something ends, though an instance seems idle.
            full, ahead = divmod(self.waiting_rows, self.batch)
            begins = self._next_at(now)
            if full:
                begins += full * self._execution_s(self.batch, 0) / self.instances
            filled = min(self.batch, ahead + rows)
        took = self._execution_s(filled, size)
        if now - self.cost.at > self.explore_s:
            took = self._doubted(took, now)
        if self.penalty.factor != 1.0:
            took *= self.penalty.factor_now(now)
        if self.external_load is not None:
            begins += self.external_load.wait_s(now)
            took *= self.external_load.slower(now)
        self.begins_at = begins
        self.takes_s = took * _JOINED if filled > rows else took
        self._ends_at_s = begins + took
        return self._ends_at_s

    def least_begin(self, ratio: float, now: float) -> float:
        """When an instance is free if executions take that part of what they usually take."""
        if len(self._running) < self.instances and self.can_take():
            return now
        began, rows = self._running[0] if self._running else (self._batch_ended, 1)
        begin = max(now, began + ratio * self._execution_s(rows, 0))
        full = self.waiting_rows // self.batch
        return begin + ratio * full * self._execution_s(self.batch, 0) / self.instances

    def free_at(self, now: float) -> float:
        """When the execution begins that one more request would be in."""
        self.estimate(1, 0, now)
        self.sure_until = now
        return self.begins_at

    def could_take(
        self, within_s: float, own_execution_weight: float = OWN_EXECUTION_WEIGHT
    ) -> int:
        """How many more requests would compare well here; see `ModelBackend`."""
        return int(within_s * self.rate)

    def begin(self, ticket: Ticket, now: float) -> None:
        """A ticket begins; `estimate` was asked about it."""
        ticket.began_at = now
        ticket.expected_s = max(0.0, self._ends_at_s - now)
        self._request_rows = _KEEP * self._request_rows + (1.0 - _KEEP) * ticket.rows
        if len(self._running) < self.instances:
            self._running.append((now, ticket.rows))
        else:
            self.waiting_rows += ticket.rows
        self.in_flight += 1
        self.unanswered.tickets[ticket] = None
        self.rows += ticket.rows

    def end(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """An attempt is over."""
        self._ends = ends = self._ends + 1
        self._ends_at[ends % len(self._ends_at)] = now
        self.adapt(now)
        self.in_flight -= 1
        del self.unanswered.tickets[ticket]
        self.rows -= ticket.rows
        if ending is Ending.FAILED:
            self.penalty.on_failure(now)
        elif ending is Ending.GOOD:
            if self.penalty.factor != 1.0:
                self.penalty.on_success(now)
            self.missed(ticket, now)
        if ending is not Ending.GOOD and self.is_doubted(now):
            self.gave_up(now - ticket.began_at, self._execution_s(ticket.rows, ticket.size), now)
        if not self._is_of_last_batch(ticket, now):
            self._learn_batch()
            self._begin_batch(ticket, now)
        self._batch_rows += ticket.rows
        self._batch_size += ticket.size
        self._batch_count += 1
        self._batch_good = self._batch_good and ending is Ending.GOOD
        if not self.in_flight:
            self._ran_out()

    def _ran_out(self) -> None:
        """Nothing is under way."""
        self._learn_batch()
        self._running.clear()
        self.waiting_rows = 0

    def _is_of_last_batch(self, ticket: Ticket, now: float) -> bool:
        if not self._batch_count or self._batch_rows + ticket.rows > self.batch:
            return False
        took = self._batch_took
        return now - self._batch_ended <= min(_AT_ONCE_S, _AT_ONCE_SHARE * took)

    def _begin_batch(self, ticket: Ticket, now: float) -> None:
        """The first answer of an execution came: another one runs in its place."""
        began = ticket.began_at
        if self._running:
            # Never before its request was there.
            began = max(began, self._running.popleft()[0])
        self._batch_took = now - began
        self._batch_ended = now
        self._batch_rows = self._batch_size = self._batch_count = 0
        self._batch_good = True
        if self.waiting_rows:
            rows = min(self.batch, self.waiting_rows)
            self.waiting_rows -= rows
            self._running.append((now, rows))

    def _learn_batch(self) -> None:
        """The last execution is known whole."""
        count = self._batch_count
        if count and self._batch_good:
            self._batches(count)
        self._batch_count = 0

    def _batches(self, count: int) -> None:
        took, now = self._batch_took, self._batch_ended
        self.learn(took, self._batch_rows, self._batch_size, now)
        usual: Cost = self.stats.usual
        usual.learn(took / count, self._batch_rows / count, self._batch_size / count, now)

    def _execution_s(self, rows: int, size: int) -> float:
        cost = self.cost
        if cost.count < MIN_SAMPLES:
            return self.stats.best_s
        return cost.predict(rows, size)

    def _next_at(self, now: float) -> float:
        """When the first of the executions that run ends."""
        began, rows = self._running[0] if self._running else (self._batch_ended, 1)
        ends = began + self._execution_s(rows, 0)
        return ends if ends > now else now + (now - ends)
