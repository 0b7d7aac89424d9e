"""Which model backend a request goes to: one pure comparison of estimates.

Every candidate has a score, the time at which the request's execution would begin plus a part of
its own execution time. The least score is best. A mode says which part counts. Candidates that are
as good as the best one take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lb.balancing.estimate import NEVER, Estimate
from lb.balancing.model_backend import LEAD_S, OWN_EXECUTION_WEIGHT, ModelBackend
from lb.balancing.model_stats import IDLE_TIE_TOLERANCE, TAIL, ModelStats
from lb.balancing.tuning import TUNING
from lb.domain.schedule import NO_DEADLINE, Ticket

TIE_TOLERANCE: Final = TUNING.tie_tolerance
_BUSY_EXECUTION_WEIGHT: Final = TUNING.busy_execution_weight
ANY_LEAD_S: Final = NO_DEADLINE
"""A request may be sent ahead to an execution as early as the model backend allows."""
LATE_LEAD_S: Final = TUNING.late_lead_s
YIELDING_LEAD_S: Final = TUNING.yielding_lead_s
NETWORK_S: Final = TUNING.network_s
NO_LEAD_S: Final = -NO_DEADLINE
"""Nothing is sent ahead, since more urgent requests use the reserved slots: the next slot that
becomes free is for these."""


Option = tuple[float, ModelBackend, Estimate]
"""The score of a request, a model backend that has room for it, and its estimate there."""


class Mode:
    """What counts of a request's own execution when model backends are compared."""

    __slots__ = ("busy_weight", "own_weight")

    def __init__(self, own_weight: float, busy_weight: float) -> None:
        self.own_weight = own_weight
        """The part that counts."""
        self.busy_weight = busy_weight
        """The part that counts where it would end no later than most others do anyway."""


NORMAL: Final = Mode(OWN_EXECUTION_WEIGHT, _BUSY_EXECUTION_WEIGHT)
"""Shortest time for all requests together."""
EARLIEST_END: Final = Mode(1.0, 1.0)
"""Earliest end of this request: its deadline is near."""
FAST_FIRST: Final = Mode(OWN_EXECUTION_WEIGHT, OWN_EXECUTION_WEIGHT)
"""Normal mode, without the use of slow model backends for the sake of others."""


class Selection:
    """Where a request belongs, and where it may begin now. Never changed once made."""

    __slots__ = ("best", "best_estimate", "best_score", "chosen", "estimate", "score")

    def __init__(
        self,
        best: ModelBackend | None,
        best_estimate: Estimate,
        best_score: float,
        chosen: ModelBackend | None,
        estimate: Estimate,
        score: float,
    ) -> None:
        self.best = best
        """The model backend with the least score, whether it has room or not. None: there are no
        candidates."""
        self.best_estimate = best_estimate
        """The estimate of the request there."""
        self.best_score = best_score
        """The score of the best one."""
        self.chosen = chosen
        """The best of those that have room; the one whose turn it is of several that are as good.
        None: none has room."""
        self.estimate = estimate
        """The estimate of the request there."""
        self.score = score
        """The least score of those that have room. The chosen one is as good."""

    def is_best(self, now: float) -> bool:
        """Whether the chosen model backend is the best one, or as good."""
        best = self.best
        unsure_s = 0.0 if best is None else best.load.cost.unsure_s
        return self.score - self.best_score <= TIE_TOLERANCE * (self.score - now) + unsure_s


