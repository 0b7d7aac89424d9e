"""A model backend: one model queue at one backend. What is under way there, and when something more
would end.

Executions that wait inside of a backend are run in the order in which they came, on as many
instances as it has.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from math import ceil
from typing import Final

from lb.balancing.adaptive import AdaptiveLimit
from lb.balancing.backend_external_load import BackendExternalLoad
from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.cost import MAX_EXTRAPOLATION, MIN_SAMPLES, WINDOW, Cost
from lb.balancing.model_stats import ModelStats
from lb.balancing.unanswered import Unanswered
from lb.domain.load import Measured
from lb.domain.schedule import Capacity, Ending, Ticket

LEAD_S: Final = 0.05
"""A request that has to wait for an execution goes there when that ends within so much: early
enough to lose no time, and late enough to be bound to the right backend."""
OWN_EXECUTION_WEIGHT: Final = 0.75
"""What counts of a request's own execution when model backends are compared, beside its wait there.

With all of it each request would end first, and those behind it would wait for the fast model
backend: a slow one would be used too late."""
BUSY_EXECUTION_WEIGHT: Final = 0.2
"""The same where it would end no later than many others do anyway (`ModelStats.tail_s`): then a
slow model backend makes nobody late, and what it takes off the fast ones shortens everybody else's
wait."""
YIELDING_LEAD_S: Final = 0.002
"""The same for requests that should not be in the way of more urgent ones."""
NOT_AHEAD_S: Final = -1.0
"""The same where more urgent ones use what is kept for them: then what ends next is for these."""
LATE_LEAD_S: Final = 0.004
"""The same where what comes next may be better placed, beside what the ways take."""
MARGIN_S: Final = 0.025
"""Execution time that is under way to a backend beyond what it executes: several times what passes
between the end of an execution and the arrival of the next request, because both wait for event
loops that are busy at times."""
NO_LIMIT: Final = 1 << 30
_MAX_MARGIN: Final = 128
_ENDS: Final = 64
"""Last ends that are remembered."""
_EXPLORE_S: Final = 1.0
_MAX_EXPLORE_S: Final = 60.0
_EXECUTIONS: Final = 4.0
"""No doubt before so many executions could have ended."""
_AS_BEFORE: Final = 1.5
_PART: Final = 0.05
"""What one request counts in averages over requests: about twenty of them are remembered."""
_NETWORK_ROUNDS: Final = 2.0
"""How many times what the ways take is under way ahead."""
LATENESSES: Final = 3.0
"""A request is expected to be in time if it would be even this many times its average lateness
later than expected. Of exponentially distributed delays nineteen of twenty are less."""
_ANY: Final = 0.6
"""Mean deviation, as a part of the mean, of executions that may take any time."""
_SOME: Final = 4
_SIDE_BY_SIDE: Final = 0.5
"""How much longer an execution is taken to need beside those of all other instances: they often
share a device."""
_ADJUST_EVERY: Final = 7
_OFTEN: Final = int(1.0 / _PART)
_GOOD: Final = Ending.GOOD
_FAILED: Final = Ending.FAILED
_CONFIDENT_SAMPLES: Final = 64
_QUICK_S: Final = 0.002
_SCATTER: Final = 40503
_SKIPPED: Final = 0xF000
"""Of executions that end so often about one of sixteen teaches. Which one goes by its number, times
the golden ratio of 2^16: answers come in bursts, and the first of each took longest."""
_NEWS_S: Final = 0.1
"""But always one that ends so long after the last that was learnt from."""
_USUAL_EVERY: Final = 3
"""One of so many executions and one more tells what is usual: it need not be known so well."""


class ModelBackend:
    """One model queue at one backend, which runs each request by itself."""

    __slots__ = (
        "_ends", "_ends_at", "_ends_expected", "adaptive", "alone_s", "anchor", "backend",
        "begins_at", "cost", "explore_s", "external_load", "high", "in_flight", "instances",
        "is_exact", "is_open", "last_pick", "lateness_s", "lead_s", "limit", "penalty", "plan",
        "slots", "stamp", "stats", "sure_until", "takes_s", "unanswered", "work_s",
    )  # fmt: skip

    def __init__(self, penalty: BackendPenalty, plan: Capacity, stats: ModelStats) -> None:
        self.penalty = penalty
        self.backend = penalty.backend
        self.stats = stats
        self.cost = Cost(plan.instances or 1)
        self.in_flight = 0
        self.unanswered = Unanswered()
        """The requests in flight; those that began in a model backend before this one included."""
        self.work_s = 0.0
        """Execution time of those in flight."""
        self.anchor = 0.0
        """When the instances began with what they execute, as far as is known."""
        self.high = 0
        """Of those, tickets of the highest priority."""
        self.last_pick = 0
        self.begins_at = 0.0
        """Set by `estimate`: when the request would begin to execute."""
        self.alone_s = 0.0
        """How long requests are away that find an instance free."""
        self.lead_s = LEAD_S
        """Requests go ahead to an execution that ends so soon."""
        self.takes_s = 0.0
        """Set by `estimate`: how long it would execute."""
        self.lateness_s = 0.0
        """How much later than expected requests end on average. Early ones count as punctual."""
        self.is_open = False
        """Set by `estimate`: whether it may go there now."""
        self.explore_s = _EXPLORE_S
        """After so long without an answer what was learnt is doubted, more and more."""
        self.external_load: BackendExternalLoad | None = None
        """What others do there, where there is anything to say of it."""
        self.stamp = 0
        """Of its entry in the `ModelBackendIndex`."""
        self.sure_until = 0.0
        """Set by `free_at`: until then it says the same, if nothing begins or ends."""
        self._ends = 0
        self._ends_at = [0.0] * _ENDS
        self._ends_expected: list[float] = []
        """Of those in flight, in order, where several execute at once."""
        self.adaptive: AdaptiveLimit | None = None
        self.plan = plan
        self.apply(plan)

    def apply(self, plan: Capacity) -> None:
        """Take over another limit."""
        if not plan.is_adaptive:
            self.adaptive = None
        elif self.adaptive is None or plan.concurrency != self.plan.concurrency:
            self.adaptive = AdaptiveLimit(plan.concurrency or max(1, plan.instances))
        self.plan = plan
        self.instances = max(1, plan.instances)
        self.slots = self.instances * max(1, plan.max_batch)
        """Requests that it executes at once, as its plan says."""
        self.limit = plan.concurrency or NO_LIMIT
        self.is_exact = plan.concurrency > 0 and not (plan.is_auto or plan.is_adaptive)
        """Its limit is a number that somebody gave: nothing else closes it once it is known."""
        if self.is_exact:
            self.instances = min(self.instances, self.limit)
            self.slots = min(self.slots, self.limit)
        self.adjust()
        self._run_in_parallel()

    def _run_in_parallel(self) -> None:
        """Have what is learnt go by how many executions run side by side."""
        self.cost.run_in_parallel(self.instances)
        self.stats.run_in_parallel(self.instances)

    def adjust(self) -> None:
        """Find the limit that goes with the cost, where it is ours to find."""
        if self.adaptive is not None:
            if self.instances != self.adaptive.limit:
                self.instances = self.adaptive.limit
                self._run_in_parallel()
        elif not self.plan.is_auto:
            return
        cost = self.cost
        extra = 1.0
        if cost.count >= MIN_SAMPLES:
            # What the ways take, both of them and all event loops, beyond executing quickly.
            # Where executions are very unlike each other, a quick one tells nothing of the ways.
            is_any = cost.deviation_s > _ANY * cost.mean_s
            quick_s = cost.mean_s if is_any else cost.mean_s * cost.least_ratio()
            away_s = max(0.0, self.alone_s - quick_s)
            self.lead_s = LEAD_S + _NETWORK_ROUNDS * away_s
            extra = (MARGIN_S + _NETWORK_ROUNDS * away_s) * self.instances / cost.mean_s
        self.limit = self.instances + max(1, min(ceil(extra - 0.2), _MAX_MARGIN))

    def inherit(self, before: ModelBackend, now: float) -> None:
        """Take the place of a model backend of another kind. What is under way there counts here
        until it is over (`end_inherited`), and what an execution costs is known on, where both mean
        that."""
        if not (self.plan.is_shared or before.plan.is_shared):
            self.cost = before.cost
            self.explore_s = before.explore_s
        stats = self.stats
        if stats.best is before:
            stats.best = self if self.cost.count else None
        self.in_flight = before.in_flight
        self.unanswered = before.unanswered
        self.high = before.high
        self.last_pick = before.last_pick
        self.work_s = self.in_flight * self.predict(1, 0)
        self.anchor = now
        self.adjust()
        self._run_in_parallel()

    def end_inherited(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """An attempt is over that began in the model backend before this one: it teaches nothing of
        it."""
        del self.unanswered.tickets[ticket]
        self._ends = ends = self._ends + 1
        self._ends_at[ends % _ENDS] = now
        self.work_s -= self.work_s / self.in_flight
        self.in_flight -= 1
        self.anchor = now
        if ending is _FAILED:
            self.penalty.on_failure(now)
        elif ending is _GOOD and self.penalty.factor != 1.0:
            self.penalty.on_success(now)

    def forget(self) -> None:
        """Nothing learnt holds."""
        self.cost = Cost(self.instances)
        self.external_load = None
        self.explore_s = _EXPLORE_S

    def assume(self, measured: Measured, now: float) -> None:
        """Begin with what the backend itself has measured, where nothing is known."""
        if self.cost.count:
            return
        self.cost.assume(measured, now)
        stats = self.stats
        if stats.best is None or self.cost.mean_s < stats.best_s:
            stats.best = self
            stats.best_s = self.cost.mean_s
        self.adjust()

    @property
    def ended(self) -> int:
        """Attempts that are over."""
        return self._ends

    @property
    def low(self) -> int:
        """Tickets under way that are not of the highest priority."""
        return self.in_flight - self.high

    @property
    def shown_limit(self) -> int:
        """The limit; 0 where there is none."""
        return 0 if self.limit == NO_LIMIT else self.limit

    @property
    def rate(self) -> float:
        """Requests per second that it can do, 0 where it is not known."""
        return self.instances / self.cost.mean_s if self.cost.count else 0.0

    def predict(self, rows: int, size: int) -> float:
        """Seconds of execution that a request takes."""
        cost = self.cost
        if cost.count < MIN_SAMPLES:
            return self.stats.best_s
        return cost.predict(rows, size)

    def least_end(self, rows: int, size: int, now: float) -> tuple[float, float, float]:
        """When a request would end if each execution were as quick as the quickest recent one.

        Returns:
            The time at which an instance is free for it, and the seconds that it then takes and
            that a usual one takes. Zeros where too little is known of recent executions.
        """
        cost = self.cost
        if not cost.is_sure(now):
            return 0.0, 0.0, 0.0
        ratio = cost.least_ratio()
        own_s = min(cost.predict(rows, size), MAX_EXTRAPOLATION * cost.mean_s)
        return self.least_begin(ratio, now), ratio * own_s, ratio * cost.mean_s

    def least_begin(self, ratio: float, now: float) -> float:
        """When an instance is free if executions take that part of what they usually take.

        One instance began at `anchor`; what the others execute may end at once.
        """
        instances = self.instances
        ahead = self.in_flight - 2 * (instances - 1)
        begin = self.anchor + ratio * self.cost.mean_s * ahead / instances
        return begin if self.in_flight >= instances and begin > now else now

    @property
    def margin_s(self) -> float:
        """How much before its deadline a request has to be expected to end to be surely in time,
        beside the network."""
        return LATENESSES * self.lateness_s

    def missed(self, ticket: Ticket, now: float) -> None:
        """Note by how much a ticket that has ended well was later than expected."""
        late_s = min(now - ticket.began_at - ticket.expected_s, self.cost.mean_s)
        self.lateness_s += _PART * (max(late_s, 0.0) - self.lateness_s)

    @property
    def is_idle(self) -> bool:
        """Whether an instance has nothing to do."""
        return self.in_flight < self.instances

    def can_take(self) -> bool:
        """Whether it is open, as far as that does not change with the time.

        What nothing is known of, or not any more, gets no more than it executes.
        """
        count = self.in_flight
        return count < self.limit and (count < self.instances or self.cost.count >= MIN_SAMPLES)

    def estimate(self, rows: int, size: int, now: float) -> float:
        """When a request would end here; sets `begins_at`, `takes_s` and `is_open`."""
        cost = self.cost
        count = self.in_flight
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
            begins = now
            self.is_open = count < self.limit
            if count:
                took += took * _SIDE_BY_SIDE * count / self.instances
        else:
            begins = self.free_at(now)
            # What nothing is known of, or not any more, gets no more than it executes.
            self.is_open = (
                count < self.limit
                and (begins - now <= self.lead_s or self.is_exact)
                and not is_doubted
                and cost.count >= MIN_SAMPLES
            )
            # `may_try` is written out.
            if not self.is_open and now >= self.unanswered.check_at:
                self.check_overdue(now)
            if self.unanswered.open_at == count:
                begins = now
                self.is_open = True
        if backend.max_in_flight and self.is_shut():
            self.is_open = False
        if self.penalty.factor != 1.0:
            took *= self.penalty.factor_now(now)
        if self.external_load is not None:
            begins += self.external_load.wait_s(now)
            took *= self.external_load.slower(now)
        self.begins_at = begins
        self.takes_s = took
        return begins + took

    def check_overdue(self, now: float) -> None:
        """Look for requests in flight that are overdue."""
        self.unanswered.check(now, self.cost.mean_s, self._ends_at[self._ends % _ENDS])

    def may_try(self, now: float) -> bool:
        """Whether one more request may begin because all that are in flight are overdue."""
        if now >= self.unanswered.check_at:
            self.check_overdue(now)
        return 0 < self.in_flight == self.unanswered.open_at

    def _doubted(self, took_s: float, now: float) -> float:
        """An estimate that is old: a model backend that was slow may have become as fast as the
        best."""
        cost = self.cost
        if cost.count < MIN_SAMPLES or cost.mean_s <= self.stats.best_s:
            return took_s
        doubt: float = 1.0 - 0.5 ** ((now - cost.at) / self.explore_s - 1.0)
        return took_s * (1.0 - doubt * (1.0 - self.stats.best_s / cost.mean_s))

    def is_doubted(self, now: float) -> bool:
        """Whether it counts as faster than was learnt, to find out whether it is."""
        cost = self.cost
        return (
            cost.mean_s > self.stats.best_s
            and now - cost.at > self.explore_s
            and cost.count >= MIN_SAMPLES
        )

    def learnt_end(self, end: float, now: float) -> float:
        """When a request that `estimate` was asked about would end by what was learnt.

        Args:
            end: what `estimate` said.
            now: the time.
        """
        if not self.is_doubted(now):
            return end
        return self.begins_at + (end - self.begins_at) / self._doubted(1.0, now)

    def gave_up(self, took_s: float, work_s: float, now: float) -> None:
        """An execution ended without a good answer while what was learnt is doubted. If it took
        longer than was hoped, the model backend is no faster than that: it is tried again much
        later."""
        if took_s > self._doubted(work_s, now):
            self.cost.outlasted(now)
            self._explore_later()

    def _explore_later(self) -> None:
        """What was learnt seems to hold."""
        explore_s = min(2 * self.explore_s, _MAX_EXPLORE_S)
        self.explore_s = max(explore_s, _EXECUTIONS * self.cost.mean_s)

    def is_before(self, other: ModelBackend) -> bool:
        """Whether it has the turn among model backends that are as good."""
        load = self.in_flight * other.instances
        others = other.in_flight * self.instances
        return load < others or (load == others and self.last_pick < other.last_pick)

    def usual_s(self, now: float) -> float:
        """Seconds that an execution takes as they come."""
        cost = self.cost
        took = cost.mean_s if cost.count >= MIN_SAMPLES else self.stats.best_s
        if now - cost.at > self.explore_s:
            took = self._doubted(took, now)
        if self.penalty.factor != 1.0:
            took *= self.penalty.factor_now(now)
        if self.external_load is not None:
            took = took * self.external_load.slower(now) + self.external_load.wait_s(now)
        return took

    def is_shut(self) -> bool:
        """Whether the backend takes no more of anything."""
        limit = self.backend.max_in_flight
        return bool(limit) and self.backend.in_flight + self.penalty.due >= limit

    def free_at(self, now: float) -> float:
        """When an instance is free for one more request; all of them have something to do."""
        count = self.in_flight
        instances = self.instances
        if instances > 1 and len(self._ends_expected) == count:
            begins = self._ends_expected[count - instances]
        else:
            begins = self.anchor + self.work_s * (count - instances + 1) / (count * instances)
        self.sure_until = begins
        # What is overdue takes about as much longer as it has done already.
        return begins if begins > now else now + (now - begins)

    def could_take(
        self, within_s: float, own_execution_weight: float = OWN_EXECUTION_WEIGHT
    ) -> int:
        """How many more requests would compare well here with one whose wait and share of its own
        execution are so long, when there is nothing else to do."""
        took = self.cost.mean_s if self.cost.count >= MIN_SAMPLES else self.stats.best_s
        return int(within_s * self.instances / took + (1.0 - own_execution_weight))

    def begin(self, ticket: Ticket, now: float) -> None:
        """A ticket begins; `estimate` was asked about it."""
        # HOT PATH (benchmarks/bench_schedule.py). `predict` is written out.
        count = self.in_flight
        instances = self.instances
        cost = self.cost
        if cost.count >= MIN_SAMPLES:
            took = cost.base_s + cost.row_s * ticket.rows
            if cost.byte_s:
                took = cost.with_bytes(took, ticket.size)
        else:
            took = self.stats.best_s
        ticket.began_at = now
        ticket.work_s = took
        ticket.expected_s = expected_s = self.begins_at - now + took
        if instances > 1:
            insort(self._ends_expected, now + expected_s)
        if count < instances:
            ticket.after = self._ends
            self.anchor = now
        else:
            ticket.after = self._ends + count - instances + 1
        self.in_flight = count + 1
        self.unanswered.tickets[ticket] = None
        self.work_s += took

    def end(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """An attempt is over."""
        # HOT PATH (benchmarks/bench_schedule.py). `missed` is written out.
        self._ends = ends = self._ends + 1
        self._ends_at[ends % _ENDS] = now
        if self.adaptive is not None:
            self.adapt(now)
        self.in_flight = count = self.in_flight - 1
        del self.unanswered.tickets[ticket]
        self.work_s = self.work_s - ticket.work_s if count else 0.0
        self.anchor = now
        began = ticket.began_at
        expected_s = ticket.expected_s
        expected = self._ends_expected
        if expected:
            # Or that of another one which was expected to end at about the same time.
            del expected[bisect_left(expected, began + expected_s, 0, len(expected) - 1)]
        if ending is not _GOOD:
            if ending is _FAILED:
                self.penalty.on_failure(now)
            if self.is_doubted(now):
                self.gave_up(self.executed_s(ticket, now), ticket.work_s, now)
            return
        if self.penalty.factor != 1.0:
            self.penalty.on_success(now)
        cost = self.cost
        if (
            ends * _SCATTER & _SKIPPED
            and cost.mean_s < _QUICK_S * self.instances
            and cost.count > _CONFIDENT_SAMPLES
            and now - cost.at < _NEWS_S
        ):
            return
        late_s = now - began - expected_s
        limit_s = cost.mean_s
        late_s = limit_s if late_s > limit_s else late_s if late_s > 0.0 else 0.0
        self.lateness_s += _PART * (late_s - self.lateness_s)
        if expected_s == ticket.work_s:  # it did not have to wait there
            part = _PART if cost.count >= _OFTEN else 1.0 / (1 + cost.count)
            self.alone_s += part * (now - began - self.alone_s)
        took_s = self.executed_s(ticket, now)
        if cost.count >= _SOME and self.external_load is None and took_s > 0.0 < ticket.work_s:
            self.stats.executed(took_s, ticket.work_s)
        self.learn(took_s, ticket.rows, ticket.size, now)
        usual = self.stats.usual
        if usual.count < cost.count <= _CONFIDENT_SAMPLES or not ends & _USUAL_EVERY:
            usual.learn(took_s, ticket.rows, ticket.size, now)

    def end_lost(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """An attempt is over that was given up as lost, and is not counted any more."""
        if ending is _FAILED:
            self.penalty.on_failure(now)
        elif ending is _GOOD:
            self.learn(now - ticket.began_at, ticket.rows, ticket.size, now)

    def executed_s(self, ticket: Ticket, now: float) -> float:
        """How long a ticket was executed that ends now: from when an instance was free for it."""
        began = ticket.began_at
        waited_for = ticket.after
        ends = self._ends
        if ends - _ENDS < waited_for < ends:
            free_at = self._ends_at[waited_for % _ENDS]
            if free_at > began:
                return now - free_at
        return now - began

    def adapt(self, now: float) -> None:
        """A request ends: see whether another limit is better, where that is to be found."""
        adaptive = self.adaptive
        if adaptive is not None and adaptive.ended(now, is_full=self.in_flight >= adaptive.limit):
            self.adjust()

    def learn(self, took_s: float, rows: int, size: int, now: float) -> None:
        """An execution of so many rows and bytes took so long."""
        cost = self.cost
        before = cost.mean_s
        last_at = cost.at
        cost.learn(took_s, rows, size, now)
        stats = self.stats
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
            self.explore_s = max(self.explore_s, _EXECUTIONS * cost.mean_s)
        if cost.count <= WINDOW or not cost.count & _ADJUST_EVERY:
            self.adjust()
