"""A pool: the model backends that some requests of a model queue may use, and those of them that
wait.

Nearly always a model queue has one; more where requests may use only some backends: those that
speak one protocol, have a region of shared memory, or have not failed the request before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lb.balancing.cost import MIN_SAMPLES
from lb.balancing.model_backend import (
    BUSY_EXECUTION_WEIGHT,
    LATE_LEAD_S,
    LATENESSES,
    LEAD_S,
    OWN_EXECUTION_WEIGHT,
    ModelBackend,
)
from lb.balancing.model_backend_index import LARGE, ModelBackendIndex
from lb.balancing.model_stats import TAIL, ModelStats
from lb.balancing.unanswered import LOST_S
from lb.balancing.waiting import WaitingQueue
from lb.domain.schedule import NO_DEADLINE, QueueRules, Ticket

_TIE_TOLERANCE: Final = 0.05
"""Ends that differ by less than that part of the time until then, and by less than is known, are
the same: then it is the model backend with less to do, or whichever was picked least recently."""
_PASSED: Final = 0.65
"""For what part of `ModelStats.tail_s` a request may be passed, an execution less."""
SLOW: Final = 1.25
"""A model backend that takes so many times as long as the fastest is a slow one."""
_FEW: Final = 8
"""Executions that are no reason to leave an idle backend alone."""
_RATE_FOR_S: Final = 0.05
NETWORK_S: Final = 0.002
"""What the network may take between us and a client, whose clock began before ours."""


class EligibleSet:
    """Model backends, and a queue for them."""

    __slots__ = (
        "_among", "_best_score", "_instances", "_rate", "_rate_at", "ahead_s", "best", "best_end",
        "freed", "index", "is_capped", "is_closed", "is_uneven", "model_backends", "open_end",
        "open_score", "queue", "stats", "wake_at",
    )  # fmt: skip

    def __init__(
        self, model_backends: tuple[ModelBackend, ...], rules: QueueRules, stats: ModelStats
    ) -> None:
        self.model_backends = model_backends
        self.stats = stats
        self.queue = WaitingQueue(rules)
        self.best: ModelBackend | None = None
        """Set by `choose`: where a request belongs, be there room or not."""
        self.best_end = NO_DEADLINE
        """Set by `choose`: when it would end there."""
        self.open_score = NO_DEADLINE
        """Set by `choose`: how the model backend that was given compares; less is better."""
        self.open_end = NO_DEADLINE
        """Set by `choose`: when the request would end in the model backend that was given."""
        self._best_score = NO_DEADLINE
        self.is_capped = any(
            model_backend.backend.max_in_flight for model_backend in model_backends
        )
        """Some backend has a limit of its own, which other requests count against, too."""
        self.is_closed = False
        """No model backend had room when it was looked at last for one that waits."""
        self.freed = 0
        """Requests of the model queue that have ended since."""
        self.index: ModelBackendIndex | None = None
        """Of all model backends of the model queue, where these are many."""
        self._among: frozenset[ModelBackend] | None = None
        self.wake_at = NO_DEADLINE
        """When it is to be looked at although nothing has changed."""
        self.ahead_s = NO_DEADLINE
        """How long before its execution a request that has just come goes to a model backend at
        most."""
        self.is_uneven = False
        """Some model backends are slower than others."""
        self._instances = 0
        self._rate = 0.0
        self._rate_at = -NO_DEADLINE

    def choose(
        self,
        rows: int,
        size: int,
        now: float,
        ahead_s: float = NO_DEADLINE,
        is_kept: bool = False,
        own_execution_weight: float = OWN_EXECUTION_WEIGHT,
        busy_execution_weight: float = BUSY_EXECUTION_WEIGHT,
        among: Sequence[ModelBackend] | None = None,
    ) -> ModelBackend | None:
        """The best model backend of those that have room for a request; None: none has.

        A backend that has just come (`Backend.share`) gets less while others are idle. Where a
        request would have to wait for these, it goes there.

        Args:
            rows: of the request.
            size: of the request, in bytes.
            now: the time.
            ahead_s: how long before its execution it may go to a model backend at most.
            is_kept: slots that are free are kept from it; it may only go ahead to a model backend
            that is
                busy with such as it is.
            own_share: what counts of its own execution, beside its wait; with all of it the best
                model backend is where it ends first.
            busy_share: the same where it would end no later than others do.
            among: model backends that it may go to; None for all.
        """
        model_backends: Sequence[ModelBackend] = self.model_backends
        if among is not None:
            model_backends = among
        elif self.index is not None:
            found = self.index.candidates(now, self._among)
            if found:
                model_backends = found
        if is_kept:
            model_backends = [
                model_backend
                for model_backend in model_backends
                if model_backend.low >= model_backend.slots
            ]
        rest, rest_in_time = 1.0 - own_execution_weight, 1.0 - busy_execution_weight
        in_time = now + TAIL * self.stats.tail_s
        latest = now + ahead_s - LEAD_S
        idle_tie_tolerance, was_idle = self.stats.idle_tie_tolerance, False
        best: ModelBackend | None = None
        chosen: ModelBackend | None = None
        best_score = best_end = chosen_score = NO_DEADLINE
        for model_backend in model_backends:
            end = model_backend.estimate(rows, size, now)
            score = end - (rest if end > in_time else rest_in_time) * model_backend.takes_s
            if score < best_score:
                best, best_score, best_end = model_backend, score, end
            if model_backend.is_open and (
                model_backend.begins_at <= latest + model_backend.lead_s
                or (model_backend.is_exact and ahead_s >= LATE_LEAD_S)
            ):
                is_idle = model_backend.in_flight < model_backend.instances
                tie_tolerance = _TIE_TOLERANCE * (score - now) + model_backend.cost.unsure_s
                if is_idle and was_idle:
                    tie_tolerance = max(tie_tolerance, idle_tie_tolerance * (score - now))
                if chosen is None or score < chosen_score - tie_tolerance:
                    chosen, chosen_score, self.open_end = model_backend, score, end
                    was_idle = is_idle
                elif score <= chosen_score + tie_tolerance:
                    chosen_score = min(chosen_score, score)
                    if model_backend.is_before(chosen):
                        chosen, was_idle, self.open_end = model_backend, is_idle, end
        if chosen is not None and chosen.backend.share != 1.0:
            other = _instead_of_newcomer(chosen, model_backends, rows, size, now)
            if other is not None:
                end = self.open_end = other.estimate(rows, size, now)
                score = end - (rest if end > in_time else rest_in_time) * other.takes_s
                chosen_score = score
                if best is chosen:
                    best, best_score, best_end = other, score, end
                chosen = other
        if best is not None:
            self.best_end = best_end
        self.best, self._best_score, self.open_score = best, best_score, chosen_score
        return chosen

    def hurry(
        self, ticket: Ticket, now: float, ahead_s: float, is_kept: bool
    ) -> ModelBackend | None:
        """As `choose`, for a ticket whose deadline is near: where it ends first."""
        model_backend = self.choose(ticket.rows, ticket.size, now, ahead_s, is_kept, 1.0, 1.0)
        return self.avoid_doubted(ticket, model_backend, now, ahead_s, is_kept, 1.0, 1.0)

    def avoid_doubted(
        self,
        ticket: Ticket,
        model_backend: ModelBackend | None,
        now: float,
        ahead_s: float = NO_DEADLINE,
        is_kept: bool = False,
        own_execution_weight: float = OWN_EXECUTION_WEIGHT,
        busy_execution_weight: float = BUSY_EXECUTION_WEIGHT,
    ) -> ModelBackend | None:
        """Have a ticket with a deadline not find out whether a slow model backend has become fast,
        if it would be late where that is still slow, and in time elsewhere.

        Args:
            ticket: `choose` was asked about it.
            model backend: what `choose` gave.
            now: the time.
            ahead_s: as for `choose`.
            is_kept: as for `choose`.
            own_share: as for `choose`.
            busy_share: as for `choose`.

        Returns:
            What `choose` gives without such model backends, or the same model backend.
        """
        best = self.best
        if not (
            (best is not None and best.is_doubted(now) and self._risks(ticket, best, now))
            or (
                model_backend is not None
                and model_backend is not best
                and model_backend.is_doubted(now)
                and self._risks(ticket, model_backend, now)
            )
        ):
            return model_backend
        rows, size = ticket.rows, ticket.size
        sure = [each for each in self.model_backends if not self._risks(ticket, each, now)]
        if not any(each.estimate(rows, size, now) <= ticket.deadline for each in sure):
            return model_backend
        return self.choose(
            rows, size, now, ahead_s, is_kept, own_execution_weight, busy_execution_weight, sure
        )

    @staticmethod
    def _risks(ticket: Ticket, model_backend: ModelBackend, now: float) -> bool:
        """Whether a request may be late in a model backend that is hoped to be faster than was
        learnt."""
        if not model_backend.is_doubted(now):
            return False
        end = model_backend.learnt_end(model_backend.estimate(ticket.rows, ticket.size, now), now)
        return end + model_backend.margin_s + NETWORK_S > ticket.deadline

    def patience_s(self) -> float:
        """How long those that wait may be passed by those that came later: so long that they end
        about when the last ones would if all went in order. Not at all where requests or model
        backends are alike: then everybody's wait is shortest in order."""
        usual = self.stats.usual
        if usual.row_s or usual.byte_s or not self.is_uneven:
            return 0.0
        return _PASSED * self.stats.tail_s - usual.mean_s

    def on_arrival(self, now: float) -> None:
        """A request came: have it counted how long it would take if all went in order."""
        rate = self.rate(now)
        if not rate:
            return
        stats = self.stats
        ahead = self.queue.count + stats.in_flight + 1 - self._instances
        stats.on_arrival(max(0, ahead) / rate + stats.usual.mean_s, now)
        self.ahead_s = LATE_LEAD_S if self.patience_s() > 0 else NO_DEADLINE

    def is_best(self, now: float) -> bool:
        """Whether the model backend that `choose` gave is the best one, or as good."""
        best = self.best
        unsure_s = 0.0 if best is None else best.cost.unsure_s
        score = self.open_score
        return score - self._best_score <= _TIE_TOLERANCE * (score - now) + unsure_s

    def seems_late(self, ticket: Ticket) -> bool:
        """Whether a request that `choose` was asked about is not expected to be surely in time."""
        best = self.best
        if best is None:
            return False
        return self.best_end + LATENESSES * best.lateness_s + NETWORK_S > ticket.deadline

    def underexplored(self, model_backend: ModelBackend) -> ModelBackend | None:
        """An idle model backend of which next to nothing is known, if it has the turn before
        another one."""
        if self.index is not None:
            return None
        found: ModelBackend | None = None
        for other in self.model_backends:
            if (
                other.cost.count < _FEW
                and not other.in_flight
                and other.last_pick < (found or model_backend).last_pick
                and not other.is_shut()
            ):
                found = other
        return found

    def idle(self, ticket: Ticket, now: float, is_kept: bool) -> ModelBackend | None:
        """Of the model backends with an idle instance that a request may use, the one where it ends
        first by what was learnt.

        Args:
            ticket: of the request.
            now: the time.
            is_kept: slots that are free are kept from it.
        """
        found: ModelBackend | None = None
        found_end = NO_DEADLINE
        for model_backend in self.model_backends:
            if not model_backend.is_idle or (is_kept and model_backend.low < model_backend.slots):
                continue
            end = model_backend.learnt_end(
                model_backend.estimate(ticket.rows, ticket.size, now), now
            )
            if model_backend.is_open and (found is None or end < found_end):
                found, found_end = model_backend, end
        return found

    def is_lost(self, ticket: Ticket, now: float, ahead: float = 0.0) -> bool:
        """Whether a request would end too late even if every execution were as quick as the
        quickest of recent ones.

        Args:
            ticket: of the request.
            now: the time.
            ahead: usual executions that wait here and go before it.
        """
        if ticket.deadline <= now:
            return True
        begin = own_s = end = NO_DEADLINE
        speed = 0.0
        instances = 0
        for model_backend in self.model_backends:
            lane_begin, lane_own_s, usual_s = model_backend.least_end(ticket.rows, ticket.size, now)
            if not usual_s:
                return False
            instances += model_backend.instances
            speed += model_backend.instances / usual_s
            begin = min(begin, lane_begin)
            own_s = min(own_s, lane_own_s)
            end = min(end, lane_begin + lane_own_s)
        if ahead >= instances:
            end = max(end, begin + (ahead - instances + 1) / speed + own_s)
        return end > ticket.deadline

    def renew(self, model_backends: tuple[ModelBackend, ...]) -> None:
        """Have others in the place of its model backends, at the same backends."""
        self.model_backends = model_backends
        self.index = None
        self.best = None
        self.is_closed = False
        self._rate_at = -NO_DEADLINE

    def use(self, index: ModelBackendIndex) -> None:
        """Find model backends by an index of all model backends of the model queue."""
        if len(self.model_backends) > LARGE:
            self.index = index
            self._among = (
                None if index.count == len(self.model_backends) else frozenset(self.model_backends)
            )

    def before(
        self,
        score: float,
        chosen: ModelBackend,
        now: float,
        own_execution_weight: float = OWN_EXECUTION_WEIGHT,
    ) -> int:
        """How many more requests compare better at the other model backends, one after the other.

        Args:
            score: of the request at the chosen model backend: when it begins, and a share of its
            execution. chosen: that model backend. now: the time. own_share: that share.
        """
        if self.index is not None:
            # Those that execute are half done on average.
            rate = self.rate(now) - chosen.rate
            stats = self.stats
            in_flight_by_model = stats.in_flight - 0.5 * min(
                stats.in_flight, len(self.model_backends)
            )
            return max(0, int(rate * (score - now) - in_flight_by_model))
        total = 0
        for model_backend in self.model_backends:
            if model_backend is chosen:
                continue
            begins = (
                now
                if model_backend.in_flight < model_backend.instances
                else model_backend.free_at(now)
            )
            if begins < score:
                total += model_backend.could_take(score - begins, own_execution_weight)
        return total

    def overdue_at(self, now: float) -> float:
        """When a full model backend may have to take one more because what is in flight is
        overdue."""
        if self.index is not None:
            return now + LOST_S  # the index finds such model backends about as often
        for model_backend in self.model_backends:
            if now >= model_backend.unanswered.check_at:
                model_backend.check_overdue(now)
        return min([model_backend.unanswered.check_at for model_backend in self.model_backends])

    def rate(self, now: float) -> float:
        """Requests per second that its model backends can do at most; 0 where nothing is known."""
        if now - self._rate_at > _RATE_FOR_S:
            self._rate_at = now
            self._rate = sum([model_backend.rate for model_backend in self.model_backends])
            self._instances = sum(
                [model_backend.instances for model_backend in self.model_backends]
            )
            takes = [
                model_backend.cost.mean_s
                for model_backend in self.model_backends
                if model_backend.cost.count >= MIN_SAMPLES
            ]
            self.is_uneven = bool(takes) and max(takes) > SLOW * min(takes)
        return self._rate


def _instead_of_newcomer(
    newcomer: ModelBackend, model_backends: Sequence[ModelBackend], rows: int, size: int, now: float
) -> ModelBackend | None:
    """An idle model backend that has room, and where a request ends earlier once executions count
    as longer by the inverse of the backend's share; None where there is none."""
    newcomer.estimate(rows, size, now)
    found: ModelBackend | None = None
    first_end = newcomer.begins_at + newcomer.takes_s / newcomer.backend.share
    for model_backend in model_backends:
        if model_backend is newcomer or not model_backend.is_idle:
            continue
        model_backend.estimate(rows, size, now)
        end = model_backend.begins_at + model_backend.takes_s / model_backend.backend.share
        tie_tolerance = (
            _TIE_TOLERANCE * (first_end - now) + model_backend.cost.unsure_s
            if found is not None
            else 0.0
        )
        if model_backend.is_open and (
            end < first_end - tie_tolerance
            or (
                found is not None
                and end <= first_end + tie_tolerance
                and model_backend.is_before(found)
            )
        ):
            found, first_end = model_backend, min(end, first_end)
    return found
