"""A model backend at a backend that works on all its requests side by side, in ways that nobody
tells us.

Ensembles, engines that mix requests by themselves, and backends of Triton that are not known: how
many requests keep them busy cannot be read from a configuration, so nothing waits here for them.
They are compared by (work under way + the request's own) / speed all the same.
"""

from __future__ import annotations

from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.model_backend import NO_LIMIT, ModelBackend
from lb.balancing.model_stats import ModelStats
from lb.domain.schedule import Capacity, Ending, Ticket


class SharedModelBackend(ModelBackend):
    """One model queue at one backend, which takes whatever comes."""

    __slots__ = ("_at", "_away_s", "_away_s_at")

    def __init__(self, penalty: BackendPenalty, plan: Capacity, stats: ModelStats) -> None:
        super().__init__(penalty, plan, stats)
        self._away_s = 0.0
        """Sum of the time that requests have been there, up to `_at`."""
        self._at = 0.0
        self._away_s_at: dict[Ticket, float] = {}
        """What it was when those in flight began."""

    def apply(self, plan: Capacity) -> None:
        """Take over another limit."""
        super().apply(plan)
        self.slots = NO_LIMIT

    def inherit(self, before: ModelBackend, now: float) -> None:
        """Take the place of a model backend of another kind."""
        super().inherit(before, now)
        self._at = now

    def end_inherited(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """An attempt is over that began in the model backend before this one."""
        self._count(now)
        super().end_inherited(ticket, now, ending)

    @property
    def is_idle(self) -> bool:
        """Whether a request is worked on at once, which all are."""
        return True

    def can_take(self) -> bool:
        """Whether it is open, as far as that does not change with the time."""
        return True

    def estimate(self, rows: int, size: int, now: float) -> float:
        """When a request would end here, if one were worked on after the other."""
        end = super().estimate(rows, size, now)
        self.begins_at = now
        self.takes_s = end - now
        self.is_open = not self.is_shut()
        return end

    def least_end(self, rows: int, size: int, now: float) -> tuple[float, float, float]:
        """The end of one among many is not known well enough to refuse anything."""
        return 0.0, 0.0, 0.0

    def begin(self, ticket: Ticket, now: float) -> None:
        """A ticket begins; `estimate` was asked about it."""
        self._count(now)
        self._away_s_at[ticket] = self._away_s
        super().begin(ticket, now)
        ticket.expected_s = self.takes_s

    def end(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """An attempt is over."""
        self._count(now)
        super().end(ticket, now, ending)
        del self._away_s_at[ticket]

    def executed_s(self, ticket: Ticket, now: float) -> float:
        """Its part of the backend's time: how long it was there by how many were there meanwhile.

        Where all share one engine that is the work that it made; where they do not disturb each
        other it is less the more there are, and so is what one more of them costs.
        """
        away_s = now - ticket.began_at
        all_away_s = self._away_s - self._away_s_at[ticket]
        return away_s * away_s / all_away_s if all_away_s > 0.0 else away_s

    def _count(self, now: float) -> None:
        self._away_s += self.in_flight * (now - self._at)
        self._at = now
