"""Nothing is refused by an estimate that an idle instance, or a quick execution, could still do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count, cycle, repeat
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lb.domain.backend import Backend
from lb.domain.schedule import (
    Capacity,
    Ending,
    QueuePlan,
    RefusalReason,
    RequestClass,
    ScheduleRefused,
    Ticket,
)
from tests.fakes.backends import make_backend
from tests.fakes.relay import new_scheduler

RECENT = 20
"""Executions of one backend that count as recent, as `lb.balancing.cost.WINDOW` has it."""
ROUNDING_S = 1e-9
QUICK_S = 0.008
"""Of quicker executions than that, three side by side, the scheduler learns from some only."""
UNNAMED_S = 5.0
"""A request without a deadline counts as due so long after it came."""


@dataclass(eq=False)
class Server:
    """A backend that runs requests in the order in which they come, and never gives one up."""

    backend: Backend
    instances: int
    factor: float
    queue: deque[Ticket] = field(default_factory=deque)
    running: dict[Ticket, float] = field(default_factory=dict)
    """When each began to execute."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    executed: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether an instance has nothing to do."""
        return len(self.running) < self.instances


@dataclass(frozen=True)
class Refused:
    """A request that was refused before its deadline, and what it could have had."""

    at: float
    deadline: float
    idle: list[str]
    """Backends with an idle instance."""
    possible_at: float
    """When it would have been answered if everything were as quick as the quickest lately."""


class Play:
    """Requests at equal or unequal backends, in virtual time."""

    def __init__(self, factors: tuple[float, ...] = (1.0,), instances: int = 1) -> None:
        """
        Args:
            factors: for each backend, how many times as long as said executions take there.
            instances: of each backend.
        """
        self.servers = [
            Server(make_backend(f"b{number}"), instances, factor)
            for number, factor in enumerate(factors)
        ]
        self.by_backend = {server.backend: server for server in self.servers}
        self.backends = tuple(self.by_backend)
        limit = Capacity(instances, is_auto=True, instances=instances)
        self.plan = QueuePlan(limits={}, default=limit)
        self.scheduler = new_scheduler()
        self.now = 1.0
        self.takes: Iterator[float] = repeat(0.01)
        self.good = 0
        self.late = 0
        self.refused: list[Refused] = []
        self.expired: list[Refused] = []
        """Refused at their deadline."""
        self._numbers = count()
        self._events: list[tuple[float, int, Ticket | None]] = []
        self._waiting: set[Ticket] = set()

    @property
    def is_busy(self) -> bool:
        """Whether anything executes or waits."""
        return bool(self._waiting) or any(server.running for server in self.servers)

    def send(self, deadline_s: float = float("inf")) -> None:
        """A request comes."""
        ticket = Ticket(RequestClass(b"m", b"", self.plan, self.backends), self.now)
        ticket.deadline = self.now + deadline_s
        try:
            backend = self.scheduler.offer(ticket, self.now)
        except ScheduleRefused as refused:
            self._refuse(ticket, refused)
        else:
            if backend is None:
                self._waiting.add(ticket)
            else:
                self._begin(ticket)
        self._settle()

    def one(self, deadline_s: float = float("inf")) -> None:
        """A request comes and ends before anything else happens."""
        self.send(deadline_s)
        while self.is_busy:
            self.step()

    def step(self) -> None:
        """The next thing happens."""
        at, _, ticket = heappop(self._events)
        self.now = max(self.now, at)
        if ticket is not None:
            self._end(ticket)
        self._settle()

    def until(self, at: float) -> None:
        """All that happens before some time happens, and it is that time."""
        while self._events and self._events[0][0] <= at:
            self.step()
        self.now = at

    def _begin(self, ticket: Ticket) -> None:
        assert ticket.backend is not None
        ticket.backend.in_flight += 1
        server = self.by_backend[ticket.backend]
        server.queue.append(ticket)
        self._execute(server)

    def _execute(self, server: Server) -> None:
        while server.queue and server.is_idle:
            ticket = server.queue.popleft()
            server.running[ticket] = self.now
            ends = self.now + server.factor * next(self.takes)
            heappush(self._events, (ends, next(self._numbers), ticket))

    def _end(self, ticket: Ticket) -> None:
        assert ticket.backend is not None
        ticket.backend.in_flight -= 1
        server = self.by_backend[ticket.backend]
        server.executed += 1
        server.recent.append(self.now - server.running.pop(ticket))
        self._execute(server)
        if self.now <= ticket.deadline:
            self.good += 1
        else:
            self.late += 1
        self.scheduler.complete(ticket, self.now, self._ending(ticket))

    def _ending(self, _ticket: Ticket) -> Ending:
        return Ending.GOOD

    def _settle(self) -> None:
        while (ticket := self.scheduler.next_due(self.now)) is not None:
            self._waiting.remove(ticket)
            self._begin(ticket)
        while (ticket := self.scheduler.next_refused(self.now)) is not None:
            self._waiting.remove(ticket)
            assert ticket.refused is not None
            self._refuse(ticket, ticket.refused)
        if self.scheduler.wake_at < float("inf"):
            wake_at = max(self.scheduler.wake_at, self.now + ROUNDING_S)
            heappush(self._events, (wake_at, next(self._numbers), None))

    def _refuse(self, ticket: Ticket, refused: ScheduleRefused) -> None:
        assert refused.refusal is RefusalReason.LATE
        idle = [server.backend.name for server in self.servers if server.is_idle]
        due = min(ticket.deadline, self.now + UNNAMED_S)
        ahead = sum(each.key <= due for each in self._waiting)
        noted = Refused(self.now, ticket.deadline, idle, self._possible_at(ahead))
        (self.expired if self.now >= ticket.deadline else self.refused).append(noted)

    def _possible_at(self, ahead: int) -> float:
        """When a request would end with so many before it that wait, if everything at a backend
        took as long as its quickest execution lately."""
        free: list[tuple[float, float, int]] = []
        for number, server in enumerate(self.servers):
            if len(server.recent) < RECENT or server.is_idle:
                return self.now
            quickest = min(server.recent)
            begun = sorted(max(self.now, at + quickest) for at in server.running.values())
            for _ in server.queue:
                begun.append(begun.pop(0) + quickest)
                begun.sort()
            free += [(at + quickest, quickest, number) for at in begun]
        heapify(free)
        for _ in range(ahead):
            end, quickest, number = free[0]
            heapreplace(free, (end + quickest, quickest, number))
        return free[0][0]

    def check(self) -> None:
        """Assert that each refusal was right."""
        for refused in (*self.refused, *self.expired):
            assert not refused.idle, refused
        for refused in self.refused:
            assert refused.possible_at > refused.deadline - ROUNDING_S, refused


