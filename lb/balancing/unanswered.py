"""The requests in flight at one model's backend, and which of them it will probably never answer.

A request is overdue once it has taken a multiple of its estimate, and at least a second. When
everything in flight is overdue, one more request may begin. Its answer proves that the overdue
requests are lost: from then on they count neither toward the limit nor as load. If it becomes
overdue as well, more begin: the more, the longer no backend has answered a request of the model.
Where one was lost not long ago, requests are overdue sooner.

What other workers have in flight is overdue, too, before any more begins. A worker only knows of it
when the last one began. It gives up its own requests alone, and tells others what was answered.
"""

from __future__ import annotations

from typing import Final

from lb.balancing.tuning import TUNING
from lb.domain.schedule import NO_DEADLINE, Ending, Ticket

LOST_S: Final = TUNING.overdue_s
_LOST_AGAIN_S: Final = TUNING.overdue_again_s
_LOST_AGAIN_FOR_S: Final = TUNING.overdue_again_for_s
LOST_TIMES: Final = TUNING.overdue_ratio
_MAX_BACKOFF: Final = TUNING.max_overdue_backoff


def overdue_after_s(expected_s: float, least_s: float = LOST_S) -> float:
    """Seconds after which a request is overdue.

    Args:
        expected_s: how long it was expected to take when it began.
        least_s: none is overdue earlier.
    """
    return max(least_s, LOST_TIMES * expected_s)


def ignore_lost(_ticket: Ticket, _now: float) -> None:
    """Do nothing with a lost request."""


class Unanswered:
    """The requests in flight of one model backend."""

    __slots__ = (
        "check_at", "least_s", "lost_at", "open_below", "others_at", "others_further", "review_at",
        "since", "tickets",
    )  # fmt: skip

    def __init__(self) -> None:
        self.tickets: dict[Ticket, None] = {}
        """All requests in flight of this worker, in the order in which they began."""
        self.others_at = 0.0
        """When a request of another worker began last, as far as this worker has heard."""
        self.others_further = 0
        """How many of other workers have begun since one was overdue."""
        self.check_at = 0.0
        """When `check` is due again."""
        self.review_at = 0.0
        """From when on each end of a request is looked at: it may prove others lost, or `check` is
        due."""
        self.least_s = LOST_S
        """No request is overdue earlier, in seconds."""
        self.lost_at = -NO_DEADLINE
        """When requests were lost last."""
        self.since = NO_DEADLINE
        """When a request was first seen to be overdue; infinite while none is."""
        self.open_below = 0
        """Further requests may begin while fewer than this many are in flight; 0: not at all."""

    def check(
        self,
        now: float,
        *,
        usual_s: float,
        ended_at: float,
        answered_at: float,
        others: int,
        others_expected_s: float,
        may_grow: bool,
    ) -> None:
        """Look for overdue requests. The result holds until `check_at`, unless a request begins or
        ends.

        Args:
            now: the time.
            usual_s: seconds that an execution takes in this model backend.
            ended_at: when a request ended last in this model backend.
            answered_at: when any backend has answered a request of the model last.
            others: requests in flight of other workers.
            others_expected_s: how long the last of these was probably expected to take.
            may_grow: more than one may begin at once, since nobody has given a limit.
        """
        since = self.since
        self.least_s = _LOST_AGAIN_S if now < self.lost_at + _LOST_AGAIN_FOR_S else LOST_S
        self.check_at = now + self.least_s
        self.open_below = overdue = further = 0
        after_s = last_at = 0.0
        for ticket in self.tickets:
            after_s = self._overdue_after_s(ticket, usual_s)
            last_at = ticket.began_at
            if last_at + after_s <= now:
                overdue += 1
                further += last_at >= since
            else:
                self.check_at = min(self.check_at, last_at + after_s)
        if others:
            others_after_s = overdue_after_s(others_expected_s, self.least_s)
            last_at = max(last_at, self.others_at)
            after_s = max(after_s, others_after_s)
            if self.others_at + others_after_s <= now:
                overdue += others
            else:
                self.check_at = min(self.check_at, self.others_at + others_after_s)
        if not overdue:
            self.since = NO_DEADLINE
            self.review_at = self.check_at
            return
        self.review_at = 0.0
        if since > now:
            self.since = now
            self.others_further = 0
        further += min(others, self.others_further)
        if overdue == len(self.tickets) + others:
            # Where requests still end the others are late, not lost.
            quiet_from = max(last_at, ended_at)
            grows = may_grow and answered_at + after_s <= now
            backoff = 1 if grows else min(1 << further, _MAX_BACKOFF)
            open_from = quiet_from + after_s * backoff
            if open_from <= now:
                self.open_below = overdue + (1 + further if grows else 1)
            else:
                self.check_at = min(self.check_at, open_from)

    def began_elsewhere(self, count: int, now: float) -> None:
        """Note that requests of other workers have begun."""
        self.others_at = now
        self.others_further += count
        if self.open_below:
            self.open_below = 0
            self.check_at = now

    def _overdue_after_s(self, ticket: Ticket, usual_s: float) -> float:
        expected_s = ticket.expected_s
        if ticket.began_at >= self.since:
            # The estimate contains how long the overdue requests might still take.
            expected_s = min(expected_s, LOST_S + usual_s)
        return overdue_after_s(expected_s, self.least_s)

    def answered_from(self, ended: Ticket, ending: Ending) -> float | None:
        """When a request began whose end proves that those are lost that were overdue then. None:
        it proves nothing."""
        is_proof = ending is Ending.GOOD and ended.began_at >= self.since
        return ended.began_at if is_proof else None

    def find_lost(self, answered_from: float, usual_s: float, now: float) -> list[Ticket]:
        """Find the requests that are lost since they were overdue when another one began that was
        answered. If there are any, requests are overdue sooner from now on."""
        lost = [
            ticket
            for ticket in self.tickets
            if ticket.began_at + self._overdue_after_s(ticket, usual_s) <= answered_from
        ]
        if lost:
            self.lost_at = now
        return lost
