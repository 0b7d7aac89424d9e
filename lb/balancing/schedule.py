"""The scheduler: when and where each request of a scheduled model begins.

A request goes where it will end first, by what is under way there and by what its execution was
learnt to cost. Where that backend is full it waits here, bound to nothing, although a slower one
may be free: until so many wait that the slower one would be the first to end one of them. Who is
next of those that wait is decided by `lb.balancing.waiting`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Final

from lb.balancing.cost import SURELY
from lb.balancing.elsewhere import Elsewhere
from lb.balancing.lanes import NO_LIMIT, NOT_AHEAD_S, YIELDING_LEAD_S, Lane
from lb.balancing.lines import Line
from lb.balancing.pools import Pool
from lb.balancing.site import Site
from lb.balancing.unanswered import nobody_listens
from lb.domain.backend import Backend
from lb.domain.load import LoadReport, Measured
from lb.domain.schedule import (
    NO_DEADLINE,
    Ending,
    LaneView,
    LineView,
    Plan,
    Refusal,
    ScheduleRefused,
    Ticket,
    Wait,
)

_SEVERAL: Final = 2
_MAX_LINES: Final = 4096
"""Lines that are remembered; clients may name any version."""
_SPARE: Final = 64
"""Tickets in the heap of expiries that wait no more, and are not worth clearing away."""
_LATE_AT_ONCE: Final = 32
"""Tickets that `next_due` refuses, or looks at since their time has come, before it lets others go
on: clients choose their deadlines, so those of all that wait may pass together."""
_SCATTER: Final = 40503
_CAME_EVERY: Final = 0xC000
"""One of four requests tells how long they take. Which one goes by its number, times the golden
ratio of 2^16: a client that takes turns among models leaves none of them out."""
_CLEARLY: Final = 1.5
"""Times what another backend takes that a request may take at its home."""


class QueueScheduler:
    """The one scheduler of a process; see `lb.domain.schedule.Scheduler`."""

    def __init__(self) -> None:
        self._lines: dict[tuple[bytes, bytes], Line] = {}
        self._sites: dict[Backend, Site] = {}
        self._number = 0
        self._waiting = 0
        self._dirty: dict[Pool, Line] = {}
        """Pools that may have a ticket to begin."""
        self._wakes: list[tuple[float, int, Pool, Line]] = []
        """Heap of when pools are to be looked at again."""
        self._expiries: list[tuple[float, int, Ticket]] = []
        """Heap of when those that wait have waited too long."""
        self._elsewhere = Elsewhere()
        self._began: deque[Ticket] = deque()
        self._refused: deque[Ticket] = deque()
        self.on_lost: Callable[[Ticket, float], None] = nobody_listens

    @property
    def wake_at(self) -> float:
        """When `next_due` and `next_refused` want to be called though nothing ended."""
        if self._began or self._dirty:
            return 0.0
        at = NO_DEADLINE
        wakes = self._wakes
        while wakes and wakes[0][0] != wakes[0][2].wake_at:
            heappop(wakes)
        if wakes:
            at = wakes[0][0]
        expiries = self._expiries
        while expiries and not _waits(expiries[0]):
            heappop(expiries)
        return min(at, expiries[0][0]) if expiries else at

    # Requests

    def offer(self, ticket: Ticket, now: float) -> Backend | None:
        """Place a request: the backend where it begins now and is counted, or None: it waits.

        Raises:
            ScheduleRefused: it is not run.
        """
        # HOT PATH (benchmarks/bench_schedule.py). Nearly always nobody waits, nobody has to yield,
        # and the best lane has room: that takes no call beside `choose` and what counts.
        self._number = ticket.number = self._number + 1
        line = self._lines.get((ticket.model, ticket.version))
        if line is None:
            line = self._new_line(ticket)
        elif line.plan is not ticket.plan:
            line.apply(ticket.plan, now)
        pool = line.pool(ticket, now)
        if not self._number * _SCATTER & _CAME_EVERY and line.is_plain:
            pool.came(now)
        if pool.queue.count:
            return self._join(ticket, line, pool, now)
        is_kept = False
        ahead_s = pool.ahead_s
        if line.reserves and ticket.priority > 0:
            is_kept = line.is_kept(ticket.priority)
            ahead_s = NOT_AHEAD_S if is_kept and line.is_pressed else YIELDING_LEAD_S
        lane = pool.choose(ticket.rows, ticket.size, now, ahead_s, is_kept)
        if ticket.deadline != NO_DEADLINE:
            lane = pool.spare(ticket, lane, now, ahead_s, is_kept)
            if pool.seems_late(ticket):
                lane = pool.hurry(ticket, now, ahead_s, is_kept)
                if pool.is_lost(ticket, now):
                    return self._try(ticket, line, pool, now)
                if lane is not None and not lane.is_idle and pool.seems_late(ticket):
                    lane = None  # what may be late is not sent ahead of what is in time
        if lane is None or (
            lane is not pool.best and line.plan.rules.max_waiting and not pool.is_best(now)
        ):
            ticket.wait = _why(lane, is_kept=is_kept)
            return self._join(ticket, line, pool, now)
        ticket.backend = backend = lane.backend
        lane.last_pick = ticket.number
        lane.begin(ticket, now)
        line.began(ticket, lane, now)
        return backend

    def best(self, ticket: Ticket, now: float, home: Backend | None = None) -> Backend | None:
        """Where a request that cannot wait is to go; see `Scheduler.best`."""
        line = self._line(ticket, now)
        pool = line.pool(ticket, now)
        lane = pool.choose(ticket.rows, ticket.size, now)
        if lane is None or not pool.is_best(now):
            lane = pool.best
        if lane is None:
            return None
        if home is None:
            lane = pool.underexplored(lane) or lane
        own = line.lanes.get(home) if home is not None else None
        if own is not None and own is not lane:
            takes_s = own.look(ticket.rows, ticket.size, now) - now
            if takes_s <= _CLEARLY * (pool.best_end - now):
                return own.backend
        return None if lane.is_shut() and lane.backend is not home else lane.backend

    def stays(self, ticket: Ticket, home: Backend, now: float) -> bool:
        """Whether another one would stay at its home; see `Scheduler.stays`."""
        if len(ticket.eligible) == 1:
            return True
        line = self._lines.get((ticket.model, ticket.version))
        lane = line.lanes.get(home) if line is not None else None
        if line is None or lane is None:
            return False
        slots = lane.slots if lane.slots < NO_LIMIT else lane.instances
        if lane.in_flight < slots and lane.cost.mean_s <= _CLEARLY * line.tally.best_s:
            return True
        return self.best(ticket, now, home) is home

    def start(self, ticket: Ticket, backend: Backend, now: float) -> None:
        """A request begins without having been offered; see `Scheduler.start`."""
        self._number = ticket.number = self._number + 1
        line = self._line(ticket, now)
        line.pool(ticket, now)
        lane = line.lanes[backend]
        lane.look(ticket.rows, ticket.size, now)
        self._begin(ticket, line, lane, now)

    def beside(self, ticket: Ticket, now: float) -> Backend | None:
        """Begin a second attempt, or do not; see `Scheduler.beside`."""
        line = self._line(ticket, now)
        pool = line.pool(ticket, now)
        if line.waiting:
            return None
        yields = line.reserves and ticket.priority > 0
        is_kept = yields and line.is_kept(ticket.priority)
        ahead_s = YIELDING_LEAD_S if yields else NO_DEADLINE
        lane = pool.choose(ticket.rows, ticket.size, now, ahead_s, is_kept)
        if lane is None or lane.backend in ticket.tried:
            return None
        self._number = ticket.number = self._number + 1
        self._begin(ticket, line, lane, now)
        return lane.backend

    def over(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """The attempt of a ticket that began is over."""
        if ticket.lane is None:
            self._over_lost(ticket, now, ending)
            return
        line = self._lines[ticket.model, ticket.version]
        backend = ticket.backend
        assert backend is not None
        lane = line.lanes[backend]
        if ticket.lane is lane:
            lane.end(ticket, now, ending)
        else:
            lane.end_inherited(ticket, now, ending)
        line.ended(ticket, lane, now)
        ticket.backend = None
        if lane.in_flight and lane.unanswered.look_at <= now:
            for lost in line.find_lost(ticket, lane, now, ending):
                self.on_lost(lost, now)
            self._look_at((line,), now)
        if self._waiting:
            if backend.max_in_flight:
                self._look_at(self._lines.values(), now)
            elif len(line.waiting) == 1:
                for pool in line.waiting:
                    self._dirty[pool] = line
                    pool.freed += 1
            else:
                self._look_at((line,), now)

    def _over_lost(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """The attempt of a ticket that was given up is over after all."""
        backend, ticket.backend = ticket.backend, None
        line = self._lines.get((ticket.model, ticket.version))
        if line is not None and backend in line.lanes:
            line.lanes[backend].end_lost(ticket, now, ending)

    def _look_at(self, lines: Iterable[Line], now: float) -> None:
        """There may be room for pools that share backends. Whoever is looked at first takes it: let
        that be the one whose next ticket is most urgent."""
        waiting = [(pool.queue.urgency(now), pool, line) for line in lines for pool in line.waiting]
        waiting.sort(key=itemgetter(0))
        for _, pool, line in waiting:
            self._dirty.pop(pool, None)
            self._dirty[pool] = line
            pool.freed = _SEVERAL

    def drop(self, ticket: Ticket) -> None:
        """A ticket that waits is wanted no more; one that does not wait is left alone."""
        if not ticket.is_waiting:
            self._take_back(ticket)
            return
        line = self._lines[ticket.model, ticket.version]
        self._leave(ticket, line, line.pool(ticket, 0.0))

    def _take_back(self, ticket: Ticket) -> None:
        """Have what was decided about a ticket not happen, if nobody was told yet."""
        if ticket in self._began:
            self._began.remove(ticket)
            self._told(ticket)
            self.over(ticket, ticket.began_at, Ending.NEITHER)
        else:
            ticket.refused = None

    def next_due(self, now: float) -> Ticket | None:
        """The next ticket that begins now, at `ticket.backend`; see `Scheduler`."""
        wakes = self._wakes
        while wakes and wakes[0][0] <= now:
            at, _, pool, line = heappop(wakes)
            if at == pool.wake_at and pool.queue.count:
                self._dirty[pool] = line
        while self._dirty and not self._began and len(self._refused) < _LATE_AT_ONCE:
            pool, line = next(iter(self._dirty.items()))
            self._step(line, pool, now)
        if not self._began:
            # An instance that is idle still is wanted by nobody else.
            if self._expiries and self._expiries[0][0] <= now and not self._dirty:
                self._look_at_expiries(now)
            if not self._began:
                return None
        ticket = self._began.popleft()
        self._told(ticket)
        return ticket

    def _told(self, ticket: Ticket) -> None:
        """Whoever asked counts a ticket that was due."""
        assert ticket.backend is not None
        site = self._sites.get(ticket.backend)
        if site is not None and site.due:
            site.due -= 1

    def next_refused(self, now: float) -> Ticket | None:
        """The next waiting ticket that is not run, with `ticket.refused`; see `Scheduler`."""
        if not self._refused and self._expiries and self._expiries[0][0] <= now:
            self._look_at_expiries(now)
        while self._refused:
            ticket = self._refused.popleft()
            if ticket.refused is not None:
                return ticket
        return None

    def _look_at_expiries(self, now: float) -> None:
        """Have some of those that may have waited for too long begin or be refused. `wake_at` is
        not later than `now` where others are left."""
        expiries = self._expiries
        for _ in range(_LATE_AT_ONCE):
            if not expiries or expiries[0][0] > now:
                break
            entry = heappop(expiries)
            if _waits(entry):
                self._expire(entry[2], now)

    def _expire(self, ticket: Ticket, now: float) -> None:
        """Refuse a ticket that has waited for too long, by the plan that holds now, or whose
        deadline has passed. Soon before that it begins wherever an instance is idle."""
        line = self._lines[ticket.model, ticket.version]
        if ticket.joined_at + line.plan.rules.max_wait_s <= now:
            self._refuse(ticket, line, Refusal.EXPIRED, now)
            return
        pool = line.pool(ticket, now)
        if ticket.deadline > now:
            lane = pool.idle(ticket, now, line.is_kept(ticket.priority))
            if lane is not None:
                self._begin_waiting(ticket, line, pool, lane, now)
                return
            if not pool.is_lost(ticket, now):
                self._expire_at(ticket, line, ticket.deadline)
                return
        self._refuse(ticket, line, Refusal.LATE, now)

    # Waiting

    def _join(self, ticket: Ticket, line: Line, pool: Pool, now: float) -> Backend | None:
        """Have a ticket wait, unless it is the one that begins now."""
        rules = line.plan.rules
        usual = line.tally.usual
        ticket.work_s = line.tally.best_s
        if usual.count:
            work_s = usual.predict(ticket.rows, ticket.size)
            most_s = SURELY * usual.mean_s
            ticket.work_s = work_s if work_s < most_s else most_s
        is_due = ticket.deadline != NO_DEADLINE and pool.queue.count > 0
        if is_due and line.is_late(ticket, pool, now):
            # What is idle now may be wanted by those that wait.
            is_kept = line.is_kept(ticket.priority)
            if pool not in self._dirty or pool.idle(ticket, now, is_kept) is None:
                return self._try(ticket, line, pool, now)
        if line.waits >= rules.max_waiting:
            victim = line.victim(ticket, pool)
            if victim is None:
                raise ScheduleRefused(Refusal.FULL, line.room_in(pool, now))
            self._refuse(victim, line, Refusal.SHED, now)
        if ticket.wait is Wait.NONE:
            ticket.wait = Wait.LIMIT
        ticket.position = pool.queue.count
        ticket.joined_at = now
        pool.queue.add(ticket)
        line.waiting[pool] = None
        self._waiting += 1
        self._expire_at(ticket, line, ticket.deadline - line.tally.best_s)
        if pool not in self._dirty:
            if pool.is_closed and pool.queue.count > 1:
                return None  # nothing has changed since there was no room
        elif len(self._dirty) > 1:
            return None  # others wait for the same room, in the order of their turns
        self._step(line, pool, now)
        if not ticket.is_waiting and self._began and self._began[-1] is ticket:
            self._told(self._began.pop())
            return ticket.backend
        return None

    def _try(self, ticket: Ticket, line: Line, pool: Pool, now: float) -> Backend:
        """Begin a new ticket that seems to be late, if an instance is idle: nothing is lost by it,
        and its end tells how long executions take now.

        Raises:
            ScheduleRefused: none is.
        """
        lane = None
        if ticket.deadline > now:
            lane = pool.idle(ticket, now, line.is_kept(ticket.priority))
        if lane is None:
            raise ScheduleRefused(Refusal.LATE, line.room_in(pool, now))
        self._begin(ticket, line, lane, now)
        return lane.backend

    def _expire_at(self, ticket: Ticket, line: Line, deadline: float) -> None:
        """Have a ticket that waits looked at by `_expire` when it has waited for too long, and at a
        time that has to do with its deadline."""
        at = min(ticket.joined_at + line.plan.rules.max_wait_s, deadline)
        if at == NO_DEADLINE:
            return
        expiries = self._expiries
        if len(expiries) > 2 * self._waiting + _SPARE:
            expiries[:] = [entry for entry in expiries if _waits(entry)]
            heapify(expiries)
        heappush(expiries, (at, ticket.number, ticket))

    def _step(self, line: Line, pool: Pool, now: float) -> None:
        """Begin the next ticket of a pool, refuse those before it that are late, or find that all
        have to wait. Where very many are late the pool stays to be looked at."""
        freed = pool.freed if pool.is_closed else 0
        wake_at = pool.wake_at
        while pool.queue.count:
            found = line.due(pool, now)
            if found is None:
                break
            ticket, lane = found
            if lane is None:
                self._refuse(ticket, line, Refusal.LATE, now)
                if len(self._refused) >= _LATE_AT_ONCE and pool.queue.count:
                    self._dirty[pool] = line
                    return
                continue
            self._begin_waiting(ticket, line, pool, lane, now)
            if freed == 1 and lane.in_flight >= lane.limit and wake_at > now:
                # One place was free, and it is taken: nothing else has changed.
                pool.is_closed = True
                pool.freed = 0
                pool.wake_at = wake_at if pool.queue.count else NO_DEADLINE
                self._dirty.pop(pool, None)
            elif pool.queue.count:
                self._dirty[pool] = line
            return
        pool.freed = 0
        self._dirty.pop(pool, None)
        if pool.queue.count and pool.wake_at != NO_DEADLINE:
            self._number += 1
            heappush(self._wakes, (pool.wake_at, self._number, pool, line))

    def _begin_waiting(
        self, ticket: Ticket, line: Line, pool: Pool, lane: Lane, now: float
    ) -> None:
        pool.queue.serve(ticket)
        self._left(line, pool)
        self._begin(ticket, line, lane, now)
        self._began.append(ticket)
        lane.site.due += 1

    def _begin(self, ticket: Ticket, line: Line, lane: Lane, now: float) -> None:
        ticket.backend = lane.backend
        lane.last_pick = ticket.number
        lane.begin(ticket, now)
        line.began(ticket, lane, now)

    def _refuse(self, ticket: Ticket, line: Line, refusal: Refusal, now: float) -> None:
        pool = line.pool(ticket, now)
        self._leave(ticket, line, pool)
        ticket.refused = ScheduleRefused(refusal, line.room_in(pool, now))
        self._refused.append(ticket)

    def _leave(self, ticket: Ticket, line: Line, pool: Pool) -> None:
        pool.queue.remove(ticket)
        self._left(line, pool)

    def _left(self, line: Line, pool: Pool) -> None:
        self._waiting -= 1
        if not pool.queue.count:
            del line.waiting[pool]
            self._dirty.pop(pool, None)
            pool.wake_at = NO_DEADLINE

    # What is configured, and what is told

    def _line(self, ticket: Ticket, now: float) -> Line:
        line = self._lines.get((ticket.model, ticket.version))
        if line is None:
            line = self._new_line(ticket)
        elif line.plan is not ticket.plan:
            line.apply(ticket.plan, now)
        return line

    def _new_line(self, ticket: Ticket) -> Line:
        if len(self._lines) >= _MAX_LINES:
            for key, line in tuple(self._lines.items()):
                if not line.tally.in_flight and not line.waiting:
                    del self._lines[key]
        line = Line(ticket.model, ticket.version, ticket.plan, self._sites)
        self._lines[ticket.model, ticket.version] = line
        return line

    def follow(
        self, renew: Callable[[Ticket], tuple[Plan, tuple[Backend, ...]] | None], now: float
    ) -> list[Ticket]:
        """Another snapshot: plans, backends, limits; see `Scheduler.follow`."""
        gone: list[Ticket] = []
        for line in self._lines.values():
            tickets = [ticket for pool in line.waiting for ticket in pool.queue]
            for pool in line.waiting:
                self._dirty.pop(pool, None)
                pool.wake_at = NO_DEADLINE
            self._waiting -= len(tickets)
            line.restart()
            renewed: dict[int, tuple[Plan, tuple[Backend, ...]] | None] = {}
            for ticket in tickets:
                ticket.is_waiting = False
                group = id(ticket.eligible)
                if group not in renewed:
                    renewed[group] = renew(ticket)
                found = renewed[group]
                if found is None:
                    gone.append(ticket)
                    continue
                self._stay(ticket, line, found, now)
        used = {backend for line in self._lines.values() for backend in line.lanes}
        for backend in self._sites.keys() - used:
            if not self._sites[backend].measured:
                del self._sites[backend]
        return gone

    def _stay(
        self, ticket: Ticket, line: Line, found: tuple[Plan, tuple[Backend, ...]], now: float
    ) -> None:
        """Have a ticket wait with what another snapshot says."""
        before_s = ticket.plan.rules.max_wait_s
        ticket.plan, ticket.eligible = found
        if line.plan is not ticket.plan:
            line.apply(ticket.plan, now)
        pool = line.pool(ticket, now)
        pool.queue.add(ticket)
        if ticket.plan.rules.max_wait_s < before_s:
            self._expire_at(ticket, line, ticket.deadline)
        line.waiting[pool] = None
        self._dirty[pool] = line
        self._waiting += 1

    def busy_elsewhere(self, backend: Backend, report: LoadReport) -> None:
        """A backend says how much it has to do; see `Scheduler`."""
        self._elsewhere.told(backend, self._lanes_at(backend), report)

    def under_way(self, backend: Backend) -> dict[bytes, int]:
        """Requests that are under way at a backend, by model."""
        lanes = self._lanes_at(backend)
        return {model: sum([lane.in_flight for lane in those]) for model, those in lanes.items()}

    def _lanes_at(self, backend: Backend) -> dict[bytes, list[Lane]]:
        found: dict[bytes, list[Lane]] = {}
        for line in self._lines.values():
            lane = line.lanes.get(backend)
            if lane is not None:
                found.setdefault(line.model, []).append(lane)
        return found

    def assume(
        self, backend: Backend, measured: Mapping[tuple[bytes, bytes], Measured], now: float
    ) -> None:
        """A backend says how long executions take; see `Scheduler`."""
        site = self._sites.get(backend)
        if site is None:
            site = self._sites[backend] = Site(backend)
        site.measured = measured
        for line in self._lines.values():
            lane = line.lanes.get(backend)
            found = site.measured_of(line.model, line.version)
            if lane is not None and found is not None:
                lane.assume(found, now)

    def spoken_for(self, backend: Backend, part: float, now: float) -> None:
        """A part of a backend's time goes to what is placed otherwise; see `Scheduler`."""
        site = self._sites.get(backend)
        if site is None or (factor := site.speak_for(part)) == 1.0:
            return
        for line in self._lines.values():
            lane = line.lanes.get(backend)
            if lane is not None:
                lane.rescale(factor)
                if line.index is not None:
                    line.index.changed(lane, now)

    def forget(self, backend: Backend) -> None:
        """A backend is gone, or was restarted: nothing learnt of it holds."""
        for line in self._lines.values():
            line.forget(backend)
        self._elsewhere.forget(backend)
        site = self._sites.get(backend)
        if site is not None:
            site.penalty = 1.0
            site.measured = {}

    # Views

    def lanes(self) -> Iterator[LaneView]:
        """Every lane that is known of."""
        for line in self._lines.values():
            for lane in line.lanes.values():
                cost = lane.cost
                yield LaneView(
                    model=line.model,
                    version=line.version,
                    backend=lane.backend,
                    in_flight=lane.in_flight,
                    limit=lane.shown_limit,
                    expected_s=cost.predict(1, 0),
                    row_s=cost.row_s,
                    learnt=cost.count - cost.assumed,
                    slowed=1.0 if lane.others is None else lane.others.factor,
                )

    def lines(self, now: float) -> Iterator[LineView]:
        """Every line that is known of."""
        for line in self._lines.values():
            waiting: dict[int, int] = {}
            oldest = now
            for pool in line.waiting:
                for priority, count in pool.queue.by_priority().items():
                    waiting[priority] = waiting.get(priority, 0) + count
                oldest = min(oldest, pool.queue.oldest_at())
            yield LineView(
                model=line.model, version=line.version, waiting=waiting, oldest_s=now - oldest
            )


def _waits(entry: tuple[float, int, Ticket]) -> bool:
    """Whether a ticket in the heap of expiries still waits, and for the same."""
    ticket = entry[2]
    return ticket.is_waiting and ticket.number == entry[1]


def _why(lane: Lane | None, *, is_kept: bool) -> Wait:
    """Why a ticket waits that was offered while nobody waited."""
    if lane is not None:
        return Wait.FASTER
    return Wait.RESERVED if is_kept else Wait.LIMIT