# One client, one request at a time: the pool is idle whenever a request comes.


def test_a_few_slow_requests_have_none_of_the_usual_ones_refused() -> None:
    play = Play()
    for takes_s, times, deadline_s in ((0.1, 60, 1e9), (0.4, 5, 1e9), (0.1, 240, 0.15)):
        play.takes = repeat(takes_s)
        for _ in range(times):
            play.one(deadline_s)
    assert not play.refused
    assert (play.good, play.late) == (305, 0)


@pytest.mark.parametrize(
    ("before_s", "then_s"), [(0.005, 0.2), (0.2, 0.005), (0.01, 0.04), (2.0, 0.02)]
)
def test_times_that_change_have_none_refused(before_s: float, then_s: float) -> None:
    play = Play()
    for takes_s in (before_s, then_s):
        play.takes = repeat(takes_s)
        for _ in range(300):
            play.one(1.3 * takes_s)
            play.now += 0.01
    assert not play.refused
    assert (play.good, play.late) == (600, 0)


class Cutting(Play):
    """Attempts are given up at their deadline, and their backends stop then."""

    def _execute(self, server: Server) -> None:
        while server.queue and server.is_idle:
            ticket = server.queue.popleft()
            server.running[ticket] = self.now
            ends = min(self.now + server.factor * next(self.takes), ticket.deadline + ROUNDING_S)
            heappush(self._events, (ends, next(self._numbers), ticket))

    def _ending(self, ticket: Ticket) -> Ending:
        return Ending.GOOD if self.now <= ticket.deadline else Ending.NEITHER


def learnt(play: Play) -> None:
    """Have all backends known, three of them in turns."""
    for _ in range(100):
        for _ in play.servers:
            play.send()
        while play.is_busy:
            play.step()


@pytest.mark.parametrize("kind", [Play, Cutting])
@pytest.mark.parametrize("deadline_s", [0.021, 0.025, 0.06, 0.079, 0.081])
def test_no_deadline_is_missed_to_find_out_about_a_slow_backend(
    kind: type[Play], deadline_s: float
) -> None:
    play = kind((1.0, 1.0, 4.0))
    play.takes = repeat(0.02)
    learnt(play)
    until = play.now + 300.0
    play.good = play.late = 0
    while play.now < until:
        play.one(deadline_s)
    assert play.good > 10_000
    assert play.late <= 5
    assert not play.refused
    assert not play.expired


