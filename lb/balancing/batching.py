"""A model backend that executes queued requests together (Triton's dynamic batching).

An execution takes a base time and some for each row, so that one more request costs little where
others are queued already. Executions are recognised by their ends: the answers of one arrive
together. While one runs the next one fills, up to a whole batch per instance. More requests than
that are queued here.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.capacity import NO_LIMIT
from lb.balancing.cost import MIN_SAMPLES, Cost
from lb.balancing.estimate import Estimate
from lb.balancing.model_backend import OWN_EXECUTION_WEIGHT, ModelBackend
from lb.balancing.model_stats import ModelStats
from lb.balancing.tuning import TUNING
from lb.domain.schedule import Capacity, Ending, Ticket

_AT_ONCE_S: Final = TUNING.batch_end_s
_KEEP: Final = 1.0 - TUNING.batch_rows_weight


class BatchingModelBackend(ModelBackend):
    """One model on one backend that executes requests in batches."""

    __slots__ = (
        "_batch_count", "_batch_ended", "_batch_good", "_batch_rows", "_batch_size", "_batch_took",
        "_request_rows", "_running", "batch", "rows", "waiting_rows",
    )  # fmt: skip

    def __init__(self, penalty: BackendPenalty, capacity: Capacity, stats: ModelStats) -> None:
        self.batch = max(2, capacity.max_batch)
        """Rows of one execution at most."""
        self.rows = 0
        """Rows of all requests in flight."""
        self.waiting_rows = 0
        """Rows of the requests that are queued at the backend, as far as can be known."""
        self._running: deque[tuple[float, int]] = deque()
        """The executions that probably run: when each began, and its rows."""
        self._request_rows = 1.0
        """Average rows of a request."""
        # The execution whose answers arrived last:
        self._batch_took = 0.0
        self._batch_ended = -1.0
        self._batch_rows = 0
        self._batch_size = 0
        self._batch_count = 0
        self._batch_good = False
        super().__init__(penalty, capacity, stats)

    def apply(self, capacity: Capacity) -> None:
        """Take over another capacity."""
        self.batch = max(2, capacity.max_batch)
        super().apply(capacity)

    def inherit(self, before: ModelBackend, now: float) -> None:
        """Take the place of a model backend of another kind."""
        super().inherit(before, now)
        self.rows = self.load.in_flight
        self._batch_ended = now

    def end_inherited(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """End a request that began in the model backend before this one."""
        super().end_inherited(ticket, now, ending)
        self.rows -= 1
        if not self._batch_count:
            self._batch_ended = now
        if not self.load.in_flight:
            self._ran_out()

    def adjust(self) -> None:
        """Take over the limit that the capacity has for batches."""
        rule = self._rule
        if rule is not None and rule.follows_cost:
            self.limit = rule.batch_limit(self.batch)

    @property
    def rate(self) -> float:
        """Requests per second that it can execute; 0 where that is not known."""
        if not self.load.cost.count:
            return 0.0
        per_batch = max(1.0, self.batch / self._request_rows)
        took = self._execution_s(int(per_batch * self._request_rows), 0)
        return self.instances * per_batch / took

    @property
    def most_rows(self) -> int:
        """Rows that may be in flight."""
        if self.is_exact or self.capacity.is_adaptive:
            return NO_LIMIT
        return 2 * self.instances * self.batch

    def can_take(self) -> bool:
        """Whether it has room, as far as that does not depend on the time.

        A model backend of unknown cost gets one request. A request of many rows goes if it is
        alone.
        """
        load = self.load
        count = load.in_flight
        if not count:
            return True
        return count < self.limit and load.cost.count >= MIN_SAMPLES and self.rows < self.most_rows

    def estimate(self, rows: int, size: int, now: float) -> Estimate:
        """Predict when a request would execute here; see `ModelBackend`."""
        can_take = self.can_take()
        is_tried = not can_take and self.may_try(now)
        can_take = (can_take or is_tried) and not self.is_shut()
        begins_at = now
        filled = rows
        if not can_take or (len(self._running) >= self.instances and not is_tried):
            # A full model backend is free when something ends, though an instance seems idle.
            full, ahead = divmod(self.waiting_rows, self.batch)
            begins_at = self._next_at(now)
            if full:
                begins_at += full * self._execution_s(self.batch, 0) / self.instances
            filled = min(self.batch, ahead + rows)
        took = self._execution_s(filled, size)
        if now - self.load.cost.at > self.explore_s:
            took = self._doubted(took, now)
        if self.penalty.factor != 1.0:
            took *= self.penalty.factor_now(now)
        if self.external_load is not None:
            begins_at += self.external_load.wait_s(now)
            took *= self.external_load.slower(now)
        return Estimate(begins_at, begins_at + took, took, may_begin=can_take)

    def least_begin(self, ratio: float, now: float) -> float:
        """Predict when an instance is free; see `ModelBackend`."""
        if len(self._running) < self.instances and self.can_take():
            return now
        began, rows = self._running[0] if self._running else (self._batch_ended, 1)
        begin = max(now, began + ratio * self._execution_s(rows, 0))
        full = self.waiting_rows // self.batch
        return begin + ratio * full * self._execution_s(self.batch, 0) / self.instances

    def free_times(self, now: float) -> tuple[float, float]:
        """Predict when the execution begins that one more request would be in. The prediction may
        change at any time."""
        return self.estimate(1, 0, now).begins_at, now

    def could_take(
        self, within_s: float, own_execution_weight: float = OWN_EXECUTION_WEIGHT
    ) -> int:
        """Count further requests that would compare well here; see `ModelBackend`."""
        return int(within_s * self.rate)

    def begin(self, ticket: Ticket, estimate: Estimate, now: float) -> None:
        """Count a request that begins here; see `ModelBackend`."""
        ticket.began_at = now
        ticket.expected_s = max(0.0, estimate.ends_at - now)
        self._request_rows = _KEEP * self._request_rows + (1.0 - _KEEP) * ticket.rows
        if len(self._running) < self.instances:
            self._running.append((now, ticket.rows))
        else:
            self.waiting_rows += ticket.rows
        self.load.in_flight += 1
        ticket.model_backend = self
        self.unanswered.tickets[ticket] = None
        self.rows += ticket.rows

    def begin_uncompared(self, ticket: Ticket, now: float) -> None:
        """Count a request that begins here for which no estimate was asked."""
        self.begin(ticket, self.estimate(ticket.rows, ticket.size, now), now)

    def end(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """Count a request that ends, and learn from its execution once that is over."""
        self._ends = ends = self._ends + 1
        self._ends_at[ends % len(self._ends_at)] = now
        self.adapt(now)
        self.load.in_flight -= 1
        del self.unanswered.tickets[ticket]
        self.rows -= ticket.rows
        if ending is Ending.FAILED:
            self.penalty.on_failure(now)
        elif ending is Ending.GOOD:
            self.stats.answered_at = now
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
        if not self.load.in_flight:
            self._ran_out()

    @property
    def rows_in_flight(self) -> int:
        """Rows of all requests in flight."""
        return self.rows

    def count_others(
        self, count: int, work_s: float, since: float, ends: int, rows: int, now: float
    ) -> None:
        """Count what requests of other workers have changed here; see `ModelBackend`.

        The answers of one execution go to several workers, so an end is one of the last execution,
        or the first of the next.
        """
        super().count_others(count, work_s, since, ends, rows, now)
        self.rows += rows
        if ends:
            if not self._batch_count or now - self._batch_ended > _AT_ONCE_S:
                self._learn_batch()
                self._batch_ended = now
                self._batch_good = False
                if self._running:
                    self._running.popleft()
                if self.waiting_rows:
                    filled = min(self.batch, self.waiting_rows)
                    self.waiting_rows -= filled
                    self._running.append((now, filled))
            self._batch_count += ends
        elif rows > 0:
            if len(self._running) < self.instances:
                self._running.append((now, rows))
            else:
                self.waiting_rows += rows
        if not self.load.in_flight:
            self._ran_out()

    def _ran_out(self) -> None:
        """Note that nothing is in flight any more."""
        self._learn_batch()
        self._running.clear()
        self.waiting_rows = 0

    def _is_of_last_batch(self, ticket: Ticket, now: float) -> bool:
        """Whether an answer belongs to the execution whose answers arrived last."""
        if not self._batch_count or self._batch_rows + ticket.rows > self.batch:
            return False
        return now - self._batch_ended <= _AT_ONCE_S

    def _begin_batch(self, ticket: Ticket, now: float) -> None:
        """Note the first answer of an execution: another one runs in its place."""
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
        """Learn from the last execution, all of whose answers have arrived."""
        count = self._batch_count
        if count and self._batch_good:
            took, now = self._batch_took, self._batch_ended
            self.learn(took, self._batch_rows, self._batch_size, now)
            usual: Cost = self.stats.usual
            usual.learn(took / count, self._batch_rows / count, self._batch_size / count, now)
        self._batch_count = 0

    def _execution_s(self, rows: int, size: int) -> float:
        """Predict the time of an execution of so many rows in seconds."""
        cost = self.load.cost
        if cost.count < MIN_SAMPLES:
            return self.stats.best_s
        return cost.predict(rows, size)

    def _next_at(self, now: float) -> float:
        """Predict when the first of the executions that run ends."""
        began, rows = self._running[0] if self._running else (self._batch_ended, 1)
        ends = began + self._execution_s(rows, 0)
        return ends if ends > now else now + (now - ends)
