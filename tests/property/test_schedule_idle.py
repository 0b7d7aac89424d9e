"""Nobody waits for long while an equal backend is idle, whatever requests take and how they end."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from statistics import median

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lb.domain.schedule import Capacity, Ending, QueuePlan, RequestClass, Ticket
from tests.fakes.backends import make_backend
from tests.fakes.relay import new_scheduler

REQUESTS = 2000
TIMES_S: dict[str, Callable[[Random], float]] = {
    "alike": lambda _: 0.02,
    "any": lambda rng: rng.expovariate(1 / 0.02),
    "a few long": lambda rng: 0.002 if rng.random() < 0.95 else 0.5,
}


class Play:
    """Requests that come at random to equal backends, each of which runs them in order."""

    def __init__(self, seed: int, backends: int, instances: int, times: str, failing: float):
        self.rng = Random(seed)
        self.takes = TIMES_S[times]
        self.failing = failing
        self.instances = instances
        self.backends = tuple(make_backend(f"b{number}") for number in range(backends))
        limit = Capacity(instances, is_auto=True, instances=instances)
        self.plan = QueuePlan(limits={}, default=limit)
        self.scheduler = new_scheduler()
        self.now = 1.0
        self.numbers = count()
        self.events: list[tuple[float, int, Ticket | None]] = []
        self.inside: dict[object, list[Ticket]] = {each: [] for each in self.backends}
        self.waiting: set[Ticket] = set()
        self.in_vain_s = 0.0
        """What all together have waited while some backend had nothing to do."""
        self.usual_s = 0.0
        self.took_s: list[float] = []
        self.done = 0

    def at(self, time: float, ticket: Ticket | None = None) -> None:
        heappush(self.events, (time, next(self.numbers), ticket))

    def run(self, load: float) -> None:
        self.usual_s = sum(self.takes(self.rng) for _ in range(10_000)) / 10_000
        rate = load * len(self.backends) * self.instances / self.usual_s
        came, due = 0, self.now
        while came < REQUESTS or self.events:
            if came < REQUESTS and (not self.events or due <= self.events[0][0]):
                self.pass_time(due)
                due += self.rng.expovariate(rate)
                came += 1
                self.come()
            else:
                at, _, ticket = heappop(self.events)
                self.pass_time(at)
                if ticket is not None:
                    self.end(ticket)
            self.settle()
        assert not self.waiting
        assert self.done == REQUESTS

    def pass_time(self, until: float) -> None:
        if not all(self.inside.values()):
            self.in_vain_s += len(self.waiting) * (until - self.now)
        self.now = max(self.now, until)

    def come(self) -> None:
        ticket = Ticket(RequestClass(b"m", b"", self.plan, self.backends), self.now)
        if self.scheduler.offer(ticket, self.now) is None:
            self.waiting.add(ticket)
        else:
            self.begin(ticket)

    def begin(self, ticket: Ticket) -> None:
        assert ticket.backend is not None
        ticket.backend.in_flight += 1
        inside = self.inside[ticket.backend]
        inside.append(ticket)
        if len(inside) <= self.instances:
            self.at(self.now + self.takes(self.rng), ticket)

    def end(self, ticket: Ticket) -> None:
        assert ticket.backend is not None
        ticket.backend.in_flight -= 1
        self.took_s.append(self.now - ticket.arrived_at)
        inside = self.inside[ticket.backend]
        inside.remove(ticket)
        if len(inside) >= self.instances:
            self.at(self.now + self.takes(self.rng), inside[self.instances - 1])
        is_bad = self.rng.random() < self.failing
        self.scheduler.complete(ticket, self.now, Ending.FAILED if is_bad else Ending.GOOD)
        self.done += 1

    def settle(self) -> None:
        while (ticket := self.scheduler.next_due(self.now)) is not None:
            self.waiting.remove(ticket)
            self.begin(ticket)
        assert self.scheduler.next_refused(self.now) is None
        if self.waiting and self.scheduler.wake_at < float("inf"):
            self.at(max(self.scheduler.wake_at, self.now + 1e-4))


@settings(deadline=None, max_examples=12)
@given(
    seed=st.integers(0, 1000),
    backends=st.sampled_from((2, 3, 14)),
    instances=st.sampled_from((1, 4)),
    times=st.sampled_from(tuple(TIMES_S)),
    failing=st.sampled_from((0.0, 0.05, 0.1)),
)
@example(seed=0, backends=3, instances=1, times="alike", failing=0.05)
@example(seed=0, backends=3, instances=1, times="any", failing=0.1)
@example(seed=892, backends=3, instances=4, times="a few long", failing=0.05)
@example(seed=3, backends=14, instances=1, times="a few long", failing=0.0)
def test_nobody_waits_for_long_while_a_backend_is_idle(
    seed: int, backends: int, instances: int, times: str, failing: float
) -> None:
    play = Play(seed, backends, instances, times, failing)
    play.run(load=0.9)
    assert play.in_vain_s < 0.3 * REQUESTS * play.usual_s


@pytest.mark.parametrize("failing", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("times", ["alike", "any"])
def test_requests_that_fail_everywhere_cost_the_others_no_more_than_a_few_executions(
    times: str, failing: float
) -> None:
    play = Play(0, 3, 1, times, failing)
    play.run(load=0.8)
    assert median(play.took_s) < 0.1


@pytest.mark.parametrize("instances", [1, 4])
@pytest.mark.parametrize("times", ["alike", "any"])
def test_nobody_waits_longer_because_a_backend_has_just_come(times: str, instances: int) -> None:
    p99_s = []
    for share in (1.0, 0.1):
        play = Play(0, 2, instances, times, 0.0)
        play.backends[0].set_share(share)
        play.run(load=0.7)
        p99_s.append(sorted(play.took_s)[-REQUESTS // 100])
    even_s, ramping_s = p99_s
    assert ramping_s < 1.2 * even_s
