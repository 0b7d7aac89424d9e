"""An eligible set: the model backends that some requests of a model may use, and their queue.

Nearly always a model has one. It has more where requests may use only some backends: those that
speak one protocol, have a region of shared memory, or have not failed the request before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from lb.balancing.cost import MIN_SAMPLES
from lb.balancing.model_backend import LATENESSES, OWN_EXECUTION_WEIGHT, ModelBackend
from lb.balancing.model_backend_index import LARGE, ModelBackendIndex
from lb.balancing.model_stats import TAIL, ModelStats
from lb.balancing.ranking import IdleRanking
from lb.balancing.selection import (
    ANY_LEAD_S,
    EARLIEST_END,
    LATE_LEAD_S,
    NETWORK_S,
    NORMAL,
    TIE_TOLERANCE,
    Mode,
    Selection,
    select,
)
from lb.balancing.tenant_times import TenantTimes
from lb.balancing.tuning import TUNING
from lb.balancing.unanswered import LOST_S
from lb.balancing.waiting import WaitingQueue, due_at, level_of
from lb.domain.schedule import NO_DEADLINE, QueueRules, Ticket

_MAX_OVERTAKEN: Final = TUNING.overtaken_share
SLOW: Final = TUNING.slow_ratio
_RATE_FOR_S: Final = TUNING.rate_for_s


Waits = tuple[int, float, float]
"""Queued requests: the level of the next ones, and the keys of the first and the last of these.
Where tenants take turns by their times: the level, such a time, and the key of the first."""
STARVING: Final = -inf
"""Before the time of any tenant: the turn of a request that has waited for too long."""


class EligibleSet:
    """Model backends, and a queue for them."""

    __slots__ = (
        "_among", "_instances", "_rate", "_rate_at", "freed", "freed_at", "has_tenants", "index",
        "is_capped", "is_closed", "is_retired", "is_uneven", "key", "max_lead_s", "model_backends",
        "others_waiting", "queue", "ranking", "stats", "wake_at",
    )  # fmt: skip

    def __init__(
        self,
        model_backends: tuple[ModelBackend, ...],
        rules: QueueRules,
        stats: ModelStats,
        times: Callable[[int], TenantTimes] | None = None,
    ) -> None:
        """
        Args:
            model_backends: of one model.
            rules: of its queue.
            stats: of the model.
            times: of tenants; see `WaitingQueue`.
        """
        self.model_backends = model_backends
        self.stats = stats
        self.has_tenants = times is not None
        """Tenants take turns by their times, in all workers together."""
        self.queue = WaitingQueue(rules, times)
        self.is_capped = any(
            model_backend.backend.max_in_flight for model_backend in model_backends
        )
        """Some backend has a limit of its own, which requests of other models count against."""
        self.others_waiting = 0
        """Requests of the model that are queued by other workers."""
        self.key = 0
        """A hash of the names of its backends, the same in all workers; 0: nobody has asked."""
        self.is_closed = False
        """No model backend had room when it was checked last for a queued request."""
        self.is_retired = False
        """It is of an old snapshot, or was dropped: no other request is to use it, and its queue is
        only to be moved to other sets."""
        self.freed = 0
        """Requests of the model that have ended since."""
        self.freed_at: ModelBackend | None = None
        """Where the last of them has ended."""
        self.index: ModelBackendIndex | None = None
        """An index of all model backends of the model, where these are many."""
        self._among: frozenset[ModelBackend] | None = None
        self.wake_at = NO_DEADLINE
        """When it is to be checked although nothing has changed."""
        self.max_lead_s = ANY_LEAD_S
        """How long before its execution a new request is sent ahead at most."""
        self.is_uneven = False
        """Some model backends are slower than others."""
        self.ranking: IdleRanking | None = None
        """Which idle model backends are the fastest; None while requests are queued."""
        self._instances = 0
        self._rate = 0.0
        self._rate_at = -NO_DEADLINE

    # Decisions

    def pick(self, ticket: Ticket, now: float, *, in_order: bool) -> ModelBackend | None:
        """Find the idle model backend where a request begins now, without a comparison of all.

        A ranking is made if something has been learnt since the last one. It costs less than a
        comparison for one request.

        Args:
            ticket: the request. Nothing may be queued or reserved.
            now: the time.
            in_order: all model backends execute one request after the other.

        Returns:
            None: `select` has to decide.
        """
        if self.index is not None:
            return self._pick_indexed(ticket, now) if in_order else None
        for model_backend in self.model_backends:
            if model_backend.load.in_flight < model_backend.instances:
                self.ranking = IdleRanking(self.model_backends, self.stats, ticket.rows, now)
                return self.ranking.pick(ticket, now)
        return None

    def _pick_indexed(self, ticket: Ticket, now: float) -> ModelBackend | None:
        """Find the idle model backend of very many where a request begins now.

        Returns:
            None: `select` has to decide, since the best idle one is slower than others, or more
            than its learnt cost counts.
        """
        # HOT PATH (benchmarks/bench_schedule.py). `decide` is the reference.
        if self.index is None or ticket.deadline != NO_DEADLINE:
            return None
        found = self.index.idle(now, self._among)
        if found is None:
            return None
        stats = self.stats
        cost = found.load.cost
        mean_s, best_s = cost.mean_s, stats.best_s
        in_time_s = TAIL * stats.tail_s
        if (
            mean_s * (1.0 - TIE_TOLERANCE) > best_s
            or (mean_s >= in_time_s and best_s <= in_time_s)
            or found.load.in_flight
            or cost.count < MIN_SAMPLES
            or cost.row_s
            or cost.byte_s
            or (mean_s > best_s and now - cost.at > found.explore_s)
            or found.penalty.factor != 1.0
            or found.external_load is not None
            or found.backend.share != 1.0
            or found.backend.max_in_flight
        ):
            return None
        return found

    def candidates(self, now: float, *, is_reserved: bool = False) -> Sequence[ModelBackend]:
        """The model backends that a request is compared for.

        Args:
            now: the time.
            is_reserved: free slots are reserved for requests of the highest priority; this one may
                only be sent ahead to a model backend that is busy with requests like it.
        """
        found: Sequence[ModelBackend] = self.model_backends
        if self.index is not None:
            found = self.index.candidates(now, self._among) or found
        elif self.is_capped:
            # Where requests of other models have all places, nobody knows when one is free.
            found = [each for each in found if each.load.in_flight or not each.is_shut()] or found
        return _unreserved(found) if is_reserved else found

    def decide(
        self,
        ticket: Ticket,
        now: float,
        mode: Mode = NORMAL,
        max_lead_s: float = ANY_LEAD_S,
        *,
        is_reserved: bool = False,
    ) -> Selection:
        """Decide where a request belongs, by `select` among all model backends."""
        found = self.candidates(now, is_reserved=is_reserved)
        return select(found, ticket, now, mode, self.stats, max_lead_s)

    def decide_by_end(
        self, ticket: Ticket, now: float, max_lead_s: float, *, is_reserved: bool
    ) -> Selection:
        """Decide where a request ends first, for one whose deadline is near."""
        decision = self.decide(ticket, now, EARLIEST_END, max_lead_s, is_reserved=is_reserved)
        return self.without_doubt(
            decision, ticket, now, EARLIEST_END, max_lead_s, is_reserved=is_reserved
        )

    def without_doubt(
        self,
        decision: Selection,
        ticket: Ticket,
        now: float,
        mode: Mode = NORMAL,
        max_lead_s: float = ANY_LEAD_S,
        *,
        is_reserved: bool = False,
    ) -> Selection:
        """Decide again for a request with a deadline that would be a risky trial.

        A model backend that was slow may be tried to find out whether it has become fast. The
        request of a trial must not be late if it is still slow, where others are in time.

        Returns:
            The decision among the other model backends, or the same decision.
        """
        best, chosen = decision.best, decision.chosen
        if not (
            (best is not None and best.is_doubted(now) and _risks(ticket, best, now))
            or (
                chosen is not None
                and chosen is not best
                and chosen.is_doubted(now)
                and _risks(ticket, chosen, now)
            )
        ):
            return decision
        rows, size = ticket.rows, ticket.size
        sure = [each for each in self.model_backends if not _risks(ticket, each, now)]
        if not any(each.estimate(rows, size, now).ends_at <= ticket.deadline for each in sure):
            return decision
        among = _unreserved(sure) if is_reserved else sure
        return select(among, ticket, now, mode, self.stats, max_lead_s)

    @staticmethod
    def seems_late(decision: Selection, ticket: Ticket) -> bool:
        """Whether a request is not expected to be surely in time where it belongs."""
        best = decision.best
        if best is None:
            return False
        return (
            decision.best_estimate.ends_at + LATENESSES * best.lateness_s + NETWORK_S
            > ticket.deadline
        )

    def idle(self, ticket: Ticket, now: float, *, is_reserved: bool) -> ModelBackend | None:
        """Find the idle model backend where a request ends first by what was learnt.

        Args:
            ticket: the request.
            now: the time.
            is_reserved: free slots are reserved for others.
        """
        found: ModelBackend | None = None
        found_end = NO_DEADLINE
        for model_backend in self.model_backends:
            if not model_backend.is_idle or (
                is_reserved and model_backend.low < model_backend.slots
            ):
                continue
            estimate = model_backend.estimate(ticket.rows, ticket.size, now)
            end = model_backend.learnt_end(estimate, now)
            if estimate.may_begin and (found is None or end < found_end):
                found, found_end = model_backend, end
        return found

    def is_too_late(self, ticket: Ticket, now: float, ahead: float = 0.0) -> bool:
        """Whether a request would miss its deadline even if every execution were as quick as the
        quickest of recent ones.

        Args:
            ticket: the request.
            now: the time.
            ahead: typical executions that are queued before it.
        """
        if ticket.deadline <= now:
            return True
        begin = own_s = end = NO_DEADLINE
        speed = 0.0
        instances = 0
        for model_backend in self.model_backends:
            its_begin, its_own_s, usual_s = model_backend.least_end(ticket.rows, ticket.size, now)
            if not usual_s:
                return False
            instances += model_backend.instances
            speed += model_backend.instances / usual_s
            begin = min(begin, its_begin)
            own_s = min(own_s, its_own_s)
            end = min(end, its_begin + its_own_s)
        if ahead >= instances:
            end = max(end, begin + (ahead - instances + 1) / speed + own_s)
        return end > ticket.deadline

    def nth(self, place: int, now: float) -> Ticket:
        """Find the queued request with so many before it, counting from 0; the last one if there
        are fewer. Those of other workers are assumed to be spread evenly among them."""
        if self.others_waiting:
            place = place * self.queue.count // (self.queue.count + self.others_waiting)
        return self.queue.nth(place, now)

    # Load

    def max_overtaken_s(self) -> float:
        """Seconds for which later requests may overtake a queued one.

        It then ends about when the slowest few requests would if all were dispatched in the order
        of their arrival. Zero where requests differ in cost, or model backends do not: there the
        order of arrival is best for everybody.
        """
        usual = self.stats.usual
        if usual.row_s or usual.byte_s or not self.is_uneven:
            return 0.0
        return _MAX_OVERTAKEN * self.stats.tail_s - usual.mean_s

    def order(self, waits: Waits, now: float) -> tuple[int, float, float]:
        """Sort the queues of several workers by their next requests: the least value is the first.

        Where later requests overtake, the newest is the first, and the oldest before all of them
        once it has been overtaken for long enough.
        """
        level, first, last = waits
        if self.has_tenants:
            return 2 * level, first, last
        if self.max_lead_s != ANY_LEAD_S and first >= due_at(
            now - self.max_overtaken_s(), self.stats.usual.mean_s
        ):
            return 2 * level + 1, -last, 0.0
        return 2 * level, first, 0.0

    def waits(self, now: float) -> Waits:
        """The queued requests, as other workers are told of them. Some request must be queued."""
        level, first = self.queue.urgency(now)
        tenants = self.queue.level(now)
        if not self.has_tenants:
            return level, first, tenants.turn().last().key
        is_starving = not level and level_of(tenants.turn().at(0).priority)
        return level, STARVING if is_starving else tenants.turn_at(), first

    def slot(self, now: float) -> int:
        """By which others find the tenant whose turn it is; see `Level.turn_slot`. Some request
        must be queued."""
        return self.queue.level(now).turn_slot() if self.has_tenants else 0

    def on_arrival(self, now: float) -> None:
        """Note how long a new request would take if all went in order."""
        if len(self.model_backends) == 1:
            return  # there is nothing to choose
        rate = self.rate(now)
        if not rate:
            return
        stats = self.stats
        queued = self.queue.count + self.others_waiting
        ahead = queued + self.in_flight() + 1 - self._instances
        stats.on_arrival(max(0, ahead) / rate + stats.usual.mean_s, now)
        self.max_lead_s = LATE_LEAD_S if self.max_overtaken_s() > 0 else ANY_LEAD_S

    def before(
        self,
        score: float,
        chosen: ModelBackend,
        now: float,
        own_execution_weight: float = OWN_EXECUTION_WEIGHT,
    ) -> int:
        """Count further requests that compare better at the other model backends, one after the
        other, than one at a chosen model backend.

        Args:
            score: when the one begins, and a part of its execution.
            chosen: its model backend.
            now: the time.
            own_execution_weight: that part.
        """
        if self.index is not None:
            # Executions that run are half done on average.
            rate = self.rate(now) - chosen.rate
            in_flight = self.in_flight()
            ahead = in_flight - 0.5 * min(in_flight, len(self.model_backends))
            return max(0, int(rate * (score - now) - ahead))
        total = 0
        for model_backend in self.model_backends:
            if model_backend is chosen:
                continue
            in_flight = model_backend.load.in_flight
            if in_flight >= model_backend.instances:
                begins = model_backend.free_times(now)[0]
            elif not (self.is_capped and model_backend.is_shut()):
                begins = now
            elif in_flight:
                begins = model_backend.estimate(1, 0, now).begins_at
            else:
                continue
            if begins < score:
                total += model_backend.could_take(score - begins, own_execution_weight)
        return total

    def in_flight(self) -> int:
        """Count the requests in flight; where model backends are very many, at those of other sets,
        too."""
        if self.index is not None:
            return self.index.in_flight
        return sum([model_backend.load.in_flight for model_backend in self.model_backends])

    def overdue_at(self, now: float) -> float:
        """Find when a full model backend may have to take one more because what is in flight is
        overdue."""
        if self.index is not None:
            return now + LOST_S  # the index finds such model backends about as often
        for model_backend in self.model_backends:
            if now >= model_backend.unanswered.check_at:
                model_backend.check_overdue(now)
        return min([model_backend.unanswered.check_at for model_backend in self.model_backends])

    def rate(self, now: float) -> float:
        """Requests per second that its model backends can execute; 0 where nothing is known."""
        if now - self._rate_at > _RATE_FOR_S:
            self._rate_at = now
            self._rate = sum([model_backend.rate for model_backend in self.model_backends])
            self._instances = sum(
                [model_backend.instances for model_backend in self.model_backends]
            )
            takes = [
                model_backend.load.cost.mean_s
                for model_backend in self.model_backends
                if model_backend.load.cost.count >= MIN_SAMPLES
            ]
            self.is_uneven = bool(takes) and max(takes) > SLOW * min(takes)
        return self._rate

    # Changes

    def renew(self, model_backends: tuple[ModelBackend, ...]) -> None:
        """Have others in the place of its model backends, at the same backends."""
        self.model_backends = model_backends
        self.index = None
        self.ranking = None
        self.is_closed = False
        self.freed_at = None
        self._rate_at = -NO_DEADLINE

    def use(self, index: ModelBackendIndex) -> None:
        """Find model backends by an index of all model backends of the model, if there are many."""
        if len(self.model_backends) > LARGE:
            self.index = index
            self.ranking = None
            self._among = (
                None if index.count == len(self.model_backends) else frozenset(self.model_backends)
            )


def overtakes(order: tuple[int, float, float]) -> bool:
    """Whether a request has its place in `EligibleSet.order` because it overtakes earlier ones."""
    return bool(order[0] % 2)


def _unreserved(model_backends: Sequence[ModelBackend]) -> list[ModelBackend]:
    """Model backends all of whose slots are used by requests of lower priorities."""
    return [each for each in model_backends if each.low >= each.slots]


def _risks(ticket: Ticket, model_backend: ModelBackend, now: float) -> bool:
    """Whether a request may be late at a model backend that counts as faster than was learnt."""
    if not model_backend.is_doubted(now):
        return False
    estimate = model_backend.estimate(ticket.rows, ticket.size, now)
    end = model_backend.learnt_end(estimate, now)
    return end + model_backend.margin_s + NETWORK_S > ticket.deadline
