"""The requests in flight at one model's backend, and which of them it will probably never answer.

A request is overdue once it has taken a multiple of its estimate, and at least a second. When
everything in flight is overdue, one more request may begin. Its answer proves that the overdue
requests are lost: from then on they count neither toward the limit nor as load.
"""

from __future__ import annotations

from typing import Final

from lb.balancing.tuning import TUNING
from lb.domain.schedule import NO_DEADLINE, Ticket

LOST_S: Final = TUNING.overdue_s
LOST_TIMES: Final = TUNING.overdue_ratio
_MAX_BACKOFF: Final = TUNING.max_overdue_backoff


def overdue_after_s(expected_s: float) -> float:
    """Seconds after which a request is overdue.

    Args:
        expected_s: how long it was expected to take when it began.
    """
    return max(LOST_S, LOST_TIMES * expected_s)


def ignore_lost(_ticket: Ticket, _now: float) -> None:
    """Do nothing with a lost request."""


class Unanswered:
    """The requests in flight of one model backend."""

    __slots__ = ("check_at", "open_at", "review_at", "since", "tickets")

    def __init__(self) -> None:
        self.tickets: dict[Ticket, None] = {}
        """All requests in flight, in the order in which they began."""
        self.check_at = 0.0
        """When `check` is due again."""
        self.review_at = 0.0
        """From when on each end of a request is looked at: it may prove others lost, or `check` is
        due."""
        self.since = NO_DEADLINE
        """When a request was first seen to be overdue; infinite while none is."""
        self.open_at = 0
        """One more request may begin while exactly this many are in flight; 0: not at all."""

    def check(self, now: float, usual_s: float, ended_at: float) -> None:
        """Look for overdue requests. The result holds until `check_at`, unless a request ends.

        Args:
            now: the time.
            usual_s: seconds that an execution takes in this model backend.
            ended_at: when a request ended last in this model backend.
        """
        since = self.since
        self.check_at = now + LOST_S
        self.open_at = overdue = further = 0
        after_s = 0.0
        last: Ticket | None = None
        for ticket in self.tickets:
            after_s = self._overdue_after_s(ticket, usual_s)
            if ticket.began_at + after_s <= now:
                overdue += 1
                further += ticket.began_at >= since
            else:
                self.check_at = min(self.check_at, ticket.began_at + after_s)
            last = ticket
        if not overdue or last is None:
            self.since = NO_DEADLINE
            self.review_at = self.check_at
            return
        self.review_at = 0.0
        if since > now:
            self.since = now
        if overdue == len(self.tickets):
            # Where requests still end the others are late, not lost.
            quiet_from = max(last.began_at, ended_at)
            open_from = quiet_from + after_s * min(1 << further, _MAX_BACKOFF)
            if open_from <= now:
                self.open_at = overdue
            else:
                self.check_at = min(self.check_at, open_from)

    def _overdue_after_s(self, ticket: Ticket, usual_s: float) -> float:
        expected_s = ticket.expected_s
        if ticket.began_at >= self.since:
            # The estimate contains how long the overdue requests might still take.
            expected_s = min(expected_s, LOST_S + usual_s)
        return overdue_after_s(expected_s)

    def overdue(self, began_at: float, usual_s: float) -> list[Ticket]:
        """The requests that were overdue at a time when another request began."""
        return [
            ticket
            for ticket in self.tickets
            if ticket.began_at + self._overdue_after_s(ticket, usual_s) <= began_at
        ]
