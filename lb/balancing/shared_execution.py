"""A model backend that executes all its requests side by side, in ways that no configuration tells.

Ensembles, engines that mix requests by themselves, and unknown backends of Triton: how many
requests keep them busy cannot be read from a configuration, so none is queued here for them. They
are compared by (work in flight + the request's own) / speed all the same.
"""

from __future__ import annotations

from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.capacity import NO_LIMIT
from lb.balancing.estimate import Estimate
from lb.balancing.model_backend import ModelBackend
from lb.balancing.model_stats import ModelStats
from lb.domain.schedule import Capacity, Ending, Ticket


class SharedModelBackend(ModelBackend):
    """One model on one backend that has room for any number of requests."""

    __slots__ = ("_at", "_away_s", "_away_s_at")

    def __init__(self, penalty: BackendPenalty, capacity: Capacity, stats: ModelStats) -> None:
        super().__init__(penalty, capacity, stats)
        self._away_s = 0.0
        """The sum of the seconds that requests have been there, up to `_at`."""
        self._at = 0.0
        self._away_s_at: dict[Ticket, float] = {}
        """That sum at the time when each request in flight began."""

    def apply(self, capacity: Capacity) -> None:
        """Take over another capacity."""
        super().apply(capacity)
        self.slots = NO_LIMIT

    def inherit(self, before: ModelBackend, now: float) -> None:
        """Take the place of a model backend of another kind."""
        super().inherit(before, now)
        self._at = now

    def end_inherited(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """End a request that began in the model backend before this one."""
        self._count(now)
        super().end_inherited(ticket, now, ending)

    @property
    def is_idle(self) -> bool:
        """Whether a request would be executed at once, as all are."""
        return True

    def can_take(self) -> bool:
        """Whether it has room, as far as that does not depend on the time."""
        return True

    def estimate(self, rows: int, size: int, now: float) -> Estimate:
        """Predict the end of a request if one were executed after the other."""
        end = super().estimate(rows, size, now).ends_at
        return Estimate(now, end, end - now, may_begin=not self.is_shut())

    def least_end(self, rows: int, size: int, now: float) -> tuple[float, float, float]:
        """Predict nothing: the end of one among many is not known well enough for refusals."""
        return 0.0, 0.0, 0.0

    def begin(self, ticket: Ticket, estimate: Estimate, now: float) -> None:
        """Count a request that begins here; see `ModelBackend`."""
        self._count(now)
        self._away_s_at[ticket] = self._away_s
        super().begin(ticket, estimate, now)
        ticket.expected_s = estimate.cost_s

    def begin_uncompared(self, ticket: Ticket, now: float) -> None:
        """Count a request that begins here for which no estimate was asked."""
        self.begin(ticket, self.estimate(ticket.rows, ticket.size, now), now)

    def end(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """Count a request that ends, and learn from it."""
        self._count(now)
        super().end(ticket, now, ending)
        del self._away_s_at[ticket]

    def count_others(
        self, count: int, work_s: float, since: float, ends: int, rows: int, now: float
    ) -> None:
        """Count what requests of other workers have changed here; see `ModelBackend`."""
        self._count(now)
        super().count_others(count, work_s, since, ends, rows, now)

    def executed_s(self, ticket: Ticket, now: float) -> float:
        """Find a request's part of the backend's time: how long it was there, divided by how many
        were there meanwhile.

        Where all share one engine that is the work of the request. Where they do not disturb each
        other it is less the more there are, and so is the cost of one more.
        """
        away_s = now - ticket.began_at
        all_away_s = self._away_s - self._away_s_at[ticket]
        return away_s * away_s / all_away_s if all_away_s > 0.0 else away_s

    def _count(self, now: float) -> None:
        """Add up the time that requests have been there until now."""
        self._away_s += self.load.in_flight * (now - self._at)
        self._at = now
