"""The queue of one model queue: who of those that wait is next.

Priorities first (strictly, or by weight), then tenants by deficit round robin, then whoever is due
first. A ticket without a deadline is due as if it had a late one, so that it is passed for a while
only. Every operation takes O(log n), and moves memory of the size of a tenant's queue at worst.

Deficit round robin: Shreedhar and Varghese, "Efficient fair queuing using deficit round-robin",
1995; what a tenant pays is the execution time of its requests, not their number.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from math import ceil
from typing import Final

from lb.domain.schedule import NO_DEADLINE, Order, QueueRules, Ticket

LOWEST: Final = 15
"""Priorities below count as this one."""
_LOOKED_AT: Final = 8
"""Tenants that are looked at for the one with the longest queue; the longest of the last time is
remembered, so that it is found after a while."""
_SPARE: Final = 16
"""Empty queues among the turns that are not worth clearing away."""
_COMPACT: Final = 64
_UNNAMED_S: Final = 5.0
"""A request without a deadline counts as due so long after it came: its client has one too, and did
not say which. With much more, what came over HTTP waited behind all of gRPC, whose clients do."""
_PATIENCE: Final = 10.0
"""Beside that it may be passed by shorter ones that come no later than so many times its execution
time after it: what one waits should be in proportion to what one asks for."""
_MOST_PATIENCE_S: Final = 2.0
"""But by none that come later than that: an execution may be long, or be thought to be."""
_LAST_NUMBER: Final = 1 << 62


def level_of(priority: int) -> int:
    """The priority that a ticket is treated with."""
    return 0 if priority < 0 else min(priority, LOWEST)


class TenantQueue:
    """The tickets of one tenant within a priority, sorted by when they are due."""

    __slots__ = ("_begin", "_keys", "_tickets", "deficit_s", "place", "weight")

    def __init__(self, weight: float, place: int) -> None:
        self.weight = weight
        self.place = place
        """Where its priority has it among its tenants."""
        self.deficit_s = 0.0
        """Execution time that it may still take in this round."""
        self._keys: list[tuple[float, int]] = []
        self._tickets: list[Ticket | None] = []
        self._begin = 0

    def __len__(self) -> int:
        return len(self._keys) - self._begin

    def __iter__(self) -> Iterator[Ticket]:
        for ticket in self._tickets[self._begin :]:
            if ticket is not None:
                yield ticket

    def at(self, place: int) -> Ticket:
        """The ticket with so many before it."""
        ticket = self._tickets[self._begin + place]
        assert ticket is not None
        return ticket

    def before(self, key: float) -> int:
        """How many are due no later than that."""
        keys = self._keys
        if keys[-1][0] <= key:
            return len(keys) - self._begin
        return bisect_left(keys, (key, _LAST_NUMBER), self._begin) - self._begin

    def is_patient(self, since: float) -> bool:
        """Whether the last one may go before the first one: if that came after some time, and no
        deadlines say otherwise."""
        first = self.at(0)
        if first.came_at < since or first.deadline != NO_DEADLINE:
            return False
        return self.last().deadline == NO_DEADLINE

    def last(self) -> Ticket:
        """The one that is due last."""
        ticket = self._tickets[-1]
        assert ticket is not None
        return ticket

    def add(self, ticket: Ticket) -> None:
        """Sort a ticket in; most come in order and are put at the end."""
        key = (ticket.key, ticket.number)
        keys = self._keys
        if not keys or keys[-1] < key:
            keys.append(key)
            self._tickets.append(ticket)
            return
        place = bisect_left(keys, key, self._begin)
        keys.insert(place, key)
        self._tickets.insert(place, ticket)

    def remove(self, ticket: Ticket) -> None:
        """Take a ticket out that is in."""
        begin = self._begin
        place = bisect_left(self._keys, (ticket.key, ticket.number), begin)
        if place != begin:
            del self._keys[place]
            del self._tickets[place]
            return
        self._tickets[begin] = None
        self._begin = begin = begin + 1
        if begin >= _COMPACT and begin * 2 > len(self._keys):
            del self._keys[:begin]
            del self._tickets[:begin]
            self._begin = 0


class Level:
    """The tenants of one priority that have tickets waiting, in the order of their turns."""

    __slots__ = (
        "_cursor", "_longest", "_quantum_s", "_ring", "_tenants", "_turns", "count", "passed_s",
        "weight", "work_s",
    )  # fmt: skip

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.passed_s = 0.0
        """Execution time that it has had, divided by its weight (stride scheduling)."""
        self.count = 0
        """Tickets that wait."""
        self.work_s = 0.0
        """What they are estimated to take, one after the other, on a usual backend."""
        self._tenants: dict[str, TenantQueue] = {}
        self._turns: deque[TenantQueue] = deque()
        """Those in `_tenants`, and some that are empty by now."""
        self._ring: list[TenantQueue] = []
        """Those in `_tenants` in any order, for samples."""
        self._cursor = 0
        self._quantum_s = 0.0
        """At least what the largest ticket takes: then each turn serves one at least."""
        self._longest: TenantQueue | None = None

    @property
    def tenants(self) -> int:
        """How many tenants wait."""
        return len(self._ring)

    def __iter__(self) -> Iterator[Ticket]:
        for queue in self._ring:
            yield from queue

    def add(self, ticket: Ticket, weight: float) -> None:
        """A ticket waits from now on, of a tenant of some weight."""
        queue = self._tenants.get(ticket.tenant)
        if queue is None:
            queue = TenantQueue(weight, len(self._ring))
            self._tenants[ticket.tenant] = queue
            self._ring.append(queue)
            self._turns.append(queue)
        self._quantum_s = max(self._quantum_s, ticket.work_s / queue.weight)
        self.count += 1
        self.work_s += ticket.work_s
        queue.add(ticket)

    def turn(self) -> TenantQueue:
        """The tenant whose turn it is; some ticket waits. Asking again changes nothing."""
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

    def after(self, key: float) -> Ticket | None:
        """The first ticket of a tenant that is due later: of the tenant whose turn it is, or of a
        few others; None where they have none."""
        for queue in (self.turn(), *self._ring[:_LOOKED_AT]):
            place = queue.before(key)
            if place < len(queue):
                return queue.at(place)
        return None

    def nth(self, place: int) -> Ticket:
        """About the ticket with so many before it, of the tenant whose turn it is."""
        queue = self.turn()
        return queue.at(min(place // len(self._ring), len(queue) - 1))

    def serve(self, ticket: Ticket) -> None:
        """A ticket begins: its tenant and its priority pay for it."""
        self.passed_s += ticket.work_s / self.weight
        if len(self._ring) > 1:
            queue = self._tenants[ticket.tenant]
            debt = -self._quantum_s * queue.weight
            queue.deficit_s = max(queue.deficit_s - ticket.work_s, debt)
        self.remove(ticket)

    def remove(self, ticket: Ticket) -> None:
        """A ticket waits no more."""
        queue = self._tenants[ticket.tenant]
        queue.remove(ticket)
        self.count -= 1
        self.work_s -= ticket.work_s
        if queue:
            return
        del self._tenants[ticket.tenant]
        last = self._ring.pop()
        if last is not queue:
            self._ring[queue.place] = last
            last.place = queue.place
        if self._longest is queue:
            self._longest = None
        if not self.count:
            self._turns.clear()
            self.work_s = self._quantum_s = 0.0
        elif len(self._turns) > 2 * len(self._ring) + _SPARE:
            self._turns = deque(each for each in self._turns if each)

    def ahead(self, tenant: str, key: float) -> int:
        """How many would be served before a tenant's ticket with a key."""
        queue = self._tenants.get(tenant)
        before = 0 if queue is None else queue.before(key)
        others = len(self._ring) - (queue is not None)
        return min(before + (before + 1) * others, self.count)

    def work_of(self, count: int) -> float:
        """Execution time of so many of those that wait."""
        return self.work_s * count / self.count if count else 0.0

    def waiting_of(self, tenant: str) -> int:
        """How many tickets of a tenant wait."""
        queue = self._tenants.get(tenant)
        return 0 if queue is None else len(queue)

    def longest(self) -> TenantQueue:
        """A tenant of which about the most tickets wait; some ticket waits."""
        ring = self._ring
        best = self._longest or ring[0]
        for _ in range(min(_LOOKED_AT, len(ring))):
            self._cursor = (self._cursor + 1) % len(ring)
            if len(ring[self._cursor]) > len(best):
                best = ring[self._cursor]
        self._longest = best
        return best


