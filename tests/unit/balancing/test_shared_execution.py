"""Model backends of which nobody knows how many requests keep them busy."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from lb.balancing.scheduler import Scheduler
from lb.domain.backend import Backend
from lb.domain.schedule import (
    Capacity,
    Ending,
    QueuePlan,
    QueueRules,
    RefusalReason,
    RequestClass,
    ScheduleRefused,
    Ticket,
)
from tests.fakes.backends import make_backend


class Engines:
    """Backends that share their time equally among all that is there, on a clock of their own."""

    def __init__(self, *work_s: float, rules: QueueRules | None = None) -> None:
        self.scheduler = Scheduler()
        self.backends = tuple(make_backend(f"b{number}") for number in range(len(work_s)))
        self.work_s = dict(zip(self.backends, work_s, strict=True))
        self.plan = QueuePlan(
            limits={}, default=Capacity(is_shared=True), rules=rules or QueueRules(max_waiting=0)
        )
        self.now = 0.0
        self.latencies: list[float] = []
        self.began: Counter[Backend] = Counter()
        self._left: dict[Backend, dict[Ticket, float]] = {each: {} for each in self.backends}

    def offer(self, deadline_s: float = 1e9, priority: int = 0) -> Backend:
        ticket = Ticket(RequestClass(b"model", b"", self.plan, self.backends), self.now)
        ticket.deadline = self.now + deadline_s
        ticket.priority = priority
        backend = self.scheduler.offer(ticket, self.now)
        assert backend is not None, "nothing waits here"
        backend.in_flight += 1
        self.began[backend] += 1
        self._left[backend][ticket] = self.work_s[backend]
        return backend

    def proceed(self, until: float) -> None:
        while True:
            ends = [
                (self.now + min(left.values()) * len(left), number)
                for number, left in enumerate(self._left.values())
                if left
            ]
            at, number = min(ends, default=(until, -1))
            at = min(at, until)
            for left in self._left.values():
                for ticket in left:
                    left[ticket] -= (at - self.now) / len(left)
            self.now = at
            if at == until:
                return
            backend = self.backends[number]
            ticket = min(self._left[backend], key=self._left[backend].__getitem__)
            del self._left[backend][ticket]
            backend.in_flight -= 1
            self.scheduler.complete(ticket, self.now, Ending.GOOD)
            self.latencies.append(self.now - ticket.arrived_at)

    def play(self, rate: float, seconds: float) -> None:
        rng = Random(1)
        end = self.now + seconds
        at = self.now
        while (at := at + rng.expovariate(rate)) < end:
            self.proceed(at)
            self.offer()
        self.proceed(end)


def test_each_gets_as_much_as_it_is_fast() -> None:
    engines = Engines(0.005, 0.010, 0.040)
    engines.play(rate=260.0, seconds=40.0)
    first, second, third = (engines.began[each] for each in engines.backends)
    assert 1.5 < first / second < 2.7
    assert second > 2.5 * third > 0
    assert sorted(engines.latencies)[int(0.99 * len(engines.latencies))] < 0.1


def test_equal_ones_get_equal_shares() -> None:
    engines = Engines(*(0.020,) * 4)
    engines.play(rate=150.0, seconds=20.0)
    shares = [engines.began[each] for each in engines.backends]
    assert max(shares) < 1.1 * min(shares)


def test_a_burst_on_those_that_nothing_is_known_of_is_shared_equally() -> None:
    engines = Engines(0.01, 0.01, 0.01)
    for _ in range(30):
        engines.offer()
    assert set(engines.began.values()) == {10}


def test_nothing_waits_however_many_there_are() -> None:
    engines = Engines(0.01, 0.01)
    engines.play(rate=150.0, seconds=1.0)
    for _ in range(1000):
        engines.offer()
    assert sum(backend.in_flight for backend in engines.backends) >= 1000


def test_reserving_keeps_nothing_from_the_others_where_nothing_can_be_kept() -> None:
    engines = Engines(0.01, 0.01, rules=QueueRules(max_waiting=0, reserved=0.5))
    for _ in range(20):
        engines.offer(priority=2)
    assert sum(engines.began.values()) == 20


def test_only_what_is_late_already_is_refused() -> None:
    engines = Engines(0.01)
    engines.play(rate=60.0, seconds=1.0)
    engines.offer(deadline_s=0.001)
    with pytest.raises(ScheduleRefused) as refused:
        engines.offer(deadline_s=0.0)
    assert refused.value.refusal is RefusalReason.LATE


def test_one_that_becomes_slow_gets_less_and_comes_back() -> None:
    engines = Engines(0.01, 0.01)
    engines.play(rate=100.0, seconds=5.0)
    slow, _ = engines.backends
    engines.work_s[slow] = 0.05
    engines.play(rate=60.0, seconds=5.0)
    engines.began.clear()
    engines.play(rate=60.0, seconds=10.0)
    assert engines.began[slow] < 0.35 * sum(engines.began.values())
    engines.work_s[slow] = 0.01
    engines.play(rate=100.0, seconds=20.0)
    engines.began.clear()
    engines.play(rate=100.0, seconds=10.0)
    assert engines.began[slow] > 0.4 * sum(engines.began.values())
