"""A model queue: one version of one model as requests name it, its model backends and its pools."""

from __future__ import annotations

from typing import Final

from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.batching import BatchingModelBackend
from lb.balancing.eligible_set import NETWORK_S, SLOW, EligibleSet
from lb.balancing.model_backend import (
    LEAD_S,
    NOT_AHEAD_S,
    OWN_EXECUTION_WEIGHT,
    YIELDING_LEAD_S,
    ModelBackend,
)
from lb.balancing.model_backend_index import LARGE, ModelBackendIndex
from lb.balancing.model_stats import ModelStats
from lb.balancing.shared_execution import SharedModelBackend
from lb.balancing.waiting import level_of
from lb.domain.backend import Backend
from lb.domain.schedule import NO_DEADLINE, Capacity, Ending, Plan, Ticket

_MAX_ALIASES: Final = 64
_MAX_ELIGIBLE_SETS: Final = 256
"""Beyond so many those are dropped that nobody waits in: requests that go again make one for every
set of backends that have failed them."""
_MIN_RETRY_S: Final = 0.01
_POLL_S: Final = 0.01
_ROUNDING_S: Final = 1e-6
_RECHECK_S: Final = 0.001
_RECHECK_SHARE: Final = 0.25
_TIE_TOLERANCE: Final = 1.2
_TRIES: Final = 8
"""So many that wait are looked at one after the other for one that is in time; they differ in
size."""
_MAX_WAIT_RATIO: Final = 2.0
"""Nobody waits for a faster backend for so many times what one takes that is idle, nor for a better
one."""


