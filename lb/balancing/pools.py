"""A pool: the lanes that some requests of a line may use, and those of them that wait.

Nearly always a line has one; more where requests may use only some backends: those that speak one
protocol, have a region of shared memory, or have not failed the request before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lb.balancing.cost import KNOWN
from lb.balancing.index import LARGE, LaneIndex
from lb.balancing.lanes import BUSY_SHARE, LATE_LEAD_S, LATENESSES, LEAD_S, OWN_SHARE, Lane
from lb.balancing.tally import TAIL, Tally
from lb.balancing.unanswered import LOST_S
from lb.balancing.waiting import WaitingQueue
from lb.domain.schedule import NO_DEADLINE, QueueRules, Ticket

_ALIKE: Final = 0.05
"""Ends that differ by less than that part of the time until then, and by less than is known, are
the same: then it is the lane with less to do, or whichever was picked least recently."""
_PASSED: Final = 0.65
"""For what part of `Tally.tail_s` a request may be passed, an execution less."""
SLOW: Final = 1.25
"""A lane that takes so many times as long as the fastest is a slow one."""
_FEW: Final = 8
"""Executions that are no reason to leave an idle backend alone."""
_RATE_FOR_S: Final = 0.05
NETWORK_S: Final = 0.002
"""What the network may take between us and a client, whose clock began before ours."""


class Pool:
    """Lanes, and a queue for them."""

    __slots__ = (
        "_among", "_best_score", "_instances", "_rate", "_rate_at", "ahead_s", "best", "best_end",
        "freed", "index", "is_capped", "is_closed", "is_uneven", "lanes", "open_end", "open_score",
        "queue", "tally", "wake_at",
    )  # fmt: skip

    def __init__(self, lanes: tuple[Lane, ...], rules: QueueRules, tally: Tally) -> None:
        self.lanes = lanes
        self.tally = tally
        self.queue = WaitingQueue(rules)
        self.best: Lane | None = None
        """Set by `choose`: where a request belongs, be there room or not."""
        self.best_end = NO_DEADLINE
        """Set by `choose`: when it would end there."""
        self.open_score = NO_DEADLINE
        """Set by `choose`: how the lane that was given compares; less is better."""
        self.open_end = NO_DEADLINE
        """Set by `choose`: when the request would end in the lane that was given."""
        self._best_score = NO_DEADLINE
        self.is_capped = any(lane.backend.max_in_flight for lane in lanes)
        """Some backend has a limit of its own, which other requests count against, too."""
        self.is_closed = False
        """No lane had room when it was looked at last for one that waits."""
        self.freed = 0
        """Requests of the line that have ended since."""
        self.index: LaneIndex | None = None
        """Of all lanes of the line, where these are many."""
        self._among: frozenset[Lane] | None = None
        self.wake_at = NO_DEADLINE
        """When it is to be looked at although nothing has changed."""
        self.ahead_s = NO_DEADLINE
        """How long before its execution a request that has just come goes to a lane at most."""
        self.is_uneven = False
        """Some lanes are slower than others."""
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
        own_share: float = OWN_SHARE,
        busy_share: float = BUSY_SHARE,
        among: Sequence[Lane] | None = None,
    ) -> Lane | None:
        """The best lane of those that have room for a request; None: none has.

        A backend that has just come (`Backend.share`) gets less while others are idle. Where a
        request would have to wait for these, it goes there.

        Args:
            rows: of the request.
            size: of the request, in bytes.
            now: the time.
            ahead_s: how long before its execution it may go to a lane at most.
            is_kept: slots that are free are kept from it; it may only go ahead to a lane that is
                busy with such as it is.
            own_share: what counts of its own execution, beside its wait; with all of it the best
                lane is where it ends first.
            busy_share: the same where it would end no later than others do.
            among: lanes that it may go to; None for all.
        """
        lanes: Sequence[Lane] = self.lanes
        if among is not None:
            lanes = among
        elif self.index is not None:
            found = self.index.candidates(now, self._among)
            if found:
                lanes = found
        if is_kept:
            lanes = [lane for lane in lanes if lane.low >= lane.slots]
        rest, rest_in_time = 1.0 - own_share, 1.0 - busy_share
        in_time = now + TAIL * self.tally.tail_s
        latest = now + ahead_s - LEAD_S
        idle_alike, was_idle = self.tally.idle_alike, False
        best: Lane | None = None
        chosen: Lane | None = None
        best_score = best_end = chosen_score = NO_DEADLINE
        for lane in lanes:
            end = lane.look(rows, size, now)
            score = end - (rest if end > in_time else rest_in_time) * lane.takes_s
            if score < best_score:
                best, best_score, best_end = lane, score, end
            if lane.is_open and (
                lane.begins_at <= latest + lane.lead_s or (lane.is_exact and ahead_s >= LATE_LEAD_S)
            ):
                is_idle = lane.in_flight < lane.instances
                alike = _ALIKE * (score - now) + lane.cost.unsure_s
                if is_idle and was_idle:
                    alike = max(alike, idle_alike * (score - now))
                if chosen is None or score < chosen_score - alike:
                    chosen, chosen_score, self.open_end = lane, score, end
                    was_idle = is_idle
                elif score <= chosen_score + alike:
                    chosen_score = min(chosen_score, score)
                    if lane.is_before(chosen):
                        chosen, was_idle, self.open_end = lane, is_idle, end
        if chosen is not None and chosen.backend.share != 1.0:
            other = _instead_of_newcomer(chosen, lanes, rows, size, now)
            if other is not None:
                end = self.open_end = other.look(rows, size, now)
                score = end - (rest if end > in_time else rest_in_time) * other.takes_s
                chosen_score = score
                if best is chosen:
                    best, best_score, best_end = other, score, end
                chosen = other
        if best is not None:
            self.best_end = best_end
        self.best, self._best_score, self.open_score = best, best_score, chosen_score
        return chosen

    def hurry(self, ticket: Ticket, now: float, ahead_s: float, is_kept: bool) -> Lane | None:
        """As `choose`, for a ticket whose deadline is near: where it ends first."""
        lane = self.choose(ticket.rows, ticket.size, now, ahead_s, is_kept, 1.0, 1.0)
        return self.spare(ticket, lane, now, ahead_s, is_kept, 1.0, 1.0)

    def spare(
        self,
        ticket: Ticket,
        lane: Lane | None,
        now: float,
        ahead_s: float = NO_DEADLINE,
        is_kept: bool = False,
        own_share: float = OWN_SHARE,
        busy_share: float = BUSY_SHARE,
    ) -> Lane | None:
        """Have a ticket with a deadline not find out whether a slow lane has become fast, if it
        would be late where that is still slow, and in time elsewhere.

        Args:
            ticket: `choose` was asked about it.
            lane: what `choose` gave.
            now: the time.
            ahead_s: as for `choose`.
            is_kept: as for `choose`.
            own_share: as for `choose`.
            busy_share: as for `choose`.

        Returns:
            What `choose` gives without such lanes, or the same lane.
        """
        best = self.best
        if not (
            (best is not None and best.is_doubted(now) and self._risks(ticket, best, now))
            or (
                lane is not None
                and lane is not best
                and lane.is_doubted(now)
                and self._risks(ticket, lane, now)
            )
        ):
            return lane
        rows, size = ticket.rows, ticket.size
        sure = [each for each in self.lanes if not self._risks(ticket, each, now)]
        if not any(each.look(rows, size, now) <= ticket.deadline for each in sure):
            return lane
        return self.choose(rows, size, now, ahead_s, is_kept, own_share, busy_share, sure)

    @staticmethod
    def _risks(ticket: Ticket, lane: Lane, now: float) -> bool:
        """Whether a request may be late in a lane that is hoped to be faster than was learnt."""
        if not lane.is_doubted(now):
            return False
        end = lane.learnt_end(lane.look(ticket.rows, ticket.size, now), now)
        return end + lane.margin_s + NETWORK_S > ticket.deadline

    def patience_s(self) -> float:
        """How long those that wait may be passed by those that came later: so long that they end
        about when the last ones would if all went in order. Not at all where requests or lanes are
        alike: then everybody's wait is shortest in order."""
        usual = self.tally.usual
        if usual.row_s or usual.byte_s or not self.is_uneven:
            return 0.0
        return _PASSED * self.tally.tail_s - usual.mean_s

    def came(self, now: float) -> None:
        """A request came: have it counted how long it would take if all went in order."""
        rate = self.rate(now)
        if not rate:
            return
        tally = self.tally
        ahead = self.queue.count + tally.in_flight + 1 - self._instances
        tally.came(max(0, ahead) / rate + tally.usual.mean_s, now)
        self.ahead_s = LATE_LEAD_S if self.patience_s() > 0 else NO_DEADLINE

    def is_best(self, now: float) -> bool:
        """Whether the lane that `choose` gave is the best one, or as good."""
        best = self.best
        unsure_s = 0.0 if best is None else best.cost.unsure_s
        score = self.open_score
        return score - self._best_score <= _ALIKE * (score - now) + unsure_s

    def seems_late(self, ticket: Ticket) -> bool:
        """Whether a request that `choose` was asked about is not expected to be surely in time."""
        best = self.best
        if best is None:
            return False
        return self.best_end + LATENESSES * best.lateness_s + NETWORK_S > ticket.deadline

    def underexplored(self, lane: Lane) -> Lane | None:
        """An idle lane of which next to nothing is known, if it has the turn before another one."""
        if self.index is not None:
            return None
        found: Lane | None = None
        for other in self.lanes:
            if (
                other.cost.count < _FEW
                and not other.in_flight
                and other.last_pick < (found or lane).last_pick
                and not other.is_shut()
            ):
                found = other
        return found

    def idle(self, ticket: Ticket, now: float, is_kept: bool) -> Lane | None:
        """Of the lanes with an idle instance that a request may use, the one where it ends first
        by what was learnt.

        Args:
            ticket: of the request.
            now: the time.
            is_kept: slots that are free are kept from it.
        """
        found: Lane | None = None
        found_end = NO_DEADLINE
        for lane in self.lanes:
            if not lane.is_idle or (is_kept and lane.low < lane.slots):
                continue
            end = lane.learnt_end(lane.look(ticket.rows, ticket.size, now), now)
            if lane.is_open and (found is None or end < found_end):
                found, found_end = lane, end
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
        for lane in self.lanes:
            lane_begin, lane_own_s, usual_s = lane.least_end(ticket.rows, ticket.size, now)
            if not usual_s:
                return False
            instances += lane.instances
            speed += lane.instances / usual_s
            begin = min(begin, lane_begin)
            own_s = min(own_s, lane_own_s)
            end = min(end, lane_begin + lane_own_s)
        if ahead >= instances:
            end = max(end, begin + (ahead - instances + 1) / speed + own_s)
        return end > ticket.deadline

    def renew(self, lanes: tuple[Lane, ...]) -> None:
        """Have others in the place of its lanes, at the same backends."""
        self.lanes = lanes
        self.index = None
        self.best = None
        self.is_closed = False
        self._rate_at = -NO_DEADLINE

    def use(self, index: LaneIndex) -> None:
        """Find lanes by an index of all lanes of the line."""
        if len(self.lanes) > LARGE:
            self.index = index
            self._among = None if index.count == len(self.lanes) else frozenset(self.lanes)

    def before(self, score: float, chosen: Lane, now: float, own_share: float = OWN_SHARE) -> int:
        """How many more requests compare better at the other lanes, one after the other.

        Args:
            score: of the request at the chosen lane: when it begins, and a share of its execution.
            chosen: that lane.
            now: the time.
            own_share: that share.
        """
        if self.index is not None:
            # Those that execute are half done on average.
            rate = self.rate(now) - chosen.rate
            tally = self.tally
            under_way = tally.in_flight - 0.5 * min(tally.in_flight, len(self.lanes))
            return max(0, int(rate * (score - now) - under_way))
        total = 0
        for lane in self.lanes:
            if lane is chosen:
                continue
            begins = now if lane.in_flight < lane.instances else lane.free_at(now)
            if begins < score:
                total += lane.could_take(score - begins, own_share)
        return total

    def overdue_at(self, now: float) -> float:
        """When a full lane may have to take one more because what is in flight is overdue."""
        if self.index is not None:
            return now + LOST_S  # the index finds such lanes about as often
        for lane in self.lanes:
            if now >= lane.unanswered.check_at:
                lane.check_overdue(now)
        return min([lane.unanswered.check_at for lane in self.lanes])

    def rate(self, now: float) -> float:
        """Requests per second that its lanes can do at most; 0 where nothing is known."""
        if now - self._rate_at > _RATE_FOR_S:
            self._rate_at = now
            self._rate = sum([lane.rate for lane in self.lanes])
            self._instances = sum([lane.instances for lane in self.lanes])
            takes = [lane.cost.mean_s for lane in self.lanes if lane.cost.count >= KNOWN]
            self.is_uneven = bool(takes) and max(takes) > SLOW * min(takes)
        return self._rate


def _instead_of_newcomer(
    newcomer: Lane, lanes: Sequence[Lane], rows: int, size: int, now: float
) -> Lane | None:
    """An idle lane that has room, and where a request ends earlier once executions count as longer
    by the inverse of the backend's share; None where there is none."""
    newcomer.look(rows, size, now)
    found: Lane | None = None
    first_end = newcomer.begins_at + newcomer.takes_s / newcomer.backend.share
    for lane in lanes:
        if lane is newcomer or not lane.is_idle:
            continue
        lane.look(rows, size, now)
        end = lane.begins_at + lane.takes_s / lane.backend.share
        alike = _ALIKE * (first_end - now) + lane.cost.unsure_s if found is not None else 0.0
        if lane.is_open and (
            end < first_end - alike
            or (found is not None and end <= first_end + alike and lane.is_before(found))
        ):
            found, first_end = lane, min(end, first_end)
    return found
