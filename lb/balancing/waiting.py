"""The queue of an eligible set: which request is next.

Priorities come first (strictly, or by weight), then tenants by deficit round robin, then the
request that is due first. Where several workers have queues, tenants take turns by their times
(`lb.balancing.tenant_times`). A request without a deadline counts as due at a late time, so that
others pass it for a while only. Every operation takes O(log n), and moves memory of the size of a
tenant's queue at worst.

Deficit round robin: Shreedhar and Varghese, "Efficient fair queuing using deficit round-robin",
1995. A tenant pays with the execution time of its requests, not with their number.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush, heapreplace
from math import ceil
from typing import Final

from lb.balancing.tenant_times import TenantTimes
from lb.balancing.tuning import TUNING
from lb.domain.schedule import NO_DEADLINE, Order, QueueRules, Ticket

LOWEST: Final = 15
"""Lower priorities count as this one."""
_SAMPLED: Final = 8
"""Tenants that are compared for the one with the longest queue. The longest of the last time is
remembered, so that it is found after a while."""
_CLEANUP_MIN: Final = 16
"""Fewer empty queues among the turns are not cleared away."""
_COMPACT: Final = 64
"""Fewer void entries at the beginning of a queue are not cleared away."""
_DEFAULT_DUE_S: Final = TUNING.default_due_s
_OVERTAKEN_RATIO: Final = TUNING.overtaken_executions
_LAST_NUMBER: Final = 1 << 62
"""A number above those of all tickets."""


def due_at(arrived_at: float, work_s: float) -> float:
    """When a request without a deadline counts as due."""
    return arrived_at + _DEFAULT_DUE_S + _OVERTAKEN_RATIO * work_s


def level_of(priority: int) -> int:
    """The priority that counts for a ticket."""
    return 0 if priority < 0 else min(priority, LOWEST)


class TenantQueue:
    """The queued tickets of one tenant within a priority, sorted by when they are due."""

    __slots__ = ("begin", "deficit_s", "keys", "name", "place", "tickets", "weight")

    def __init__(self, name: str, weight: float, place: int) -> None:
        self.name = name
        self.weight = weight
        self.place = place
        """Its place among the tenants of its priority."""
        self.deficit_s = 0.0
        """Seconds of execution that it may still use in this round."""
        self.keys: list[tuple[float, int]] = []
        """When each ticket is due, and its number."""
        self.tickets: list[Ticket | None] = []
        """The tickets, and None for those that have left from the beginning."""
        self.begin = 0
        """The number of those that have left."""

    def __len__(self) -> int:
        return len(self.keys) - self.begin

    def __iter__(self) -> Iterator[Ticket]:
        for ticket in self.tickets[self.begin :]:
            if ticket is not None:
                yield ticket

    def at(self, place: int) -> Ticket:
        """Find the ticket with so many before it."""
        ticket = self.tickets[self.begin + place]
        assert ticket is not None
        return ticket

    def before(self, key: float) -> int:
        """Count the tickets that are due no later than that."""
        keys = self.keys
        if keys[-1][0] <= key:
            return len(keys) - self.begin
        return bisect_left(keys, (key, _LAST_NUMBER), self.begin) - self.begin

    def may_overtake(self, since: float) -> bool:
        """Whether the last ticket may go before the first one: if the first one arrived after some
        time, and neither has a deadline."""
        first = self.at(0)
        if first.arrived_at < since or first.deadline != NO_DEADLINE:
            return False
        return self.last().deadline == NO_DEADLINE

    def last(self) -> Ticket:
        """Find the ticket that is due last."""
        ticket = self.tickets[-1]
        assert ticket is not None
        return ticket

    def add(self, ticket: Ticket) -> None:
        """Sort a ticket in. Most arrive in order and are put at the end."""
        key = (ticket.key, ticket.number)
        keys = self.keys
        if not keys or keys[-1] < key:
            keys.append(key)
            self.tickets.append(ticket)
            return
        place = bisect_left(keys, key, self.begin)
        keys.insert(place, key)
        self.tickets.insert(place, ticket)

    def remove(self, ticket: Ticket) -> None:
        """Take a ticket out."""
        begin = self.begin
        if self.tickets[begin] is not ticket:
            place = bisect_left(self.keys, (ticket.key, ticket.number), begin)
            del self.keys[place]
            del self.tickets[place]
            return
        self.tickets[begin] = None
        self.begin = begin = begin + 1
        if begin >= _COMPACT and begin * 2 > len(self.keys):
            del self.keys[:begin]
            del self.tickets[:begin]
            self.begin = 0


class Level:
    """The tenants of one priority that have queued tickets, in the order of their turns."""

    __slots__ = (
        "_by_time", "_cursor", "_longest", "_quantum_s", "_ring", "_tenants", "_turns", "count",
        "passed_s", "times", "weight", "work_s",
    )  # fmt: skip

    def __init__(self, weight: float, times: TenantTimes | None = None) -> None:
        self.weight = weight
        self.times = times
        """Of the tenants, where other workers queue requests too."""
        self._by_time: list[tuple[float, str]] = []
        """With `times`: a heap of the tenants, by times that are those of now or earlier."""
        self.passed_s = 0.0
        """Seconds of execution that it has had, divided by its weight (stride scheduling)."""
        self.count = 0
        """The number of queued tickets."""
        self.work_s = 0.0
        """Seconds that they are expected to take, one after the other, on a typical backend."""
        self._tenants: dict[str, TenantQueue] = {}
        self._turns: deque[TenantQueue] = deque()
        """The queues in `_tenants`, and some that are empty by now."""
        self._ring: list[TenantQueue] = []
        """The queues in `_tenants` in any order, for samples."""
        self._cursor = 0
        self._quantum_s = 0.0
        """At least what the largest ticket takes, so that each turn serves one at least."""
        self._longest: TenantQueue | None = None

    @property
    def tenants(self) -> int:
        """The number of tenants with queued tickets."""
        return len(self._ring)

    def __iter__(self) -> Iterator[Ticket]:
        for queue in self._ring:
            yield from queue

    def add(self, ticket: Ticket, weight: float) -> None:
        """Queue a ticket of a tenant with some weight."""
        # HOT PATH (benchmarks/bench_schedule.py). `TenantQueue.add` is written out.
        queue = self._tenants.get(ticket.tenant)
        if queue is None:
            queue = TenantQueue(ticket.tenant, weight, len(self._ring))
            self._tenants[ticket.tenant] = queue
            self._ring.append(queue)
            if self.times is None:
                self._turns.append(queue)
            else:
                self.times.joined(ticket.tenant, ticket.queued_at)
                heappush(self._by_time, (self.times.time(ticket.tenant), ticket.tenant))
        work_s = ticket.work_s
        self._quantum_s = max(self._quantum_s, work_s / queue.weight)
        self.count += 1
        self.work_s += work_s
        key = (ticket.key, ticket.number)
        keys = queue.keys
        if keys and keys[-1] > key:
            queue.add(ticket)
        else:
            keys.append(key)
            queue.tickets.append(ticket)

    def turn(self) -> TenantQueue:
        """Find the tenant whose turn it is. Some ticket must be queued. Asking changes nothing."""
        if self.times is not None:
            return self._tenants[self._first(self.times)[1]]
        turns = self._turns
        queue = turns[0]
        if len(turns) == 1:
            return queue
        while not queue or queue.deficit_s < queue.at(0).work_s:
            if queue:
                turns.rotate(-1)
            else:
                turns.popleft()
            queue = turns[0]
            if len(turns) == 1:
                return queue
            queue.deficit_s += self._quantum_s * queue.weight
        return queue

    def _first(self, times: TenantTimes) -> tuple[float, str]:
        """Find the tenant that has had the least time, and that time."""
        heap = self._by_time
        while True:
            first = heap[0]
            name = first[1]
            if name not in self._tenants:
                heappop(heap)
                continue
            time = times.time(name)
            if time <= first[0]:
                return first
            heapreplace(heap, (time, name))

    def turn_at(self) -> float:
        """Find the virtual time of the tenant whose turn it is; see `TenantTimes`."""
        return 0.0 if self.times is None else self._first(self.times)[0]

    def turn_slot(self) -> int:
        """The number of that tenant's slot; see `TenantTimes`. 0: it has none."""
        return 0 if self.times is None else self.times.slot(self._first(self.times)[1])

    def after(self, key: float) -> Ticket | None:
        """Find the first ticket that is due later, of the tenant whose turn it is or of a few
        others. None: they have none."""
        for queue in (self.turn(), *self._ring[:_SAMPLED]):
            place = queue.before(key)
            if place < len(queue):
                return queue.at(place)
        return None

    def nth(self, place: int) -> Ticket:
        """Find about the ticket with so many before it, of the tenant whose turn it is."""
        queue = self.turn()
        return queue.at(min(place // len(self._ring), len(queue) - 1))

    def serve(self, ticket: Ticket) -> None:
        """Take a ticket out that begins. Its tenant and its priority pay for it."""
        # HOT PATH (benchmarks/bench_schedule.py). Nearly always there is one tenant, and others
        # stay queued: `remove` is the reference of what is written out.
        work_s = ticket.work_s
        self.passed_s += work_s / self.weight
        queue = self._ring[0]
        begin = queue.begin
        if self.times is not None:
            weight = self._tenants[ticket.tenant].weight
            self.times.serve(ticket.tenant, work_s / weight, ticket.queued_at)
        elif len(self._ring) > 1:
            queue = self._tenants[ticket.tenant]
            debt = -self._quantum_s * queue.weight
            queue.deficit_s = max(queue.deficit_s - work_s, debt)
        elif self.count > 1 and begin < _COMPACT and queue.tickets[begin] is ticket:
            queue.tickets[begin] = None
            queue.begin = begin + 1
            self.count -= 1
            self.work_s -= work_s
            return
        self.remove(ticket)

    def remove(self, ticket: Ticket) -> None:
        """Take a ticket out."""
        queue = self._tenants[ticket.tenant]
        queue.remove(ticket)
        self.count = count = self.count - 1
        self.work_s -= ticket.work_s
        if count and (len(self._ring) == 1 or queue):
            return
        del self._tenants[ticket.tenant]
        if self.times is not None:
            self.times.left(ticket.tenant, ticket.queued_at)
            if len(self._by_time) > 2 * len(self._ring) + _CLEANUP_MIN:
                self._by_time = sorted([each for each in self._by_time if each[1] in self._tenants])
        last = self._ring.pop()
        if last is not queue:
            self._ring[queue.place] = last
            last.place = queue.place
        if self._longest is queue:
            self._longest = None
        if not count:
            self._turns.clear()
            self.work_s = self._quantum_s = 0.0
        elif len(self._turns) > 2 * len(self._ring) + _CLEANUP_MIN:
            self._turns = deque(each for each in self._turns if each)

    def ahead(self, tenant: str, key: float) -> int:
        """Count the tickets that would be served before a tenant's ticket with a key."""
        queue = self._tenants.get(tenant)
        before = 0 if queue is None else queue.before(key)
        others = len(self._ring) - (queue is not None)
        return min(before + (before + 1) * others, self.count)

    def work_of(self, count: int) -> float:
        """Predict the execution time of so many of the queued tickets in seconds."""
        return self.work_s * count / self.count if count else 0.0

    def waiting_of(self, tenant: str) -> int:
        """Count the queued tickets of a tenant."""
        queue = self._tenants.get(tenant)
        return 0 if queue is None else len(queue)

    def longest(self) -> TenantQueue:
        """Find about the tenant with the most queued tickets. Some ticket must be queued."""
        ring = self._ring
        best = self._longest or ring[0]
        for _ in range(min(_SAMPLED, len(ring))):
            self._cursor = (self._cursor + 1) % len(ring)
            if len(ring[self._cursor]) > len(best):
                best = ring[self._cursor]
        self._longest = best
        return best


class WaitingQueue:
    """All queued tickets of one eligible set."""

    __slots__ = (
        "_last", "_levels", "_numbers", "_passed_s", "_rules", "_times", "_was_starved", "count",
    )  # fmt: skip

    def __init__(
        self, rules: QueueRules, times: Callable[[int], TenantTimes] | None = None
    ) -> None:
        """
        Args:
            rules: of the model.
            times: gives those of tenants of a priority, where other workers queue requests too.
        """
        self._times = times
        self.count = 0
        """The number of queued tickets."""
        self._levels: dict[int, Level] = {}
        """The priorities that have had a ticket."""
        self._numbers: list[int] = []
        """The numbers of these priorities, sorted."""
        self._last: Level | None = None
        """The priority that got the last ticket."""
        self._passed_s = 0.0
        """`Level.passed_s` of the level that was served last."""
        self._was_starved = False
        """The last turn was that of a starving priority."""
        self._rules = rules

    def __iter__(self) -> Iterator[Ticket]:
        for level in self._levels.values():
            yield from level

    def by_priority(self) -> dict[int, int]:
        """Count the queued tickets by priority."""
        return {number: self._levels[number].count for number in self._numbers}

    def oldest_at(self) -> float:
        """Find when the oldest ticket was queued. Some ticket must be queued. Takes O(n)."""
        return min([ticket.queued_at for ticket in self])

    def add(self, ticket: Ticket) -> None:
        """Queue a ticket. `work_s` is what it pays when it begins."""
        # HOT PATH (benchmarks/bench_schedule.py). `level_of` and `key` are written out.
        number = ticket.priority
        if number < 0 or number > LOWEST:
            number = level_of(number)
        level = self._levels.get(number)
        if level is None:
            times = None if self._times is None else self._times(number)
            level = self._levels[number] = Level(self._weight(number), times)
            insort(self._numbers, number)
        if not level.count and level.passed_s < self._passed_s:
            # What it left unused while it had nothing is not saved up.
            level.passed_s = self._passed_s
        due = ticket.arrived_at + _DEFAULT_DUE_S + _OVERTAKEN_RATIO * ticket.work_s
        ticket.key = due if due < ticket.deadline else ticket.deadline
        ticket.is_waiting = True
        weights = self._rules.tenant_weights
        level.add(ticket, weights.get(ticket.tenant, 1.0) if weights else 1.0)
        self._last = level
        self.count += 1

    def ahead(self, ticket: Ticket) -> tuple[int, float]:
        """Count the tickets that would be served before one that is not queued yet, and their
        execution time as it was predicted when they were queued."""
        own = level_of(ticket.priority)
        mine = self._levels.get(own)
        count = 0 if mine is None else mine.ahead(ticket.tenant, self.key(ticket))
        work_s = 0.0 if mine is None else mine.work_of(count)
        per_weight_s = work_s / self._weight(own)
        for number in self._numbers:
            level = self._levels[number]
            if number == own or not level.count:
                continue
            if self._rules.order is Order.WEIGHTED:
                level_s = min(level.work_s, per_weight_s * level.weight)
                count += ceil(level.count * level_s / level.work_s) if level.work_s else 0
                work_s += level_s
            elif number < own:
                count += level.count
                work_s += level.work_s
        return count, work_s

    def key(self, ticket: Ticket) -> float:
        """Find when a ticket counts as due."""
        return min(due_at(ticket.arrived_at, ticket.work_s), ticket.deadline)

    def _weight(self, number: int) -> float:
        return self._rules.weights.get(number, 0.5**number)

    def level(self, now: float) -> Level:
        """Find the priority whose turn it is. Some ticket must be queued."""
        levels = self._levels
        last = self._last
        if last is not None and last.count == self.count:
            return last  # no other priority has any
        if self._rules.order is Order.WEIGHTED:
            waiting = [level for level in levels.values() if level.count]
            return min(waiting, key=_passed)
        first: Level | None = None
        since = now - self._rules.max_starve_s
        for number in self._numbers:
            level = levels[number]
            if not level.count:
                continue
            if first is None:
                first = level
                if self._was_starved:
                    return first
            elif level.turn().at(0).arrived_at < since:
                return level
        assert first is not None
        return first

    def urgency(self, now: float) -> tuple[int, float]:
        """Compare the ticket whose turn it is with those of other queues for the same backends: the
        least value is the first. Some ticket must be queued."""
        ticket = self.level(now).turn().at(0)
        is_level = self._rules.order is Order.WEIGHTED
        if is_level or ticket.arrived_at < now - self._rules.max_starve_s:
            return 0, ticket.key
        return level_of(ticket.priority), ticket.key

    def most_urgent(self) -> Ticket | None:
        """Find the next ticket of priority 0. None: none is queued."""
        level = self._levels.get(0)
        return level.turn().at(0) if level is not None and level.count else None

    def nth(self, place: int, now: float) -> Ticket:
        """Find about the ticket with so many before it, or the last one where there are fewer."""
        if self._rules.order is Order.STRICT:
            for number in self._numbers:
                level = self._levels[number]
                if place < level.count:
                    return level.nth(place)
                place -= level.count
        level = self.level(now)
        return level.nth(min(place, level.count - 1))

    def after(self, key: float, now: float) -> Ticket | None:
        """Find the next ticket, by turns as far as they go, of those that are due later."""
        found = self.level(now).after(key)
        for number in self._numbers:
            if found is None and self._levels[number].count:
                found = self._levels[number].after(key)
        return found

    def highest(self) -> int:
        """Find the highest priority with queued tickets; LOWEST + 1 where the queue is empty."""
        for number in self._numbers:
            if self._levels[number].count:
                return number
        return LOWEST + 1

    def pop_next(self, now: float) -> Ticket:
        """Take the ticket out whose turn it is. Some ticket must be queued."""
        level = self.level(now)
        ticket = level.turn().at(0)
        level.remove(ticket)
        ticket.is_waiting = False
        self.count -= 1
        return ticket

    def serve(self, ticket: Ticket) -> None:
        """Take a ticket out that begins."""
        # HOT PATH (benchmarks/bench_schedule.py). Nearly always no other priority has any.
        level = self._last
        if level is not None and level.count == self.count:
            self._was_starved = False
        else:
            number = level_of(ticket.priority)
            level = self._levels[number]
            self._was_starved = not self._was_starved and number != self.highest()
        self._passed_s = level.passed_s
        level.serve(ticket)
        ticket.is_waiting = False
        self.count -= 1

    def put_back(self, ticket: Ticket) -> None:
        """Queue a ticket again that was taken out and did not begin. Its tenant has paid for it."""
        self.add(ticket)
        level = self._levels[level_of(ticket.priority)]
        if level.times is not None:
            weight = self._rules.tenant_weights.get(ticket.tenant, 1.0)
            level.times.put_back(ticket.tenant, ticket.work_s / weight)

    def remove(self, ticket: Ticket) -> None:
        """Take a ticket out that does not begin."""
        self._levels[level_of(ticket.priority)].remove(ticket)
        ticket.is_waiting = False
        self.count -= 1

    def victim(self, ticket: Ticket) -> Ticket | None:
        """Choose who makes room for a ticket when the queue is full: the last ticket of the tenant
        with the most queued ones, in the lowest priority. None: the ticket is one too many."""
        own = level_of(ticket.priority)
        for number in reversed(self._numbers):
            level = self._levels[number]
            if not level.count:
                continue
            if number < own:
                return None
            queue = level.longest()
            if number == own and len(queue) <= level.waiting_of(ticket.tenant) + 1:
                return None
            return queue.last()
        return None


def _passed(level: Level) -> float:
    return level.passed_s