class ModelQueue:
    """What the scheduler keeps of one model queue."""

    __slots__ = (
        "_aliases", "_busy", "_high", "_low", "_slots", "_used", "eligible_sets", "index",
        "is_pressed", "model", "model_backends", "penalties", "plan", "reserves", "stats",
        "uses_fast_path", "version", "waiting",
    )  # fmt: skip

    def __init__(
        self, model: bytes, version: bytes, plan: Plan, penalties: dict[Backend, BackendPenalty]
    ) -> None:
        self.model = model
        self.version = version
        self.plan = plan
        self.reserves = plan.rules.reserved > 0.0
        """Some of what may execute at once is for the highest priority alone."""
        self.penalties = penalties
        self.stats = ModelStats()
        self.model_backends: dict[Backend, ModelBackend] = {}
        self.is_pressed = False
        """Set by `is_kept`: the highest priority uses what is kept for it."""
        self.uses_fast_path = True
        """All its model backends run one request after the other."""
        self.eligible_sets: dict[tuple[Backend, ...], EligibleSet] = {}
        self.index: ModelBackendIndex | None = None
        """Of all model backends, where they are many."""
        self._used: set[ModelBackend] = set()
        """Model backends of pools: others have only what began before the last snapshot."""
        self._high = 0
        """Tickets under way in these that are of the highest priority; the numbers of this kind are
        counted where slots are reserved."""
        self._low = 0
        """The other ones."""
        self._busy = 0
        """Slots of these that are in use."""
        self.waiting: dict[EligibleSet, None] = {}
        """Pools with tickets that wait."""
        self._aliases: dict[int, tuple[tuple[Backend, ...], EligibleSet]] = {}
        """Pools by the identity of tuples that were met, which are held for that."""
        self._slots = 0
        """All slots; 0 where these, and those in use, are to be counted anew."""

    def apply(self, plan: Plan, now: float) -> None:
        """Take over another plan."""
        self.plan = plan
        self.reserves = plan.rules.reserved > 0.0
        is_other_kind = False
        for backend, model_backend in self.model_backends.items():
            limit = plan.limit(backend)
            if type(model_backend) is _kind(limit):
                model_backend.apply(limit)
            else:
                self.model_backends[backend] = self._make(model_backend.penalty, now, model_backend)
                is_other_kind = True
        self._slots = 0
        if is_other_kind:
            self._renew_eligible_sets(now)

    def _renew_eligible_sets(self, now: float) -> None:
        """Have the pools know of model backends that took the place of others."""
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

    def restart(self) -> None:
        """Forget the pools, and the model backends that are not in use and nothing is known of."""
        self.eligible_sets.clear()
        self.index = None
        self.waiting.clear()
        self._aliases.clear()
        self._used.clear()
        for backend, model_backend in tuple(self.model_backends.items()):
            if not model_backend.in_flight and not model_backend.cost.count:
                del self.model_backends[backend]
        self.stats.lost(self.model_backends.values())
        self._slots = 0
        self._check_kinds()

    def _check_kinds(self) -> None:
        self.uses_fast_path = all(
            type(model_backend) is ModelBackend for model_backend in self.model_backends.values()
        )
        if not self.uses_fast_path:
            self.stats.tail_s = 0.0

    def forget(self, backend: Backend) -> None:
        """Nothing learnt of a backend holds."""
        model_backend = self.model_backends.get(backend)
        if model_backend is not None:
            model_backend.forget()
            self.stats.lost(self.model_backends.values())
            if self.index is not None:
                self.index.outdated()

    @property
    def waits(self) -> int:
        """Tickets that wait."""
        return sum([eligible_set.queue.count for eligible_set in self.waiting])

    def eligible_set(self, ticket: Ticket, now: float) -> EligibleSet:
        """The pool of a ticket."""
        eligible = ticket.eligible
        if ticket.tried:
            tried = ticket.tried
            eligible = tuple([each for each in eligible if each not in tried]) or eligible
        known = self._aliases.get(id(eligible))
        if known is not None and known[0] is eligible:
            return known[1]
        eligible_set = self.eligible_sets.get(eligible)
        if eligible_set is None:
            eligible_set = self._new_eligible_set(eligible, now)
        if not ticket.tried:
            if len(self._aliases) >= _MAX_ALIASES:
                self._aliases.clear()
            self._aliases[id(eligible)] = (eligible, eligible_set)
        return eligible_set

    def _new_eligible_set(self, eligible: tuple[Backend, ...], now: float) -> EligibleSet:
        if len(self.eligible_sets) >= _MAX_ELIGIBLE_SETS:
            self.eligible_sets = {
                each: eligible_set
                for each, eligible_set in self.eligible_sets.items()
                if eligible_set.queue.count
            }
            self._aliases.clear()
        model_backends = tuple([self._model_backend(backend, now) for backend in eligible])
        eligible_set = self.eligible_sets[eligible] = EligibleSet(
            model_backends, self.plan.rules, self.stats
        )
        used = len(self._used)
        self._used.update(model_backends)
        if len(self._used) != used:
            self._slots = 0
        self._index(eligible_set, now)
        return eligible_set

    def _index(self, eligible_set: EligibleSet, now: float) -> None:
        """Have a new pool find model backends by an index, if there are many; and all pools by
        another one, if there are more model backends than it knows of."""
        if len(self.model_backends) <= LARGE:
            return
        if self.index is not None and self.index.count == len(self.model_backends):
            eligible_set.use(self.index)
            return
        self.index = ModelBackendIndex(self.model_backends.values(), now)
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
        return model_backend

    def _make(
        self, penalty: BackendPenalty, now: float, before: ModelBackend | None = None
    ) -> ModelBackend:
        """A new model backend, which may take the place of one of another kind."""
        limit = self.plan.limit(penalty.backend)
        model_backend = _kind(limit)(penalty, limit, self.stats)
        if before is not None:
            model_backend.inherit(before, now)
        measured = penalty.measured_of(self.model, self.version)
        if measured is not None:
            model_backend.assume(measured, now)
        return model_backend

    def yields(self, priority: int) -> bool:
        """Whether requests of a priority have to leave room for more urgent ones."""
        return self.reserves and priority > 0

    def is_kept(self, priority: int) -> bool:
        """Whether slots that are free are kept for a higher priority than this one.

        So many stay free beyond those that the highest one uses already.
        """
        if not self.yields(priority):
            return False
        if not self._slots:
            self._count()
        if not self._low:
            return False
        kept = max(1, round(self._slots * self.plan.rules.reserved))
        self.is_pressed = self._high > 0 and self._busy > self._slots - kept
        return self._busy >= self._slots - kept

    def _count(self) -> None:
        """Count slots, and what is under way in them. Where only what began before still runs, on a
        backend that is drained or ejected, nothing can be kept."""
        model_backends = self._used
        self._slots = sum([model_backend.slots for model_backend in model_backends])
        self._busy = sum(
            [min(model_backend.in_flight, model_backend.slots) for model_backend in model_backends]
        )
        self._high = sum([model_backend.high for model_backend in model_backends])
        self._low = sum([model_backend.low for model_backend in model_backends])

    def began(self, ticket: Ticket, model_backend: ModelBackend, now: float) -> None:
        """A ticket has begun in a model backend."""
        ticket.model_backend = model_backend
        self.stats.in_flight += 1
        if self.index is not None:
            self.index.changed(model_backend, now)
        if ticket.priority <= 0:
            model_backend.high += 1
        if self.reserves and model_backend in self._used:
            self._note(ticket, 1)
            if model_backend.in_flight <= model_backend.slots:
                self._busy += 1

    def ended(self, ticket: Ticket, model_backend: ModelBackend, now: float) -> None:
        """A ticket has ended in a model backend."""
        self.stats.in_flight -= 1
        if self.index is not None:
            self.index.changed(model_backend, now)
        if ticket.priority <= 0:
            model_backend.high -= 1
        if self.reserves and model_backend in self._used:
            self._note(ticket, -1)
            if model_backend.in_flight < model_backend.slots:
                self._busy -= 1

    def find_lost(
        self, ended: Ticket, model_backend: ModelBackend, now: float, ending: Ending
    ) -> list[Ticket]:
        """A request ended in a model backend that has overdue ones. If its answer proves that these
        are lost they are not counted any more; see `lb.balancing.unanswered`."""
        unanswered = model_backend.unanswered
        lost: list[Ticket] = []
        if ending is Ending.GOOD and ended.began_at >= unanswered.since:
            lost = unanswered.overdue(ended.began_at, model_backend.cost.mean_s)
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
        """Who makes room for a ticket that is to wait in a pool of its own: somebody of the lowest
        priority, from another pool only if that is lower than its own. None: it is too many."""
        found: Ticket | None = None
        for eligible_set in self.waiting:
            victim = eligible_set.queue.victim(ticket)
            if victim is None or (
                eligible_set is not own and level_of(victim.priority) <= level_of(ticket.priority)
            ):
                continue
            if found is None or level_of(victim.priority) > level_of(found.priority):
                found = victim
        return found

    def room_in(self, eligible_set: EligibleSet, now: float) -> float:
        """Seconds until those that wait now will have begun."""
        rate = eligible_set.rate(now)
        return max((self.waits + 1) / rate if rate else 0.0, _MIN_RETRY_S)

    def is_late(self, ticket: Ticket, eligible_set: EligibleSet, now: float) -> bool:
        """Whether a ticket that joins others that wait would miss its deadline even if every
        execution were quick."""
        usual = self.stats.usual
        rate = eligible_set.rate(now)
        if not rate or not usual.count:
            return False
        count, work_s = eligible_set.queue.ahead(ticket)
        # What was estimated when executions took longer does not count as more of them.
        ahead = min(work_s / usual.mean_s, float(count))
        takes_s = (ahead + self.stats.in_flight) / rate + ticket.work_s
        return now + takes_s > ticket.deadline and eligible_set.is_lost(ticket, now, ahead)

    def due(
        self, eligible_set: EligibleSet, now: float
    ) -> tuple[Ticket, ModelBackend | None] | None:
        """The next step of a pool in which some ticket waits.

        Sets `eligible_set.wake_at`.

        Returns:
            The ticket that is to begin now, and where; or one that cannot make it any more, and
            None; or None, where all are to wait.
        """
        queue = eligible_set.queue
        turn = queue.level(now).turn()
        head = turn.at(0)
        ahead_s = NO_DEADLINE
        if eligible_set.ahead_s != NO_DEADLINE and turn.is_patient(now - eligible_set.patience_s()):
            head = turn.last()
            ahead_s = eligible_set.ahead_s
        eligible_set.wake_at = NO_DEADLINE
        is_kept = self.is_kept(head.priority)
        yields = self.yields(head.priority)
        if yields:
            ahead_s = NOT_AHEAD_S if is_kept and self.is_pressed else YIELDING_LEAD_S
        model_backend = eligible_set.choose(head.rows, head.size, now, ahead_s, is_kept)
        if is_kept and model_backend is None and (urgent := queue.most_urgent()) is not None:
            # It is another one's turn, but only these may use what is free.
            head = urgent
            is_kept = False
            ahead_s = NO_DEADLINE
            model_backend = eligible_set.choose(head.rows, head.size, now)
        eligible_set.is_closed = model_backend is None and ahead_s == NO_DEADLINE
        if head.deadline != NO_DEADLINE:
            model_backend = eligible_set.avoid_doubted(head, model_backend, now, ahead_s, is_kept)
            if eligible_set.seems_late(head):
                return self._hurried(head, eligible_set, now, ahead_s, is_kept)
        if model_backend is None:
            self._wake(eligible_set, now, ahead_s)
            return None
        if eligible_set.is_best(now):
            if model_backend.cost.mean_s < SLOW * self.stats.best_s or head.deadline != NO_DEADLINE:
                return head, model_backend
            ticket = self._for_slow(head, eligible_set, model_backend, now)
            if ticket is not None:
                return ticket, model_backend
            model_backend = eligible_set.choose(
                head.rows,
                head.size,
                now,
                ahead_s,
                is_kept,
                busy_execution_weight=OWN_EXECUTION_WEIGHT,
            )
            if model_backend is None:
                self._wake(eligible_set, now, ahead_s)
                return None
            if eligible_set.is_best(now):
                return head, model_backend
        return self._for_second_best(head, eligible_set, model_backend, now)

    def _hurried(
        self, head: Ticket, eligible_set: EligibleSet, now: float, ahead_s: float, is_kept: bool
    ) -> tuple[Ticket, ModelBackend | None] | None:
        """The next step where a ticket seems to be late."""
        model_backend = eligible_set.hurry(head, now, ahead_s, is_kept)
        found: tuple[Ticket, ModelBackend | None] | None = None
        if eligible_set.seems_late(head):
            found = self._instead(head, eligible_set, model_backend, now)
        elif model_backend is not None:
            is_best = eligible_set.is_best(now)
            found = (
                (head, model_backend)
                if is_best
                else self._for_second_best(head, eligible_set, model_backend, now)
            )
        if found is None and model_backend is None:
            self._wake(eligible_set, now, ahead_s)
        return found

    def _instead(
        self,
        head: Ticket,
        eligible_set: EligibleSet,
        model_backend: ModelBackend | None,
        now: float,
    ) -> tuple[Ticket, ModelBackend | None] | None:
        """What to do in place of beginning a ticket that seems to be late: begin one that is in
        time in the model backend that has room, or try it where an instance is idle, or refuse
        it."""
        idle: ModelBackend | None = None
        is_lost = eligible_set.is_lost(head, now)
        if is_lost or now >= head.deadline - self.stats.best_s:
            idle = eligible_set.idle(head, now, self.is_kept(head.priority))
            if is_lost and idle is None:
                return head, None
        elif model_backend is not None and model_backend.is_idle and eligible_set.is_best(now):
            idle = model_backend
        if model_backend is not None:
            other = self._in_time(
                head, eligible_set, model_backend, now, is_any=is_lost and not self.reserves
            )
            if other is not None:
                return other, model_backend
        return None if idle is None else (head, idle)

    @staticmethod
    def _in_time(
        head: Ticket,
        eligible_set: EligibleSet,
        model_backend: ModelBackend,
        now: float,
        *,
        is_any: bool,
    ) -> Ticket | None:
        """The first of those that wait that would surely be in time in a model backend, of any
        priority or of that of a ticket which would not."""
        queue = eligible_set.queue
        begin = (
            eligible_set.open_end
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

    def _for_second_best(
        self, head: Ticket, eligible_set: EligibleSet, model_backend: ModelBackend, now: float
    ) -> tuple[Ticket, ModelBackend] | None:
        """Who of those that wait begins in a model backend that has room and is not the best one
        for whoever is next."""
        queue = eligible_set.queue
        first = queue.level(now).turn().at(0)
        place = eligible_set.before(eligible_set.open_score, model_backend, now)
        # Who has waited for longer than the idle one takes was promised too much.
        max_wait_at = (
            first.came_at
            + _MAX_WAIT_RATIO * model_backend.takes_s / model_backend.penalty.factor_now(now)
        )
        waits_too_long = max_wait_at <= now and model_backend.in_flight < model_backend.instances
        if place < queue.count or waits_too_long:
            ticket = head
            if head is first:
                ticket = queue.nth(
                    eligible_set.before(eligible_set.open_end, model_backend, now, 1.0), now
                )
            if not self.is_kept(ticket.priority) or model_backend.low >= model_backend.slots:
                end = model_backend.estimate(ticket.rows, ticket.size, now)
                score = end - (1.0 - OWN_EXECUTION_WEIGHT) * model_backend.takes_s
                if end < ticket.deadline and (
                    waits_too_long or eligible_set.before(score, model_backend, now) <= place
                ):
                    return ticket, model_backend
        if eligible_set.best is not None:
            best = eligible_set.best
            eligible_set.wake_at = best.begins_at + _RECHECK_S + _RECHECK_SHARE * best.cost.mean_s
            if now < max_wait_at:
                eligible_set.wake_at = min(eligible_set.wake_at, max_wait_at)
        return None

    def _for_slow(
        self, head: Ticket, eligible_set: EligibleSet, model_backend: ModelBackend, now: float
    ) -> Ticket | None:
        """Who goes to a slow model backend of those that wait: whoever would end elsewhere at the
        same time.

        Where nobody waits who would end so late it is the one that came last, if it is not made
        later than others are.
        """
        queue = eligible_set.queue
        place = eligible_set.before(eligible_set.open_end, model_backend, now, 1.0)
        ticket = queue.nth(place, now)
        if (
            ticket.priority != head.priority
            or ticket.deadline != NO_DEADLINE
            or ticket.work_s > _TIE_TOLERANCE * head.work_s
        ):
            return head
        end = model_backend.estimate(ticket.rows, ticket.size, now)
        if place < queue.count or end - ticket.came_at <= self.stats.tail_s:
            return ticket
        return None

    @staticmethod
    def _wake(eligible_set: EligibleSet, now: float, ahead_s: float) -> None:
        """Say when a full pool is to be looked at although nothing ended."""
        best = eligible_set.best
        if best is None:
            return
        eligible_set.wake_at = eligible_set.overdue_at(now)
        if eligible_set.is_capped:
            # Requests that are not ours may end there, and nobody says so.
            eligible_set.wake_at = now + _POLL_S
        elif best.in_flight < best.limit:
            lead_s = min(best.lead_s, ahead_s + best.lead_s - LEAD_S)
            at = max(now + _RECHECK_S, best.begins_at - lead_s + _ROUNDING_S)
            eligible_set.wake_at = min(at, eligible_set.wake_at)


def _kind(limit: Capacity) -> type[ModelBackend]:
    """Model backends of backends that put several requests into one execution, that work on all of
    them side by side, or on one after the other."""
    if limit.is_shared:
        return SharedModelBackend
    return BatchingModelBackend if limit.max_batch > 1 else ModelBackend
