"""A line: one version of one model as requests name it, its lanes and its pools."""

from __future__ import annotations

from typing import Final

from lb.balancing.batches import BatchLane
from lb.balancing.index import LARGE, LaneIndex
from lb.balancing.lanes import LEAD_S, NOT_AHEAD_S, OWN_SHARE, YIELDING_LEAD_S, Lane
from lb.balancing.pools import NETWORK_S, SLOW, Pool
from lb.balancing.shared import SharedLane
from lb.balancing.site import Site
from lb.balancing.tally import Tally
from lb.balancing.waiting import level_of
from lb.domain.backend import Backend
from lb.domain.schedule import NO_DEADLINE, Ending, LaneLimit, Plan, Ticket

_MAX_ALIASES: Final = 64
_MAX_POOLS: Final = 256
"""Beyond so many those are dropped that nobody waits in: requests that go again make one for every
set of backends that have failed them."""
_MIN_RETRY_S: Final = 0.01
_POLL_S: Final = 0.01
_ROUNDING_S: Final = 1e-6
_RECHECK_S: Final = 0.001
_RECHECK_SHARE: Final = 0.25
_ALIKE: Final = 1.2
_TRIES: Final = 8
"""So many that wait are looked at one after the other for one that is in time; they differ in
size."""
_IN_VAIN: Final = 2.0
"""Nobody waits for a faster backend for so many times what one takes that is idle, nor for a better
one."""