class WaitingQueue:
    """All tickets of one model queue that wait."""

    __slots__ = ("_levels", "_numbers", "_passed_s", "_rules", "_was_starved", "count")

    def __init__(self, rules: QueueRules) -> None:
        self.count = 0
        """Tickets that wait."""
        self._levels: dict[int, Level] = {}
        """By priority; those that have had a ticket."""
        self._numbers: list[int] = []
        """The priorities in `_levels`, in order."""
        self._passed_s = 0.0
        """`Level.passed_s` of the level that was served last."""
        self._was_starved = False
        """The last turn was one out of order."""
        self._rules = rules

    def __iter__(self) -> Iterator[Ticket]:
        for level in self._levels.values():
            yield from level

    def by_priority(self) -> dict[int, int]:
        """How many wait, by priority."""
        return {number: self._levels[number].count for number in self._numbers}

    def oldest_at(self) -> float:
        """When the one came that has waited longest; some ticket waits. Looks at all."""
        return min([ticket.joined_at for ticket in self])

    def add(self, ticket: Ticket) -> None:
        """A ticket waits from now on. `work_s` is what it pays when it begins."""
        number = level_of(ticket.priority)
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = Level(self._weight(number))
            insort(self._numbers, number)
        if not level.count and level.passed_s < self._passed_s:
            # What it left unused while it had nothing is not saved up.
            level.passed_s = self._passed_s
        ticket.key = self.key(ticket)
        ticket.is_waiting = True
        level.add(ticket, self._rules.tenant_weights.get(ticket.tenant, 1.0))
        self.count += 1

    def ahead(self, ticket: Ticket) -> tuple[int, float]:
        """How many would be served before a ticket that is not in yet, and their execution time as
        it was estimated when they came."""
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
        """When a ticket counts as due."""
        wanted_s = _PATIENCE * ticket.work_s
        patience_s = wanted_s if wanted_s < _MOST_PATIENCE_S else _MOST_PATIENCE_S
        due = ticket.came_at + _UNNAMED_S + patience_s
        deadline = ticket.deadline
        return due if due < deadline else deadline

    def _weight(self, number: int) -> float:
        return self._rules.weights.get(number, 0.5**number)

    def level(self, now: float) -> Level:
        """The priority whose turn it is; some ticket waits. Asking again changes nothing."""
        levels = self._levels
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
            elif level.turn().at(0).came_at < since:
                return level
        assert first is not None
        return first

    def urgency(self, now: float) -> tuple[int, float]:
        """How the ticket whose turn it is compares with those of other queues for the same
        backends, the least being the first; some ticket waits."""
        ticket = self.level(now).turn().at(0)
        is_level = self._rules.order is Order.WEIGHTED
        if is_level or ticket.came_at < now - self._rules.max_starve_s:
            return 0, ticket.key
        return level_of(ticket.priority), ticket.key

    def most_urgent(self) -> Ticket | None:
        """The next ticket of the highest priority that there is; None where none waits."""
        level = self._levels.get(0)
        return level.turn().at(0) if level is not None and level.count else None

    def nth(self, place: int, now: float) -> Ticket:
        """About the ticket with so many before it; the last one where there are fewer."""
        if self._rules.order is Order.STRICT:
            for number in self._numbers:
                level = self._levels[number]
                if place < level.count:
                    return level.nth(place)
                place -= level.count
        level = self.level(now)
        return level.nth(min(place, level.count - 1))

    def after(self, key: float, now: float) -> Ticket | None:
        """The next ticket, by turns as far as they go, of those that are due later."""
        found = self.level(now).after(key)
        for number in self._numbers:
            if found is None and self._levels[number].count:
                found = self._levels[number].after(key)
        return found

    def highest(self) -> int:
        """The highest priority of those that wait; LOWEST + 1 where nobody waits."""
        for number in self._numbers:
            if self._levels[number].count:
                return number
        return LOWEST + 1

    def serve(self, ticket: Ticket) -> None:
        """A ticket begins."""
        number = level_of(ticket.priority)
        self._was_starved = not self._was_starved and number != self.highest()
        level = self._levels[number]
        self._passed_s = level.passed_s
        level.serve(ticket)
        ticket.is_waiting = False
        self.count -= 1

    def remove(self, ticket: Ticket) -> None:
        """A ticket waits no more, and did not begin."""
        self._levels[level_of(ticket.priority)].remove(ticket)
        ticket.is_waiting = False
        self.count -= 1

    def victim(self, ticket: Ticket) -> Ticket | None:
        """Who makes room for a ticket when the queue is full: the last one of the tenant that has
        the most waiting, in the lowest priority. None: the ticket itself is too many."""
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
