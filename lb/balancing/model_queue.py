"""A model queue: one version of one model as requests name it, with its model backends and the
requests that are queued for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.batching import BatchingModelBackend
from lb.balancing.eligible_set import SLOW, EligibleSet
from lb.balancing.estimate import NEVER, Estimate
from lb.balancing.model_backend import LEAD_S, OWN_EXECUTION_WEIGHT, ModelBackend
from lb.balancing.model_backend_index import LARGE, ModelBackendIndex
from lb.balancing.model_stats import TAIL, ModelStats
from lb.balancing.selection import (
    ANY_LEAD_S,
    FAST_FIRST,
    NETWORK_S,
    NO_LEAD_S,
    NORMAL,
    TIE_TOLERANCE,
    YIELDING_LEAD_S,
    Selection,
    select,
)
from lb.balancing.shared_execution import SharedModelBackend
from lb.balancing.tenant_times import TenantTimes
from lb.balancing.tuning import TUNING
from lb.balancing.waiting import level_of
from lb.domain.backend import Backend
from lb.domain.schedule import NO_DEADLINE, Capacity, Ending, QueuePlan, Ticket

_MAX_ELIGIBLE_SETS: Final = 256
"""With more eligible sets those with an empty queue are dropped. Requests that are retried make one
for every set of backends that have failed them."""
_MIN_RETRY_S: Final = 0.01
"""A refused client is asked to come again after this many seconds at least."""
_POLL_S: Final = TUNING.capped_poll_s
_ROUNDING_S: Final = 1e-6
"""Seconds that cover rounding errors of times."""
_RECHECK_S: Final = TUNING.recheck_s
_RECHECK_SHARE: Final = TUNING.recheck_share
_SAME_WORK: Final = TUNING.same_work_ratio
_TRIES: Final = 8
"""Queued requests that are tried one after the other for one that is in time; they differ in size.
"""
Dispatch = tuple[Ticket, ModelBackend | None, Estimate]
"""A queued request that begins now, where, and its estimate there. Without a model backend: one
that cannot meet its deadline any more."""


class ModelQueue:
    """One version of one model: its model backends, eligible sets and queued requests."""

    __slots__ = (
        "_busy", "_high", "_low", "_slots", "_used", "eligible_sets", "index", "is_pressed",
        "model", "model_backends", "others_waiting", "penalties", "plan", "reserves", "retired",
        "runs_in_order", "stats", "tenant_times", "version", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        model: bytes,
        version: bytes,
        plan: QueuePlan,
        penalties: dict[Backend, BackendPenalty],
    ) -> None:
        self.model = model
        self.version = version
        self.plan = plan
        self.tenant_times: Callable[[int], TenantTimes] | None = None
        """Gives the times of tenants of a priority, where other workers queue requests too."""
        self.reserves = plan.rules.reserved > 0.0
        """Some slots are reserved for the highest priority."""
        self.penalties = penalties
        self.stats = ModelStats()
        self.model_backends: dict[Backend, ModelBackend] = {}
        self.is_pressed = False
        """Requests of the highest priority use reserved slots; set by ``check_reserved``."""
        self.runs_in_order = True
        """All its model backends execute one request after the other."""
        self.others_waiting = 0
        """Requests of the model that are queued by other workers."""
        self.eligible_sets: dict[tuple[Backend, ...], EligibleSet] = {}
        self.index: ModelBackendIndex | None = None
        """An index of all model backends, where they are many."""
        self._used: set[ModelBackend] = set()
        """The model backends of eligible sets. Others have only requests that began before the last
        snapshot."""
        self._high = 0
        """Requests in flight there that are of the highest priority. This and the next three are
        counted where slots are reserved."""
        self._low = 0
        """The other requests in flight there."""
        self._busy = 0
        """Slots that are in use there."""
        self._slots = 0
        """All slots there; 0 where all four are to be counted anew."""
        self.waiting: dict[EligibleSet, None] = {}
        """The eligible sets with queued requests."""
        self.retired: dict[EligibleSet, None] = {}
        """Sets of old snapshots, whose queued requests are to be moved to other sets."""

    def apply(self, plan: QueuePlan, now: float) -> None:
        """Take over another plan."""
        self.plan = plan
        self.reserves = plan.rules.reserved > 0.0
        is_other_kind = False
        for backend, model_backend in self.model_backends.items():
            capacity = plan.limit(backend)
            if type(model_backend) is _kind(capacity):
                model_backend.apply(capacity)
            else:
                self.model_backends[backend] = self._make(model_backend.penalty, now, model_backend)
                is_other_kind = True
        self._slots = 0
        for eligible_set in self.eligible_sets.values():
            eligible_set.ranking = None
        if self.reserves:
            for model_backend in self.model_backends.values():
                tickets = model_backend.unanswered.tickets
                model_backend.high = sum([ticket.priority <= 0 for ticket in tickets])
        if is_other_kind:
            self._renew_eligible_sets(now)
        self._watch()

    def _renew_eligible_sets(self, now: float) -> None:
        """Have the eligible sets know of model backends that took the place of others."""
        self.index = None
        self._used.clear()
        for eligible_set in self.eligible_sets.values():
            eligible_set.renew(
                tuple(
                    [
                        self.model_backends[model_backend.backend]
                        for model_backend in eligible_set.model_backends
                    ]
                )
            )
            self._used.update(eligible_set.model_backends)
            self._index(eligible_set, now)
        self._check_kinds()

    def retire(self) -> None:
        """Begin with a new snapshot: all requests that are queued have to be moved.

        Model backends that are not in use, and of which nothing is known, are forgotten.
        """
        for eligible_set in self.waiting:
            eligible_set.wake_at = NO_DEADLINE
            self.retired[eligible_set] = None
        self.drop_eligible_sets()
        self.index = None
        self.waiting.clear()
        self._used.clear()
        for backend, model_backend in tuple(self.model_backends.items()):
            if not model_backend.load.in_flight and not model_backend.load.cost.count:
                del self.model_backends[backend]
        self.stats.lost(self.model_backends.values())
        self._slots = 0
        self._check_kinds()
        self._watch()

    def drop_eligible_sets(self) -> None:
        """Use none of the eligible sets for another request."""
        for eligible_set in self.eligible_sets.values():
            eligible_set.is_retired = True
        self.eligible_sets.clear()

    def _check_kinds(self) -> None:
        self.runs_in_order = all(
            type(model_backend) is ModelBackend for model_backend in self.model_backends.values()
        )
        if not self.runs_in_order:
            self.stats.tail_s = 0.0

    def forget(self, backend: Backend) -> None:
        """Forget what was learnt of a backend."""
        model_backend = self.model_backends.get(backend)
        if model_backend is not None:
            model_backend.forget()
            self.stats.lost(self.model_backends.values())
            if self.index is not None:
                self.index.outdated()

    @property
    def in_flight(self) -> int:
        """The number of requests in flight."""
        return sum([each.load.in_flight for each in self.model_backends.values()])

    @property
    def waits(self) -> int:
        """The number of queued requests."""
        return sum([each.queue.count for sets in (self.waiting, self.retired) for each in sets])

    def eligible_set(self, ticket: Ticket, now: float) -> EligibleSet:
        """The eligible set of a request. Its class knows it from then on, unless it depends on
        where the request has failed."""
        request_class, tried = ticket.request_class, ticket.tried
        eligible = request_class.eligible
        if tried:
            eligible = tuple([each for each in eligible if each not in tried]) or eligible
        elif request_class.eligible_set is not None and not request_class.eligible_set.is_retired:
            known: EligibleSet = request_class.eligible_set
            return known
        eligible_set = self.eligible_sets.get(eligible)
        if eligible_set is None:
            eligible_set = self._new_eligible_set(eligible, now)
        if not tried:
            request_class.eligible_set = eligible_set
        return eligible_set

    def _new_eligible_set(self, eligible: tuple[Backend, ...], now: float) -> EligibleSet:
        if len(self.eligible_sets) >= _MAX_ELIGIBLE_SETS:
            in_use = {
                each: eligible_set
                for each, eligible_set in self.eligible_sets.items()
                if eligible_set.queue.count
            }
            for each in in_use:
                del self.eligible_sets[each]
            self.drop_eligible_sets()
            self.eligible_sets = in_use
        model_backends = tuple([self._model_backend(backend, now) for backend in eligible])
        rules = self.plan.rules
        times = self.tenant_times if rules.has_tenants else None
        eligible_set = EligibleSet(model_backends, rules, self.stats, times)
        self.eligible_sets[eligible] = eligible_set
        used = len(self._used)
        self._used.update(model_backends)
        if len(self._used) != used:
            self._slots = 0
        self._index(eligible_set, now)
        return eligible_set

    def _index(self, eligible_set: EligibleSet, now: float) -> None:
        """Have a new eligible set find model backends by an index, if there are many. If there are
        more than the index knows of, all sets get another one."""
        if len(self.model_backends) <= LARGE:
            return
        if self.index is not None and self.index.count == len(self.model_backends):
            eligible_set.use(self.index)
            return
        self.index = ModelBackendIndex(self.model_backends.values(), now)
        self._watch()
        for each in self.eligible_sets.values():
            each.use(self.index)

    def _model_backend(self, backend: Backend, now: float) -> ModelBackend:
        model_backend = self.model_backends.get(backend)
        if model_backend is None:
            penalty = self.penalties.get(backend)
            if penalty is None:
                penalty = self.penalties[backend] = BackendPenalty(backend)
            model_backend = self.model_backends[backend] = self._make(penalty, now)
            self._check_kinds()
            self._watch()
        return model_backend

    def _make(
        self, penalty: BackendPenalty, now: float, before: ModelBackend | None = None
    ) -> ModelBackend:
        """Make a model backend, which may take the place of one of another kind."""
        capacity = self.plan.limit(penalty.backend)
        model_backend = _kind(capacity)(penalty, capacity, self.stats)
        if before is not None:
            model_backend.inherit(before, now)
        measured = penalty.measured_of(self.model, self.version)
        if measured is not None:
            model_backend.assume(measured, now)
        return model_backend

    def check_reserved(self, priority: int) -> bool:
        """Find out whether free slots are reserved for a higher priority than this one.

        The reserved number of slots stays free beyond those that the highest priority uses already.
        """
        if not (self.reserves and priority > 0):
            return False
        if not self._slots:
            self._count()
        if not self._low:
            return False
        kept = max(1, round(self._slots * self.plan.rules.reserved))
        self.is_pressed = self._high > 0 and self._busy > self._slots - kept
        return self._busy >= self._slots - kept

    def max_lead_s(self, priority: int, *, is_reserved: bool) -> float:
        """Find how long before its execution a request may be sent ahead, where slots are reserved.

        Args:
            priority: of the request.
            is_reserved: what ``check_reserved`` has just said.
        """
        if not (self.reserves and priority > 0):
            return ANY_LEAD_S
        return NO_LEAD_S if is_reserved and self.is_pressed else YIELDING_LEAD_S

    def _count(self) -> None:
        """Count slots, and the requests in them. Nothing can be reserved on a backend that is
        drained or ejected, where only requests from before are in flight."""
        model_backends = self._used
        self._slots = sum([model_backend.slots for model_backend in model_backends])
        self._busy = sum([min(each.load.in_flight, each.slots) for each in model_backends])
        self._high = sum([model_backend.high for model_backend in model_backends])
        self._low = sum([model_backend.low for model_backend in model_backends])

    def began(self, ticket: Ticket, model_backend: ModelBackend, now: float) -> None:
        """Note a request that has begun on a model backend that `is_watched`."""
        if self.index is not None:
            self.index.in_flight += 1
            self.index.changed(model_backend, now)
        if self.reserves:
            if ticket.priority <= 0:
                model_backend.high += 1
            if model_backend in self._used:
                self._note(ticket, 1)
                if model_backend.load.in_flight <= model_backend.slots:
                    self._busy += 1

    def ended(self, ticket: Ticket, model_backend: ModelBackend, now: float) -> None:
        """Note a request that has ended on a model backend that `is_watched`."""
        if self.index is not None:
            self.index.in_flight -= 1
            self.index.changed(model_backend, now)
        if self.reserves:
            if ticket.priority <= 0:
                model_backend.high -= 1
            if model_backend in self._used:
                self._note(ticket, -1)
                if model_backend.load.in_flight < model_backend.slots:
                    self._busy -= 1

    def count_others(self, model_backend: ModelBackend, change: int, now: float) -> None:
        """Note that so many more requests of other workers are in flight at a model backend."""
        self._slots = 0
        if self.index is not None:
            self.index.in_flight += change
            self.index.changed(model_backend, now)

    def _watch(self) -> None:
        """Have the model backends know whether they are watched."""
        is_watched = self.reserves or self.index is not None
        for model_backend in self.model_backends.values():
            model_backend.is_watched = is_watched

    def give_up_unanswered(
        self, model_backend: ModelBackend, answered_from: float | None, now: float
    ) -> list[Ticket]:
        """After the end of a request at a model backend with overdue ones, count those no more that
        its answer proves to be lost; see `lb.balancing.unanswered`.

        Args:
            model_backend: where it ended.
            answered_from: when it began, if it proves anything; see `Unanswered.answered_from`.
            now: the time.

        Returns:
            These.
        """
        lost: list[Ticket] = []
        if answered_from is not None:
            usual_s = model_backend.load.cost.mean_s
            lost = model_backend.unanswered.find_lost(answered_from, usual_s, now)
        for ticket in lost:
            if ticket.model_backend is model_backend:
                model_backend.end(ticket, now, Ending.NEITHER)
            else:
                model_backend.end_inherited(ticket, now, Ending.NEITHER)
            self.ended(ticket, model_backend, now)
            ticket.model_backend = None
        model_backend.check_overdue(now)
        return lost

    def _note(self, ticket: Ticket, change: int) -> None:
        if ticket.priority <= 0:
            self._high += change
        else:
            self._low += change

    def victim(self, ticket: Ticket, own: EligibleSet) -> Ticket | None:
        """Choose who makes room for a request that is to be queued: one of the lowest priority.

        One from another eligible set is chosen only if its priority is lower than the request's.

        Returns:
            None: it is the request that is one too many.
        """
        found: Ticket | None = None
        for eligible_set in (*self.waiting, *self.retired):
            victim = eligible_set.queue.victim(ticket)
            if victim is None or (
                eligible_set is not own and level_of(victim.priority) <= level_of(ticket.priority)
            ):
                continue
            if found is None or level_of(victim.priority) > level_of(found.priority):
                found = victim
        return found

    def has_room(self, backends: Iterable[Backend] | None = None) -> bool:
        """Whether any of some backends can take another request within all limits, be it slow or
        not.

        Args:
            backends: that are asked; None: those of all eligible sets.
        """
        if backends is None:
            return any(each.can_take() and not each.is_shut() for each in self._used)
        for backend in backends:
            model_backend = self.model_backends.get(backend)
            if model_backend is None or model_backend.is_shut():
                continue
            if model_backend.can_take():
                return True
        return False

    def room_in(self, eligible_set: EligibleSet, now: float) -> float:
        """Predict in how many seconds all that are queued now will have begun."""
        rate = eligible_set.rate(now)
        return max((self.waits + self.others_waiting + 1) / rate if rate else 0.0, _MIN_RETRY_S)

    def is_late(self, ticket: Ticket, eligible_set: EligibleSet, now: float) -> bool:
        """Whether a request that is queued behind others would miss its deadline even if every
        execution were quick."""
        usual = self.stats.usual
        rate = eligible_set.rate(now)
        if not rate or not usual.count:
            return False
        count, work_s = eligible_set.queue.ahead(ticket)
        # What was estimated when executions took longer does not count as more of them.
        ahead = min(work_s / usual.mean_s, float(count))
        takes_s = (ahead + eligible_set.in_flight()) / rate + ticket.work_s
        return now + takes_s > ticket.deadline and eligible_set.is_too_late(ticket, now, ahead)

    def due(self, eligible_set: EligibleSet, now: float) -> Dispatch | None:
        """Decide which queued request of an eligible set begins now, and where.

        Sets `eligible_set.wake_at`. The queue must not be empty.

        Returns:
            None: all have to wait.
        """
        queue = eligible_set.queue
        turn = queue.level(now).turn()
        head = turn.at(0)
        max_lead_s = ANY_LEAD_S
        if eligible_set.max_lead_s != ANY_LEAD_S and turn.may_overtake(
            now - eligible_set.max_overtaken_s()
        ):
            head = turn.last()
            max_lead_s = eligible_set.max_lead_s
        eligible_set.wake_at = NO_DEADLINE
        is_reserved = False
        if self.reserves and head.priority > 0:
            is_reserved = self.check_reserved(head.priority)
            max_lead_s = self.max_lead_s(head.priority, is_reserved=is_reserved)
        # `EligibleSet.decide` is written out.
        candidates = eligible_set.candidates(now, is_reserved=is_reserved)
        decision = select(candidates, head, now, NORMAL, self.stats, max_lead_s)
        if is_reserved and decision.chosen is None and (urgent := queue.most_urgent()) is not None:
            # It is another one's turn, but only these may use the slots that are free.
            head = urgent
            is_reserved = False
            max_lead_s = ANY_LEAD_S
            decision = eligible_set.decide(head, now)
        eligible_set.is_closed = decision.chosen is None and max_lead_s == ANY_LEAD_S
        if head.deadline != NO_DEADLINE:
            decision = eligible_set.without_doubt(
                decision, head, now, max_lead_s=max_lead_s, is_reserved=is_reserved
            )
            if eligible_set.seems_late(decision, head):
                return self._due_late(head, eligible_set, now, max_lead_s, is_reserved=is_reserved)
        model_backend = decision.chosen
        if model_backend is None:
            self._wake(eligible_set, decision, now, max_lead_s)
            return None
        if decision.is_best(now):
            is_fast = model_backend.load.cost.mean_s < SLOW * self.stats.best_s
            if is_fast or head.deadline != NO_DEADLINE:
                return head, model_backend, decision.estimate
            found = self._for_slow(head, eligible_set, model_backend, decision, now)
            if found is not None:
                return found
            decision = eligible_set.decide(
                head, now, FAST_FIRST, max_lead_s=max_lead_s, is_reserved=is_reserved
            )
            model_backend = decision.chosen
            if model_backend is None:
                self._wake(eligible_set, decision, now, max_lead_s)
                return None
            if decision.is_best(now):
                return head, model_backend, decision.estimate
        return self._for_second_best(head, eligible_set, model_backend, decision, now)

    def due_after_end(self, eligible_set: EligibleSet, now: float) -> Dispatch | None:
        """Decide as `due` after one request has ended while no model backend had room, if the next
        one clearly begins in its place: nobody would end it sooner.

        Returns:
            None: `due` has to decide.
        """
        # HOT PATH (benchmarks/bench_schedule.py). Once for each queued request; `due` is the
        # reference. `TenantQueue.at` is written out.
        chosen = eligible_set.freed_at
        if (
            chosen is None
            or self.reserves
            or not self.runs_in_order
            or eligible_set.max_lead_s != ANY_LEAD_S
            or eligible_set.index is not None
            or chosen.backend.share != 1.0
            or chosen not in eligible_set.model_backends
        ):
            return None
        turn = eligible_set.queue.level(now).turn()
        head = turn.tickets[turn.begin]
        if head is None or head.deadline != NO_DEADLINE:
            return None
        stats = self.stats
        best_s = stats.best_s
        if chosen.load.cost.mean_s >= SLOW * best_s:
            return None
        estimate = chosen.estimate(head.rows, head.size, now)
        if not estimate.may_begin:
            return None
        if len(eligible_set.model_backends) > 1:
            # It is best if no other is free sooner, and none is much faster. What counts of an
            # execution must not differ either: see `Mode`.
            begins_at = estimate.begins_at
            in_time = now + TAIL * stats.tail_s
            if (
                estimate.cost_s * (1.0 - TIE_TOLERANCE) > best_s
                or begins_at + best_s <= in_time < estimate.ends_at
            ):
                return None
            for model_backend in eligible_set.model_backends:
                load = model_backend.load
                cost = load.cost
                if cost.row_s or cost.byte_s:
                    return None
                if begins_at > now and model_backend is not chosen:
                    instances = model_backend.instances
                    if load.in_flight < instances or begins_at > (
                        load.busy_since + load.work_s if instances == 1 else load.free_at(instances)
                    ):
                        return None
        eligible_set.wake_at = NO_DEADLINE
        eligible_set.is_closed = False
        return head, chosen, estimate

    def close(self, eligible_set: EligibleSet, decision: Selection, now: float) -> None:
        """Note the decision that no model backend has room for the only queued request."""
        eligible_set.is_closed = True
        eligible_set.wake_at = NO_DEADLINE
        self._wake(eligible_set, decision, now, ANY_LEAD_S)

    def _due_late(
        self,
        head: Ticket,
        eligible_set: EligibleSet,
        now: float,
        max_lead_s: float,
        *,
        is_reserved: bool,
    ) -> Dispatch | None:
        """Decide as `due` where the next request seems to be late."""
        decision = eligible_set.decide_by_end(head, now, max_lead_s, is_reserved=is_reserved)
        model_backend = decision.chosen
        found: Dispatch | None = None
        if eligible_set.seems_late(decision, head):
            found = self._instead(head, eligible_set, decision, now)
        elif model_backend is not None:
            if decision.is_best(now):
                found = head, model_backend, decision.estimate
            else:
                found = self._for_second_best(head, eligible_set, model_backend, decision, now)
        if found is None and model_backend is None:
            self._wake(eligible_set, decision, now, max_lead_s)
        return found

    def _instead(
        self, head: Ticket, eligible_set: EligibleSet, decision: Selection, now: float
    ) -> Dispatch | None:
        """Decide what to do instead of beginning a request that seems to be late.

        Another one that is in time begins in its place, or it is tried where an instance is idle,
        or it is refused.
        """
        model_backend = decision.chosen
        idle: ModelBackend | None = None
        is_too_late = eligible_set.is_too_late(head, now)
        if is_too_late or now >= head.deadline - self.stats.best_s:
            idle = eligible_set.idle(head, now, is_reserved=self.check_reserved(head.priority))
            if is_too_late and idle is None:
                return head, None, NEVER
        elif model_backend is not None and model_backend.is_idle and decision.is_best(now):
            idle = model_backend
        if model_backend is not None:
            other = _in_time(
                head,
                eligible_set,
                model_backend,
                decision.estimate,
                now,
                is_any=is_too_late and not self.reserves,
            )
            if other is not None:
                return other, model_backend, model_backend.estimate(other.rows, other.size, now)
        return None if idle is None else (head, idle, idle.estimate(head.rows, head.size, now))

    def _for_second_best(
        self,
        head: Ticket,
        eligible_set: EligibleSet,
        model_backend: ModelBackend,
        decision: Selection,
        now: float,
    ) -> Dispatch | None:
        """Choose who begins on a model backend that has room and is not the best one for the next
        request. None: all had better wait."""
        queue = eligible_set.queue
        place = eligible_set.before(decision.score, model_backend, now)
        if place < queue.count + eligible_set.others_waiting:
            ticket = head
            if head is queue.level(now).turn().at(0):
                ends_at = decision.estimate.ends_at
                ticket = eligible_set.nth(
                    eligible_set.before(ends_at, model_backend, now, 1.0), now
                )
            if not self.check_reserved(ticket.priority) or model_backend.low >= model_backend.slots:
                estimate = model_backend.estimate(ticket.rows, ticket.size, now)
                # Also where the decision counted less of the execution: see decision 0051.
                score = estimate.ends_at - (1.0 - OWN_EXECUTION_WEIGHT) * estimate.cost_s
                is_in_time = estimate.ends_at < ticket.deadline
                if is_in_time and eligible_set.before(score, model_backend, now) <= place:
                    return ticket, model_backend, estimate
        if decision.best is not None:
            mean_s = decision.best.load.cost.mean_s
            begins_at = decision.best_estimate.begins_at
            eligible_set.wake_at = begins_at + _RECHECK_S + _RECHECK_SHARE * mean_s
        return None

    def _for_slow(
        self,
        head: Ticket,
        eligible_set: EligibleSet,
        model_backend: ModelBackend,
        decision: Selection,
        now: float,
    ) -> Dispatch | None:
        """Choose who begins on a slow model backend: the queued request that would end at the same
        time elsewhere.

        Where none is queued that would end so late it is the last one, if it does not end later
        there than most requests do. None: it would.
        """
        own = decision.estimate
        queue = eligible_set.queue
        place = eligible_set.before(own.ends_at, model_backend, now, 1.0)
        ticket = eligible_set.nth(place, now)
        if (
            ticket.priority != head.priority
            or ticket.deadline != NO_DEADLINE
            or ticket.work_s > _SAME_WORK * head.work_s
        ):
            return head, model_backend, own
        estimate = model_backend.estimate(ticket.rows, ticket.size, now)
        is_queued = place < queue.count + eligible_set.others_waiting
        if is_queued or estimate.ends_at - ticket.arrived_at <= self.stats.tail_s:
            return ticket, model_backend, estimate
        return None

    @staticmethod
    def _wake(
        eligible_set: EligibleSet, decision: Selection, now: float, max_lead_s: float
    ) -> None:
        """Set when a full eligible set is to be checked although nothing ended."""
        best = decision.best
        estimate = decision.best_estimate
        if best is None:
            return
        eligible_set.wake_at = eligible_set.overdue_at(now)
        if eligible_set.is_capped:
            # Requests of other models may end there, and no event says so.
            eligible_set.wake_at = now + _POLL_S
        elif best.load.in_flight < best.limit:
            ahead_s = min(best.lead_s, max_lead_s + best.lead_s - LEAD_S)
            at = max(now + _RECHECK_S, estimate.begins_at - ahead_s + _ROUNDING_S)
            eligible_set.wake_at = min(at, eligible_set.wake_at)


def _in_time(
    head: Ticket,
    eligible_set: EligibleSet,
    model_backend: ModelBackend,
    estimate: Estimate,
    now: float,
    *,
    is_any: bool,
) -> Ticket | None:
    """Find the first queued request that would surely be in time on a model backend.

    Args:
        head: the next request, which would not.
        eligible_set: whose queue it is.
        model_backend: that has room.
        estimate: of the next request there.
        now: the time.
        is_any: it may have any priority, not only that of the next request.
    """
    queue = eligible_set.queue
    begin = (
        estimate.ends_at
        - model_backend.predict(head.rows, head.size)
        + model_backend.margin_s
        + NETWORK_S
    )
    key = begin
    for tries in range(_TRIES):
        ticket = queue.after(key, now)
        if ticket is None or not (is_any or ticket.priority == head.priority):
            return None
        end = begin + model_backend.predict(ticket.rows, ticket.size)
        if end <= ticket.deadline:
            return ticket
        key = ticket.key if tries < _TRIES - 2 else end
    return None


def _kind(limit: Capacity) -> type[ModelBackend]:
    """The class for backends that execute requests one after the other, in batches, or all side by
    side."""
    if limit.is_shared:
        return SharedModelBackend
    return BatchingModelBackend if limit.max_batch > 1 else ModelBackend