class Line:
    """What the scheduler keeps of one line."""

    __slots__ = (
        "_aliases", "_busy", "_high", "_low", "_slots", "_used", "index", "is_plain", "is_pressed",
        "lanes", "model", "plan", "pools", "reserves", "sites", "tally", "version", "waiting",
    )  # fmt: skip

    def __init__(
        self, model: bytes, version: bytes, plan: Plan, sites: dict[Backend, Site]
    ) -> None:
        self.model = model
        self.version = version
        self.plan = plan
        self.reserves = plan.rules.reserved > 0.0
        """Some of what may execute at once is for the highest priority alone."""
        self.sites = sites
        self.tally = Tally()
        self.lanes: dict[Backend, Lane] = {}
        self.is_pressed = False
        """Set by `is_kept`: the highest priority uses what is kept for it."""
        self.is_plain = True
        """All its lanes run one request after the other."""
        self.pools: dict[tuple[Backend, ...], Pool] = {}
        self.index: LaneIndex | None = None
        """Of all lanes, where they are many."""
        self._used: set[Lane] = set()
        """Lanes of pools: others have only what began before the last snapshot."""
        self._high = 0
        """Tickets under way in these that are of the highest priority; the numbers of this kind are
        counted where slots are reserved."""
        self._low = 0
        """The other ones."""
        self._busy = 0
        """Slots of these that are in use."""
        self.waiting: dict[Pool, None] = {}
        """Pools with tickets that wait."""
        self._aliases: dict[int, tuple[tuple[Backend, ...], Pool]] = {}
        """Pools by the identity of tuples that were met, which are held for that."""
        self._slots = 0
        """All slots; 0 where these, and those in use, are to be counted anew."""

    def apply(self, plan: Plan, now: float) -> None:
        """Take over another plan."""
        self.plan = plan
        self.reserves = plan.rules.reserved > 0.0
        is_other_kind = False
        for backend, lane in self.lanes.items():
            limit = plan.limit(backend)
            if type(lane) is _kind(limit):
                lane.apply(limit)
            else:
                self.lanes[backend] = self._make(lane.site, now, lane)
                is_other_kind = True
        self._slots = 0
        if is_other_kind:
            self._renew_pools(now)

    def _renew_pools(self, now: float) -> None:
        """Have the pools know of lanes that took the place of others."""
        self.index = None
        self._used.clear()
        for pool in self.pools.values():
            pool.renew(tuple([self.lanes[lane.backend] for lane in pool.lanes]))
            self._used.update(pool.lanes)
            self._index(pool, now)
        self._look_at_kinds()

    def restart(self) -> None:
        """Forget the pools, and the lanes that are not in use and nothing is known of."""
        self.pools.clear()
        self.index = None
        self.waiting.clear()
        self._aliases.clear()
        self._used.clear()
        for backend, lane in tuple(self.lanes.items()):
            if not lane.in_flight and not lane.cost.count:
                del self.lanes[backend]
        self.tally.lost(self.lanes.values())
        self._slots = 0
        self._look_at_kinds()

    def _look_at_kinds(self) -> None:
        self.is_plain = all(type(lane) is Lane for lane in self.lanes.values())
        if not self.is_plain:
            self.tally.tail_s = 0.0

    def forget(self, backend: Backend) -> None:
        """Nothing learnt of a backend holds."""
        lane = self.lanes.get(backend)
        if lane is not None:
            lane.forget()
            self.tally.lost(self.lanes.values())
            if self.index is not None:
                self.index.outdated()

    @property
    def waits(self) -> int:
        """Tickets that wait."""
        return sum([pool.queue.count for pool in self.waiting])

    def pool(self, ticket: Ticket, now: float) -> Pool:
        """The pool of a ticket."""
        eligible = ticket.eligible
        if ticket.tried:
            tried = ticket.tried
            eligible = tuple([each for each in eligible if each not in tried]) or eligible
        known = self._aliases.get(id(eligible))
        if known is not None and known[0] is eligible:
            return known[1]
        pool = self.pools.get(eligible)
        if pool is None:
            pool = self._new_pool(eligible, now)
        if not ticket.tried:
            if len(self._aliases) >= _MAX_ALIASES:
                self._aliases.clear()
            self._aliases[id(eligible)] = (eligible, pool)
        return pool

    def _new_pool(self, eligible: tuple[Backend, ...], now: float) -> Pool:
        if len(self.pools) >= _MAX_POOLS:
            self.pools = {each: pool for each, pool in self.pools.items() if pool.queue.count}
            self._aliases.clear()
        lanes = tuple([self._lane(backend, now) for backend in eligible])
        pool = self.pools[eligible] = Pool(lanes, self.plan.rules, self.tally)
        used = len(self._used)
        self._used.update(lanes)
        if len(self._used) != used:
            self._slots = 0
        self._index(pool, now)
        return pool

    def _index(self, pool: Pool, now: float) -> None:
        """Have a new pool find lanes by an index, if there are many; and all pools by another one,
        if there are more lanes than it knows of."""
        if len(self.lanes) <= LARGE:
            return
        if self.index is not None and self.index.count == len(self.lanes):
            pool.use(self.index)
            return
        self.index = LaneIndex(self.lanes.values(), now)
        for each in self.pools.values():
            each.use(self.index)

    def _lane(self, backend: Backend, now: float) -> Lane:
        lane = self.lanes.get(backend)
        if lane is None:
            site = self.sites.get(backend)
            if site is None:
                site = self.sites[backend] = Site(backend)
            lane = self.lanes[backend] = self._make(site, now)
            self._look_at_kinds()
        return lane

    def _make(self, site: Site, now: float, before: Lane | None = None) -> Lane:
        """A new lane, which may take the place of one of another kind."""
        limit = self.plan.limit(site.backend)
        lane = _kind(limit)(site, limit, self.tally)
        if before is not None:
            lane.inherit(before, now)
        measured = site.measured_of(self.model, self.version)
        if measured is not None:
            lane.assume(measured, now)
        return lane

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
        lanes = self._used
        self._slots = sum([lane.slots for lane in lanes])
        self._busy = sum([min(lane.in_flight, lane.slots) for lane in lanes])
        self._high = sum([lane.high for lane in lanes])
        self._low = sum([lane.low for lane in lanes])

    def began(self, ticket: Ticket, lane: Lane, now: float) -> None:
        """A ticket has begun in a lane."""
        ticket.lane = lane
        self.tally.in_flight += 1
        if self.index is not None:
            self.index.changed(lane, now)
        if ticket.priority <= 0:
            lane.high += 1
        if self.reserves and lane in self._used:
            self._note(ticket, 1)
            if lane.in_flight <= lane.slots:
                self._busy += 1

    def ended(self, ticket: Ticket, lane: Lane, now: float) -> None:
        """A ticket has ended in a lane."""
        self.tally.in_flight -= 1
        if self.index is not None:
            self.index.changed(lane, now)
        if ticket.priority <= 0:
            lane.high -= 1
        if self.reserves and lane in self._used:
            self._note(ticket, -1)
            if lane.in_flight < lane.slots:
                self._busy -= 1

    def find_lost(self, ended: Ticket, lane: Lane, now: float, ending: Ending) -> list[Ticket]:
        """A request ended in a lane that has overdue ones. If its answer proves that these are
        lost they are not counted any more; see `lb.balancing.unanswered`."""
        unanswered = lane.unanswered
        lost: list[Ticket] = []
        if ending is Ending.GOOD and ended.began_at >= unanswered.since:
            lost = unanswered.overdue(ended.began_at, lane.cost.mean_s)
        for ticket in lost:
            if ticket.lane is lane:
                lane.end(ticket, now, Ending.NEITHER)
            else:
                lane.end_inherited(ticket, now, Ending.NEITHER)
            self.ended(ticket, lane, now)
            ticket.lane = None
        lane.check_overdue(now)
        return lost

    def _note(self, ticket: Ticket, change: int) -> None:
        if ticket.priority <= 0:
            self._high += change
        else:
            self._low += change

    def victim(self, ticket: Ticket, own: Pool) -> Ticket | None:
        """Who makes room for a ticket that is to wait in a pool of its own: somebody of the lowest
        priority, from another pool only if that is lower than its own. None: it is too many."""
        found: Ticket | None = None
        for pool in self.waiting:
            victim = pool.queue.victim(ticket)
            if victim is None or (
                pool is not own and level_of(victim.priority) <= level_of(ticket.priority)
            ):
                continue
            if found is None or level_of(victim.priority) > level_of(found.priority):
                found = victim
        return found

    def room_in(self, pool: Pool, now: float) -> float:
        """Seconds until those that wait now will have begun."""
        rate = pool.rate(now)
        return max((self.waits + 1) / rate if rate else 0.0, _MIN_RETRY_S)

    def is_late(self, ticket: Ticket, pool: Pool, now: float) -> bool:
        """Whether a ticket that joins others that wait would miss its deadline even if every
        execution were quick."""
        usual = self.tally.usual
        rate = pool.rate(now)
        if not rate or not usual.count:
            return False
        count, work_s = pool.queue.ahead(ticket)
        # What was estimated when executions took longer does not count as more of them.
        ahead = min(work_s / usual.mean_s, float(count))
        takes_s = (ahead + self.tally.in_flight) / rate + ticket.work_s
        return now + takes_s > ticket.deadline and pool.is_lost(ticket, now, ahead)

    def due(self, pool: Pool, now: float) -> tuple[Ticket, Lane | None] | None:
        """The next step of a pool in which some ticket waits.

        Sets `pool.wake_at`.

        Returns:
            The ticket that is to begin now, and where; or one that cannot make it any more, and
            None; or None, where all are to wait.
        """
        queue = pool.queue
        turn = queue.level(now).turn()
        head = turn.at(0)
        ahead_s = NO_DEADLINE
        if pool.ahead_s != NO_DEADLINE and turn.is_patient(now - pool.patience_s()):
            head = turn.last()
            ahead_s = pool.ahead_s
        pool.wake_at = NO_DEADLINE
        is_kept = self.is_kept(head.priority)
        yields = self.yields(head.priority)
        if yields:
            ahead_s = NOT_AHEAD_S if is_kept and self.is_pressed else YIELDING_LEAD_S
        lane = pool.choose(head.rows, head.size, now, ahead_s, is_kept)
        if is_kept and lane is None and (urgent := queue.most_urgent()) is not None:
            # It is another one's turn, but only these may use what is free.
            head = urgent
            is_kept = False
            ahead_s = NO_DEADLINE
            lane = pool.choose(head.rows, head.size, now)
        pool.is_closed = lane is None and ahead_s == NO_DEADLINE
        if head.deadline != NO_DEADLINE:
            lane = pool.spare(head, lane, now, ahead_s, is_kept)
            if pool.seems_late(head):
                return self._hurried(head, pool, now, ahead_s, is_kept)
        if lane is None:
            self._wake(pool, now, ahead_s)
            return None
        if pool.is_best(now):
            if lane.cost.mean_s < SLOW * self.tally.best_s or head.deadline != NO_DEADLINE:
                return head, lane
            ticket = self._for_slow(head, pool, lane, now)
            if ticket is not None:
                return ticket, lane
            lane = pool.choose(head.rows, head.size, now, ahead_s, is_kept, busy_share=OWN_SHARE)
            if lane is None:
                self._wake(pool, now, ahead_s)
                return None
            if pool.is_best(now):
                return head, lane
        return self._beside_best(head, pool, lane, now)

    def _hurried(
        self, head: Ticket, pool: Pool, now: float, ahead_s: float, is_kept: bool
    ) -> tuple[Ticket, Lane | None] | None:
        """The next step where a ticket seems to be late."""
        lane = pool.hurry(head, now, ahead_s, is_kept)
        found: tuple[Ticket, Lane | None] | None = None
        if pool.seems_late(head):
            found = self._instead(head, pool, lane, now)
        elif lane is not None:
            is_best = pool.is_best(now)
            found = (head, lane) if is_best else self._beside_best(head, pool, lane, now)
        if found is None and lane is None:
            self._wake(pool, now, ahead_s)
        return found

    def _instead(
        self, head: Ticket, pool: Pool, lane: Lane | None, now: float
    ) -> tuple[Ticket, Lane | None] | None:
        """What to do in place of beginning a ticket that seems to be late: begin one that is in
        time in the lane that has room, or try it where an instance is idle, or refuse it."""
        idle: Lane | None = None
        is_lost = pool.is_lost(head, now)
        if is_lost or now >= head.deadline - self.tally.best_s:
            idle = pool.idle(head, now, self.is_kept(head.priority))
            if is_lost and idle is None:
                return head, None
        elif lane is not None and lane.is_idle and pool.is_best(now):
            idle = lane
        if lane is not None:
            other = self._in_time(head, pool, lane, now, is_any=is_lost and not self.reserves)
            if other is not None:
                return other, lane
        return None if idle is None else (head, idle)

    @staticmethod
    def _in_time(
        head: Ticket, pool: Pool, lane: Lane, now: float, *, is_any: bool
    ) -> Ticket | None:
        """The first of those that wait that would surely be in time in a lane, of any priority or
        of that of a ticket which would not."""
        queue = pool.queue
        begin = pool.open_end - lane.predict(head.rows, head.size) + lane.margin_s + NETWORK_S
        key = begin
        for tries in range(_TRIES):
            ticket = queue.after(key, now)
            if ticket is None or not (is_any or ticket.priority == head.priority):
                return None
            end = begin + lane.predict(ticket.rows, ticket.size)
            if end <= ticket.deadline:
                return ticket
            key = ticket.key if tries < _TRIES - 2 else end
        return None

    def _beside_best(
        self, head: Ticket, pool: Pool, lane: Lane, now: float
    ) -> tuple[Ticket, Lane] | None:
        """Who of those that wait begins in a lane that has room and is not the best one for whoever
        is next."""
        queue = pool.queue
        first = queue.level(now).turn().at(0)
        place = pool.before(pool.open_score, lane, now)
        # Who has waited for longer than the idle one takes was promised too much.
        in_vain_at = first.came_at + _IN_VAIN * lane.takes_s / lane.site.penalty_now(now)
        is_in_vain = in_vain_at <= now and lane.in_flight < lane.instances
        if place < queue.count or is_in_vain:
            ticket = head
            if head is first:
                ticket = queue.nth(pool.before(pool.open_end, lane, now, 1.0), now)
            if not self.is_kept(ticket.priority) or lane.low >= lane.slots:
                end = lane.look(ticket.rows, ticket.size, now)
                score = end - (1.0 - OWN_SHARE) * lane.takes_s
                if end < ticket.deadline and (is_in_vain or pool.before(score, lane, now) <= place):
                    return ticket, lane
        if pool.best is not None:
            best = pool.best
            pool.wake_at = best.begins_at + _RECHECK_S + _RECHECK_SHARE * best.cost.mean_s
            if now < in_vain_at:
                pool.wake_at = min(pool.wake_at, in_vain_at)
        return None

    def _for_slow(self, head: Ticket, pool: Pool, lane: Lane, now: float) -> Ticket | None:
        """Who goes to a slow lane of those that wait: whoever would end elsewhere at the same time.

        Where nobody waits who would end so late it is the one that came last, if it is not made
        later than others are.
        """
        queue = pool.queue
        place = pool.before(pool.open_end, lane, now, 1.0)
        ticket = queue.nth(place, now)
        if (
            ticket.priority != head.priority
            or ticket.deadline != NO_DEADLINE
            or ticket.work_s > _ALIKE * head.work_s
        ):
            return head
        end = lane.look(ticket.rows, ticket.size, now)
        if place < queue.count or end - ticket.came_at <= self.tally.tail_s:
            return ticket
        return None

    @staticmethod
    def _wake(pool: Pool, now: float, ahead_s: float) -> None:
        """Say when a full pool is to be looked at although nothing ended."""
        best = pool.best
        if best is None:
            return
        pool.wake_at = pool.overdue_at(now)
        if pool.is_capped:
            # Requests that are not ours may end there, and nobody says so.
            pool.wake_at = now + _POLL_S
        elif best.in_flight < best.limit:
            lead_s = min(best.lead_s, ahead_s + best.lead_s - LEAD_S)
            at = max(now + _RECHECK_S, best.begins_at - lead_s + _ROUNDING_S)
            pool.wake_at = min(at, pool.wake_at)


def _kind(limit: LaneLimit) -> type[Lane]:
    """Lanes of backends that put several requests into one execution, that work on all of them
    side by side, or on one after the other."""
    if limit.is_shared:
        return SharedLane
    return BatchLane if limit.max_batch > 1 else Lane
