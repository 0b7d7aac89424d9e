"""One model on one backend: what is in flight there, and when one more request would end.

Executions that are queued inside of a backend run in the order of their arrival, on as many
instances as it has.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from math import ceil
from typing import Final

from lb.balancing.backend_external_load import BackendExternalLoad
from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.capacity import NO_LIMIT, CapacityRule, capacity_rule
from lb.balancing.cost import MAX_EXTRAPOLATION, MIN_SAMPLES, WINDOW, Cost
from lb.balancing.division import BatchTime
from lb.balancing.estimate import Estimate
from lb.balancing.load_view import LoadView
from lb.balancing.model_stats import ModelStats
from lb.balancing.shared_load import SharedLoad
from lb.balancing.tuning import TUNING
from lb.balancing.unanswered import Unanswered
from lb.domain.load import Measured
from lb.domain.schedule import Capacity, Ending, Ticket

LEAD_S: Final = TUNING.lead_s
OWN_EXECUTION_WEIGHT: Final = TUNING.own_execution_weight
MARGIN_S: Final = TUNING.margin_s
_AHEAD_ROUNDING: Final = TUNING.ahead_rounding
_ENDS: Final = 64
"""The times of this many last ends are remembered."""
_EXPLORE_S: Final = TUNING.explore_s
_MAX_EXPLORE_S: Final = TUNING.max_explore_s
_AS_BEFORE: Final = TUNING.confirm_ratio
_REQUEST_WEIGHT: Final = TUNING.request_weight
_NETWORK_ROUNDS: Final = TUNING.network_rounds
LATENESSES: Final = TUNING.latenesses
_RANDOM_DEVIATION: Final = TUNING.random_deviation
_ADJUST_EVERY: Final = TUNING.adjust_every - 1
_WEIGHTED_FROM: Final = int(1.0 / _REQUEST_WEIGHT)
"""Until so many answers `alone_s` is their plain average."""
_GOOD: Final = Ending.GOOD
_FAILED: Final = Ending.FAILED
_CONFIDENT_SAMPLES: Final = TUNING.confident_samples
_QUICK_S: Final = TUNING.quick_s
_SCATTER: Final = 40503
_SKIPPED: Final = 0x10000 - 0x10000 // TUNING.learn_one_in
_NEWS_S: Final = TUNING.learn_after_s
_SETTLED: Final = TUNING.settled_deviation
_AS_EXPECTED: Final = TUNING.expected_deviation
_USUAL_EVERY: Final = TUNING.typical_one_in - 1


class ModelBackend:
    """One model on one backend that executes each request by itself."""

    __slots__ = (
        "_ends", "_ends_at", "_rule", "alone_s", "backend", "capacity", "explore_s",
        "external_load", "high", "instances", "is_exact", "is_watched", "last_pick", "lateness_s",
        "lead_s", "limit", "load", "others_alone_s", "penalty", "shared", "slots", "stamp", "stats",
        "unanswered",
    )  # fmt: skip

    def __init__(self, penalty: BackendPenalty, capacity: Capacity, stats: ModelStats) -> None:
        self.penalty = penalty
        self.backend = penalty.backend
        self.stats = stats
        self.load = LoadView(Cost(capacity.instances or 1))
        """What is in flight here, and what it costs."""
        self.unanswered = Unanswered()
        """The requests in flight. Those that began in the model backend that it replaced are among
        them."""
        self.high = 0
        """Requests in flight that are of the highest priority."""
        self.last_pick = 0
        """The number of the ticket that began here last."""
        self.others_alone_s = 0.0
        """The longest `alone_s` of other workers that have requests in flight here."""
        self.alone_s = 0.0
        """Average time until the answer of a request that found an instance free."""
        self.lead_s = LEAD_S
        """Requests are sent ahead to an execution that ends within so many seconds."""
        self.lateness_s = 0.0
        """How much later than expected requests end on average. Early ones count as punctual."""
        self.explore_s = _EXPLORE_S
        """After so long without an answer the estimate is doubted, more and more."""
        self.external_load: BackendExternalLoad | None = None
        """What other clients do there, where there is anything to say of it."""
        self.shared: SharedLoad | None = None
        """What `load` contains of other workers; None with one worker."""
        self.is_watched = False
        """Its model queue has to know what begins and ends here."""
        self.stamp = 0
        """The number of its valid entry in the `ModelBackendIndex`."""
        self._ends = 0
        self._ends_at = [0.0] * _ENDS
        self._rule: CapacityRule | None = None
        self.capacity = capacity
        self.apply(capacity)

    @property
    def cost(self) -> Cost:
        """The learnt cost of an execution; `load.cost`."""
        return self.load.cost

    @property
    def in_flight(self) -> int:
        """Requests in flight; `load.in_flight`."""
        return self.load.in_flight

    def apply(self, capacity: Capacity) -> None:
        """Take over another capacity."""
        self._rule = rule = capacity_rule(capacity, self._rule, self.capacity)
        self.capacity = capacity
        self.instances = rule.configured_instances
        self.slots = max(1, capacity.instances) * max(1, capacity.max_batch)
        """Requests that it executes at once, as its capacity says."""
        self.limit = rule.number
        self.is_exact = rule.is_exact
        """Its limit is a number that somebody gave: nothing else closes it once it is known."""
        if rule.is_exact:
            self.slots = min(self.slots, self.limit)
        self.stats.version += 1
        self.adjust()
        self._run_in_parallel()

    def _run_in_parallel(self) -> None:
        """Have what is learnt depend on how many executions run side by side."""
        self.load.cost.run_in_parallel(self.instances)
        self.stats.run_in_parallel(self.instances)

    def adjust(self) -> None:
        """Compute the limit anew from the learnt cost, where it depends on that."""
        rule = self._rule
        if rule is None or not rule.follows_cost:
            return
        if self.instances != rule.instances:
            self.instances = rule.instances
            self.stats.version += 1
            self._run_in_parallel()
        cost = self.load.cost
        ahead = 1.0
        if cost.count >= MIN_SAMPLES:
            # The network delay, both ways and all event loops, is what a request is away beyond a
            # quick execution. Where executions are very unlike each other a quick one says nothing.
            is_any = cost.deviation_s > _RANDOM_DEVIATION * cost.mean_s
            quick_s = cost.mean_s if is_any else cost.mean_s * cost.least_ratio()
            network_s = max(0.0, max(self.alone_s, self.others_alone_s) - quick_s)
            self.lead_s = LEAD_S + _NETWORK_ROUNDS * network_s
            ahead = (MARGIN_S + _NETWORK_ROUNDS * network_s) * self.instances / cost.mean_s
        self.limit = rule.limit(max(1, ceil(ahead - _AHEAD_ROUNDING)))

    def inherit(self, before: ModelBackend, now: float) -> None:
        """Take the place of a model backend of another kind.

        Requests in flight there count here until they are over (`end_inherited`). The cost of an
        execution is taken over where both mean the same by it.
        """
        load = self.load
        if not (self.capacity.is_shared or before.capacity.is_shared):
            load.cost = before.load.cost
            self.explore_s = before.explore_s
        before.is_watched = True
        stats = self.stats
        stats.version += 1
        if stats.best is before:
            stats.best = self if load.cost.count else None
        load.in_flight = before.load.in_flight
        self.unanswered = before.unanswered
        self.high = before.high
        self.last_pick = before.last_pick
        load.work_s = load.in_flight * self.predict(1, 0)
        load.busy_since = now
        self.adjust()
        self._run_in_parallel()

    def end_inherited(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """End a request that began in the model backend before this one. It teaches nothing of the
        cost of an execution."""
        del self.unanswered.tickets[ticket]
        self._ends = ends = self._ends + 1
        self._ends_at[ends % _ENDS] = now
        load = self.load
        load.work_s -= load.work_s / load.in_flight
        load.in_flight -= 1
        load.busy_since = now
        if ending is _FAILED:
            self.penalty.on_failure(now)
        elif ending is _GOOD and self.penalty.factor != 1.0:
            self.penalty.on_success(now)

    def forget(self) -> None:
        """Forget what was learnt."""
        self.load.cost = Cost(self.instances)
        self.stats.version += 1
        self.external_load = None
        self.explore_s = _EXPLORE_S

    def assume(self, measured: Measured, now: float) -> None:
        """Begin with what the backend itself has measured, where nothing is known."""
        cost = self.load.cost
        if cost.count:
            return
        cost.assume(measured, now)
        stats = self.stats
        stats.version += 1
        if stats.best is None or cost.mean_s < stats.best_s:
            stats.best = self
            stats.best_s = cost.mean_s
        self.adjust()

    @property
    def ended(self) -> int:
        """Attempts that are over."""
        return self._ends

    @property
    def low(self) -> int:
        """Requests in flight that are not of the highest priority."""
        return self.load.in_flight - self.high

    @property
    def shown_limit(self) -> int:
        """The limit; 0 where there is none."""
        return 0 if self.limit == NO_LIMIT else self.limit

    @property
    def rate(self) -> float:
        """Requests per second that it can execute; 0 where that is not known."""
        cost = self.load.cost
        return self.instances / cost.mean_s if cost.count else 0.0

    def predict(self, rows: int, size: int) -> float:
        """Predict the execution time of a request in seconds."""
        cost = self.load.cost
        if cost.count < MIN_SAMPLES:
            return self.stats.best_s
        return cost.predict(rows, size)

    def least_end(self, rows: int, size: int, now: float) -> tuple[float, float, float]:
        """Predict the end of a request if each execution were as quick as the quickest recent one.

        Returns:
            The time at which an instance is free for it, and the seconds that it then takes and
            that a typical one takes. Zeros where too little is known of recent executions.
        """
        cost = self.load.cost
        if not cost.is_sure(now):
            return 0.0, 0.0, 0.0
        ratio = cost.least_ratio()
        own_s = min(cost.predict(rows, size), MAX_EXTRAPOLATION * cost.mean_s)
        return self.least_begin(ratio, now), ratio * own_s, ratio * cost.mean_s

    def least_begin(self, ratio: float, now: float) -> float:
        """Predict when an instance is free if executions take that part of their typical time.

        One instance began at `busy_since`. What the others execute may end at once.
        """
        load = self.load
        instances = self.instances
        ahead = load.in_flight - 2 * (instances - 1)
        begin = load.busy_since + ratio * load.cost.mean_s * ahead / instances
        return begin if load.in_flight >= instances and begin > now else now

    @property
    def margin_s(self) -> float:
        """How much before its deadline a request must be expected to end to be surely in time. The
        network is not included."""
        return LATENESSES * self.lateness_s

    def missed(self, ticket: Ticket, now: float) -> None:
        """Note by how much a request that has ended well was later than expected."""
        late_s = min(now - ticket.began_at - ticket.expected_s, self.load.cost.mean_s)
        self.lateness_s += _REQUEST_WEIGHT * (max(late_s, 0.0) - self.lateness_s)

    @property
    def is_idle(self) -> bool:
        """Whether an instance has nothing to do."""
        return self.load.in_flight < self.instances

    def can_take(self) -> bool:
        """Whether it has room, as far as that does not depend on the time.

        A model backend of unknown cost gets no more than it executes.
        """
        load = self.load
        count = load.in_flight
        return count < self.limit and (count < self.instances or load.cost.count >= MIN_SAMPLES)

    def estimate(self, rows: int, size: int, now: float) -> Estimate:
        """Predict when a request would execute here.

        Args:
            rows: batch dimension of the request.
            size: bytes of the request.
            now: the time.
        """
        load = self.load
        cost = load.cost
        count = load.in_flight
        backend = self.backend
        if cost.count >= MIN_SAMPLES:
            took = cost.base_s + cost.row_s * rows
            if cost.byte_s:
                took = cost.with_bytes(took, size)
        else:
            took = self.stats.best_s
        is_doubted = cost.mean_s > self.stats.best_s and now - cost.at > self.explore_s
        if is_doubted:
            took = self._doubted(took, now)
        if count < self.instances:
            begins_at = now
            may_begin = count < self.limit
        else:
            # `free_times` is written out.
            if self.instances == 1:
                begins_at = load.busy_since + load.work_s
            else:
                begins_at = load.free_at(self.instances)
            if begins_at < now:
                begins_at = now + (now - begins_at)
            # A model backend of unknown or doubted cost gets no more than it executes.
            may_begin = (
                count < self.limit
                and (begins_at - now <= self.lead_s or self.is_exact)
                and not is_doubted
                and cost.count >= MIN_SAMPLES
            )
            # `may_try` is written out.
            if not may_begin and now >= self.unanswered.check_at:
                self.check_overdue(now)
            if count < self.unanswered.open_below:
                begins_at = now
                may_begin = True
        if backend.max_in_flight and self.is_shut():
            may_begin = False
            if 0 < count < self.instances:
                # A request of this model has to end, or one of others, of which nothing is known.
                begins_at = load.free_at(count)
                if begins_at < now:
                    begins_at = now + (now - begins_at)
        if self.penalty.factor != 1.0:
            took *= self.penalty.factor_now(now)
        if self.external_load is not None:
            begins_at += self.external_load.wait_s(now)
            took *= self.external_load.slower(now)
        return Estimate(begins_at, begins_at + took, took, may_begin=may_begin)

    def batch_time(self, rows: int, size: int, now: float, *, as_idle: bool) -> BatchTime:
        """Describe how long it would take for some rows of a batch, by what was learnt.

        Args:
            rows: of the batch.
            size: its bytes.
            now: the time.
            as_idle: the executions under way do not count.
        """
        cost = self.load.cost
        base_s, row_s = cost.line()
        wait_s = 0.0 if as_idle else self.estimate(rows, size, now).begins_at - now
        slower = 1.0
        if self.penalty.factor != 1.0:
            slower *= self.penalty.factor_now(now)
        if self.external_load is not None:
            slower *= self.external_load.slower(now)
        return BatchTime(wait_s + slower * base_s, slower * row_s)

    @property
    def idle_instances(self) -> int:
        """Instances that have nothing to do; 0 where it is not known what executions take."""
        load = self.load
        return max(0, self.instances - load.in_flight) if load.cost.count >= MIN_SAMPLES else 0

    def check_overdue(self, now: float) -> None:
        """Find requests in flight that are overdue."""
        load = self.load
        unanswered = self.unanswered
        usual_s = load.cost.mean_s
        unanswered.check(
            now,
            usual_s=usual_s,
            ended_at=self._ends_at[self._ends % _ENDS],
            answered_at=self.stats.answered_at,
            others=load.in_flight - len(unanswered.tickets),
            others_expected_s=usual_s * (1 + load.in_flight // self.slots),
            may_grow=not self.is_exact,
        )

    def may_try(self, now: float) -> bool:
        """Whether one more request may begin because all that are in flight are overdue."""
        if now >= self.unanswered.check_at:
            self.check_overdue(now)
        return 0 < self.load.in_flight < self.unanswered.open_below

    def _doubted(self, took_s: float, now: float) -> float:
        """Lower an old estimate: a slow model backend may have become as fast as the best."""
        cost = self.load.cost
        if cost.count < MIN_SAMPLES or cost.mean_s <= self.stats.best_s:
            return took_s
        doubt: float = 1.0 - 0.5 ** ((now - cost.at) / self.explore_s - 1.0)
        return took_s * (1.0 - doubt * (1.0 - self.stats.best_s / cost.mean_s))

    def is_doubted(self, now: float) -> bool:
        """Whether it counts as faster than was learnt, to find out whether it is."""
        cost = self.load.cost
        return (
            cost.mean_s > self.stats.best_s
            and now - cost.at > self.explore_s
            and cost.count >= MIN_SAMPLES
        )

    def learnt_end(self, estimate: Estimate, now: float) -> float:
        """Predict the end of an estimated request without any doubt of what was learnt."""
        if not self.is_doubted(now):
            return estimate.ends_at
        took_s = estimate.ends_at - estimate.begins_at
        return estimate.begins_at + took_s / self._doubted(1.0, now)

    def gave_up(self, took_s: float, work_s: float, now: float) -> None:
        """Note an execution that ended without a good answer while its estimate is doubted.

        If it took longer than was hoped the model backend is no faster than that. It is tried again
        much later.
        """
        if took_s > self._doubted(work_s, now):
            self.load.cost.outlasted(now)
            self.stats.version += 1
            self._explore_later()

    def _explore_later(self) -> None:
        """Doubt the estimate later, since it seems to hold."""
        self.explore_s = min(2 * self.explore_s, _MAX_EXPLORE_S)

    def is_before(self, other: ModelBackend) -> bool:
        """Whether it has the turn before another model backend that is as good: the one with less
        load, or the one that was picked less recently."""
        load = self.load.in_flight * other.instances
        others = other.load.in_flight * self.instances
        return load < others or (load == others and self.last_pick < other.last_pick)

    def usual_s(self, now: float) -> float:
        """Predict the execution time of a typical request in seconds."""
        cost = self.load.cost
        took = cost.mean_s if cost.count >= MIN_SAMPLES else self.stats.best_s
        if now - cost.at > self.explore_s:
            took = self._doubted(took, now)
        if self.penalty.factor != 1.0:
            took *= self.penalty.factor_now(now)
        if self.external_load is not None:
            took = took * self.external_load.slower(now) + self.external_load.wait_s(now)
        return took

    def is_shut(self) -> bool:
        """Whether the backend is at its own limit, which counts requests of all models."""
        limit = self.backend.max_in_flight
        return bool(limit) and self.backend.in_flight + self.penalty.uncounted >= limit

    def free_times(self, now: float) -> tuple[float, float]:
        """Predict when an instance is free for one more request. All instances must be busy.

        Returns:
            The time, and until when that prediction holds if nothing begins or ends.
        """
        # HOT PATH (benchmarks/bench_schedule.py). `LoadView.free_at` is the reference.
        load = self.load
        if self.instances == 1:
            free_at = load.busy_since + load.work_s
        else:
            free_at = load.free_at(self.instances)
        # What is overdue takes about as much longer as it has done already.
        return (free_at if free_at > now else now + (now - free_at)), free_at

    def could_take(
        self, within_s: float, own_execution_weight: float = OWN_EXECUTION_WEIGHT
    ) -> int:
        """Count further requests that would compare well here, when nothing else is to be done.

        Args:
            within_s: the wait of the request that they are compared with, and the part of its own
                execution that counts.
            own_execution_weight: that part.
        """
        cost = self.load.cost
        took = cost.mean_s if cost.count >= MIN_SAMPLES else self.stats.best_s
        return int(within_s * self.instances / took + (1.0 - own_execution_weight))

    def begin(self, ticket: Ticket, estimate: Estimate, now: float) -> None:
        """Count a request that begins here.

        Args:
            ticket: the request.
            estimate: what `estimate` said of it.
            now: the time.
        """
        # HOT PATH (benchmarks/bench_schedule.py). `predict` is written out.
        load = self.load
        count = load.in_flight
        instances = self.instances
        cost = load.cost
        if cost.count >= MIN_SAMPLES:
            took = cost.base_s + cost.row_s * ticket.rows
            if cost.byte_s:
                took = cost.with_bytes(took, ticket.size)
        else:
            took = self.stats.best_s
        ticket.began_at = now
        ticket.work_s = took
        ticket.expected_s = expected_s = estimate.begins_at - now + took
        if instances > 1:
            insort(load.expected_ends, now + expected_s)
        if count < instances:
            ticket.after = self._ends
            load.busy_since = now
        else:
            after = self._ends + count - instances + 1
            ticket.after = after if count < self.limit else -after
        load.in_flight = count + 1
        self.unanswered.tickets[ticket] = None
        load.work_s += took
        ticket.model_backend = self

    def begin_idle(self, ticket: Ticket, now: float) -> None:
        """Count a request that begins here while an instance is idle. The cost is known, and bytes
        have no part in it."""
        # HOT PATH (benchmarks/bench_schedule.py). `begin` is the reference.
        load = self.load
        cost = load.cost
        took = cost.base_s + cost.row_s * ticket.rows
        ticket.began_at = load.busy_since = now
        ticket.work_s = ticket.expected_s = took
        ticket.after = self._ends
        ticket.model_backend = self
        if self.instances > 1:
            insort(load.expected_ends, now + took)
        load.in_flight += 1
        load.work_s += took
        self.unanswered.tickets[ticket] = None

    def begin_uncompared(self, ticket: Ticket, now: float) -> None:
        """Count a request that begins here for which no estimate was asked."""
        # HOT PATH (benchmarks/bench_stream_relay.py). `begin` after `estimate` is the reference.
        load = self.load
        cost = load.cost
        if (
            cost.count < MIN_SAMPLES
            or cost.byte_s
            or self.external_load is not None
            or self.unanswered.open_below
        ):
            self.begin(ticket, self.estimate(ticket.rows, ticket.size, now), now)
            return
        count = load.in_flight
        instances = self.instances
        took = expected_s = cost.base_s + cost.row_s * ticket.rows
        if count < instances:
            ticket.after = self._ends
            load.busy_since = now
        else:
            free_at = load.busy_since + load.work_s if instances == 1 else load.free_at(instances)
            expected_s += free_at - now if free_at > now else now - free_at
            after = self._ends + count - instances + 1
            ticket.after = after if count < self.limit else -after
        ticket.began_at = now
        ticket.work_s = took
        ticket.expected_s = expected_s
        ticket.model_backend = self
        if instances > 1:
            insort(load.expected_ends, now + expected_s)
        load.in_flight = count + 1
        load.work_s += took
        self.unanswered.tickets[ticket] = None

    def end(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """Count a request that ends, and learn from it."""
        # HOT PATH (benchmarks/bench_schedule.py). `missed` is written out.
        self._ends = ends = self._ends + 1
        self._ends_at[ends % _ENDS] = now
        if self.capacity.is_adaptive:
            self.adapt(now)
        load = self.load
        load.in_flight = count = load.in_flight - 1
        del self.unanswered.tickets[ticket]
        load.work_s = load.work_s - ticket.work_s if count else 0.0
        load.busy_since = now
        expected = load.expected_ends
        if expected:
            # Or that of another one which was expected to end at about the same time.
            due = ticket.began_at + ticket.expected_s
            del expected[bisect_left(expected, due, 0, len(expected) - 1)]
        if ending is not _GOOD:
            if ending is _FAILED:
                self.penalty.on_failure(now)
            if self.is_doubted(now) and (took_s := self.executed_s(ticket, now)) >= 0.0:
                self.gave_up(took_s, ticket.work_s, now)
            return
        self.stats.answered_at = now
        if self.penalty.factor != 1.0:
            self.penalty.on_success(now)
        cost = load.cost
        limit_s = cost.mean_s
        is_skipped = (
            cost.count > _CONFIDENT_SAMPLES
            and ends * _SCATTER & _SKIPPED
            and now - cost.at < _NEWS_S
        )
        if is_skipped and limit_s < _QUICK_S * self.instances:
            return
        began = ticket.began_at
        expected_s = ticket.expected_s
        late_s = now - began - expected_s
        if (
            is_skipped
            and cost.deviation_s < _SETTLED * limit_s
            and -_AS_EXPECTED * limit_s < late_s < _AS_EXPECTED * limit_s
        ):
            return
        late_s = limit_s if late_s > limit_s else late_s if late_s > 0.0 else 0.0
        self.lateness_s += _REQUEST_WEIGHT * (late_s - self.lateness_s)
        if expected_s == ticket.work_s:  # it did not have to wait there
            part = _REQUEST_WEIGHT if cost.count >= _WEIGHTED_FROM else 1.0 / (1 + cost.count)
            self.alone_s += part * (now - began - self.alone_s)
        took_s = self.executed_s(ticket, now)
        if took_s < 0.0:
            return
        self.learn(took_s, ticket.rows, ticket.size, now)
        usual = self.stats.usual
        if usual.count < cost.count <= _CONFIDENT_SAMPLES or not ends & _USUAL_EVERY:
            usual.learn(took_s, ticket.rows, ticket.size, now)

    @property
    def rows_in_flight(self) -> int:
        """Rows of the requests in flight, where batches are executed; otherwise requests."""
        return self.load.in_flight

    def count_others(
        self, count: int, work_s: float, since: float, ends: int, rows: int, now: float
    ) -> None:
        """Count what requests of other workers have changed here.

        Args:
            count: by how much more of them are in flight.
            work_s: by how much more work they are, in seconds.
            since: when the instances began with what they execute, as far as another worker knows.
            ends: how many of them have ended.
            rows: by how much more rows they have.
            now: the time.
        """
        if count + ends > 0:
            self.unanswered.began_elsewhere(count + ends, now)
        if ends:
            self.stats.answered_at = now
        load = self.load
        load.in_flight += count
        load.work_s = max(0.0, load.work_s + work_s)
        load.busy_since = max(load.busy_since, since)
        for _ in range(min(ends, _ENDS)):
            self._ends += 1
            self._ends_at[self._ends % _ENDS] = load.busy_since

    def end_lost(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """Learn from a request that was given up as lost, and that ends after all."""
        if ending is _FAILED:
            self.penalty.on_failure(now)
        elif ending is _GOOD:
            self.learn(now - ticket.began_at, ticket.rows, ticket.size, now)

    def executed_s(self, ticket: Ticket, now: float) -> float:
        """Find how long a request was executed that ends now: since an instance was free for it.
        Less than 0: that cannot be told, since it began beyond the limit, as requests of streams
        do, and did not end in its turn."""
        began = ticket.began_at
        waited_for = ticket.after
        ends = self._ends
        if waited_for < 0:
            waited_for = -waited_for
            # In turn it ends as the next one but for those that execute beside it.
            if not 0 < ends - waited_for <= 2 * self.instances:
                return -1.0
        if ends - _ENDS < waited_for < ends:
            free_at = self._ends_at[waited_for % _ENDS]
            if free_at > began:
                return now - free_at
        return now - began

    def adapt(self, now: float) -> None:
        """Have an adaptive capacity measure the end of a request."""
        rule = self._rule
        if rule is not None and rule.ended(now, self.load.in_flight):
            self.adjust()

    def learn(self, took_s: float, rows: int, size: int, now: float) -> None:
        """Learn from an execution of so many rows and bytes that took so many seconds."""
        cost = self.load.cost
        before = cost.mean_s
        last_at = cost.at
        cost.learn(took_s, rows, size, now)
        stats = self.stats
        stats.version += 1
        if cost.count < MIN_SAMPLES:
            if stats.best is None:
                stats.best_s = cost.mean_s
        elif stats.best is None or stats.best is self or cost.mean_s < stats.best_s:
            # Where the fastest has become slower, the next answer of a faster one mends it.
            stats.best = self
            stats.best_s = cost.mean_s
        if now - last_at > self.explore_s:
            is_as_before = before / _AS_BEFORE < took_s < before * _AS_BEFORE
            self.explore_s = min(2 * self.explore_s, _MAX_EXPLORE_S) if is_as_before else _EXPLORE_S
        if cost.count <= WINDOW or not cost.count & _ADJUST_EVERY:
            self.adjust()