def select(
    candidates: Sequence[ModelBackend],
    ticket: Ticket,
    now: float,
    mode: Mode,
    stats: ModelStats,
    max_lead_s: float = ANY_LEAD_S,
) -> Selection:
    """Compare model backends for a request.

    A backend in slow start (`Backend.share`) gets less while others are idle. Where a request would
    have to wait for these it goes there.

    Args:
        candidates: model backends that the request may use.
        ticket: the request.
        now: the time.
        mode: what counts of its own execution.
        stats: what is known of the model.
        max_lead_s: how long before its execution it may be sent ahead at most.
    """
    rows, size = ticket.rows, ticket.size
    rest, rest_in_time = 1.0 - mode.own_weight, 1.0 - mode.busy_weight
    in_time = now + TAIL * stats.tail_s
    latest = now + max_lead_s - LEAD_S
    is_exact_open = max_lead_s >= LATE_LEAD_S
    best: ModelBackend | None = None
    first: ModelBackend | None = None
    best_estimate = first_estimate = NEVER
    best_score = first_score = NO_DEADLINE
    others: list[Option] = []
    for model_backend in candidates:
        estimate = model_backend.estimate(rows, size, now)
        end = estimate.ends_at
        score = end - (rest if end > in_time else rest_in_time) * estimate.cost_s
        if score < best_score:
            best, best_estimate, best_score = model_backend, estimate, score
        if estimate.may_begin and (
            estimate.begins_at <= latest + model_backend.lead_s
            or (is_exact_open and model_backend.is_exact)
        ):
            if first is None:
                first, first_estimate, first_score = model_backend, estimate, score
            elif score < first_score:
                others.append((first_score, first, first_estimate))
                first, first_estimate, first_score = model_backend, estimate, score
            else:
                others.append((score, model_backend, estimate))
    if first is None:
        return Selection(best, best_estimate, best_score, None, NEVER, NO_DEADLINE)
    chosen = first
    estimate = first_estimate
    if others:
        chosen, estimate = _by_turn(first, first_estimate, first_score, others, now, stats)
    score = first_score
    if chosen.backend.share != 1.0:
        others.append((first_score, first, first_estimate))
        other = _instead_of_newcomer(chosen, estimate, others, now)
        if other is not None:
            is_best = best is chosen
            score, chosen, estimate = other
            if is_best:
                best, best_estimate, best_score = chosen, estimate, score
    return Selection(best, best_estimate, best_score, chosen, estimate, score)


def _by_turn(
    first: ModelBackend,
    first_estimate: Estimate,
    first_score: float,
    others: list[Option],
    now: float,
    stats: ModelStats,
) -> tuple[ModelBackend, Estimate]:
    """Find whose turn it is of the model backends that are as good as the first one.

    Idle ones are as good if the times until the request ends differ by no more than the idle
    tolerance.
    """
    is_idle = first.load.in_flight < first.instances
    idle_limit = now + (first_estimate.ends_at - now) / (1.0 - IDLE_TIE_TOLERANCE)
    chosen, chosen_estimate = first, first_estimate
    for score, other, estimate in others:
        tolerance_s = TIE_TOLERANCE * (score - now) + other.load.cost.unsure_s
        is_as_good = score - first_score <= tolerance_s or (
            is_idle and other.load.in_flight < other.instances and estimate.ends_at <= idle_limit
        )
        if is_as_good and other.is_before(chosen):
            chosen, chosen_estimate = other, estimate
    return chosen, chosen_estimate


def _instead_of_newcomer(
    newcomer: ModelBackend,
    estimate: Estimate,
    others: list[Option],
    now: float,
) -> Option | None:
    """Find an idle model backend where the request ends earlier than at a newcomer, once executions
    count as longer by the inverse of the backend's share. None: there is none."""
    found: Option | None = None
    first_end = estimate.begins_at + estimate.cost_s / newcomer.backend.share
    for option in others:
        _, other, other_estimate = option
        if other is newcomer or not other.is_idle:
            continue
        end = other_estimate.begins_at + other_estimate.cost_s / other.backend.share
        if found is None:
            is_better = end < first_end
        else:
            tolerance_s = TIE_TOLERANCE * (first_end - now) + other.load.cost.unsure_s
            is_better = end < first_end - tolerance_s or (
                end <= first_end + tolerance_s and other.is_before(found[1])
            )
        if is_better:
            found, first_end = option, min(end, first_end)
    return found