def test_attempts_that_are_given_up_are_repeated_more_and_more_rarely() -> None:
    play = Cutting((1.0, 4.0))
    play.takes = repeat(0.02)
    learnt(play)
    slow = play.servers[1]
    play.servers[0].factor = 3.9  # nobody meets the deadline, so the slow one may be tried
    play.good = play.late = 0
    before = slow.executed
    for _ in range(3000):
        play.one(0.06)
    assert slow.executed - before < 100
    assert not play.refused


@pytest.mark.parametrize("kind", [Play, Cutting])
def test_a_slow_backend_that_became_fast_is_found_without_deadlines(kind: type[Play]) -> None:
    play = kind((1.0, 1.0, 4.0))
    play.takes = repeat(0.02)
    learnt(play)
    while play.now < 100.0:
        play.one(0.06)
    slow = play.servers[2]
    slow.factor = 1.0
    until = play.now + 130.0
    while play.now < until:
        play.one()
    before = slow.executed
    for _ in range(300):
        play.one(0.06)
    assert slow.executed - before > 50


def jumps(rng: Random) -> Iterator[float]:
    """Executions that take as long as each other, until all take another time."""
    while True:
        yield from repeat(QUICK_S * 10.0 ** rng.uniform(0, 2), rng.randrange(1, 80))


def drifts(rng: Random) -> Iterator[float]:
    """Executions that take longer and longer, or less and less."""
    takes_s = 0.02
    while True:
        factor = rng.choice((0.9, 0.97, 1.03, 1.1))
        for _ in range(rng.randrange(5, 60)):
            takes_s = min(max(factor * takes_s, QUICK_S), 1.0)
            yield takes_s


def alternates(rng: Random) -> Iterator[float]:
    """Executions that take turns."""
    return cycle([QUICK_S * 10.0 ** rng.uniform(0, 2) for _ in range(rng.randrange(2, 6))])


def first_long(rng: Random) -> Iterator[float]:
    """First executions that take very long."""
    for _ in range(rng.randrange(1, 30)):
        yield rng.uniform(0.2, 0.8)
    yield from varies(rng)


def varies(rng: Random) -> Iterator[float]:
    """Executions that take any time around a mean."""
    while True:
        yield QUICK_S + rng.expovariate(1 / 0.03)


def rarely_long(rng: Random) -> Iterator[float]:
    """Executions of which a few take very long."""
    while True:
        yield 0.5 if rng.random() < 0.05 else QUICK_S * rng.uniform(1.0, 1.1)


REGIMES: dict[str, Callable[[Random], Iterator[float]]] = {
    each.__name__: each for each in (jumps, drifts, alternates, first_long, varies, rarely_long)
}


class Ahead:
    """An iterator that can be asked what comes next."""

    def __init__(self, source: Iterator[float]) -> None:
        self.source = source
        self.next_s = next(source)

    def __iter__(self) -> Iterator[float]:
        return self

    def __next__(self) -> float:
        found, self.next_s = self.next_s, next(self.source)
        return found


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    regime=st.sampled_from(tuple(REGIMES)),
    factors=st.sampled_from(((1.0,), (1.0, 1.0), (1.0, 2.0, 8.0), (1.0,) * 14)),
    instances=st.sampled_from((1, 3)),
    load=st.sampled_from((0.3, 0.9, 2.0)),
    tight=st.sampled_from((0.5, 1.05, 1.5, 4.0)),
)
@example(seed=0, regime="jumps", factors=(1.0, 2.0, 8.0), instances=1, load=2.0, tight=1.5)
def test_whatever_is_refused_could_not_be_answered_by_anybody(
    seed: int, regime: str, factors: tuple[float, ...], instances: int, load: float, tight: float
) -> None:
    rng = Random(seed)
    play = Play(factors, instances)
    play.takes = takes = Ahead(REGIMES[regime](rng))
    for _ in range(400):
        deadline_s = tight * takes.next_s * rng.uniform(0.9, 1.5)
        play.send(deadline_s if rng.random() < 0.8 else float("inf"))
        speed = sum(instances / factor for factor in factors)
        play.until(play.now + rng.expovariate(load * speed / takes.next_s))
    while play.is_busy:
        play.step()
    play.check()


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    regime=st.sampled_from(tuple(REGIMES)),
    factors=st.sampled_from(((1.0,), (1.0, 2.0, 8.0))),
    tight=st.sampled_from((0.3, 1.05, 1.5)),
)
def test_nothing_is_refused_of_one_client(
    seed: int, regime: str, factors: tuple[float, ...], tight: float
) -> None:
    rng = Random(seed)
    play = Play(factors)
    play.takes = takes = Ahead(REGIMES[regime](rng))
    for _ in range(300):
        play.one(tight * takes.next_s)
        play.now += rng.choice((0.0, 0.001, 0.1, 20.0))
    assert not play.refused
    assert not play.expired
