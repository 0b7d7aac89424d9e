"""The scheduler where backends come, differ from the others, and go."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush

import pytest

from lb.balancing.model_backend_index import LARGE
from lb.balancing.scheduler import Scheduler
from lb.control.plans import LimitBy, LineRule, Planner, PlanRules
from lb.domain.backend import Backend, BackendSpec, parse_address
from lb.domain.model import ModelFacts
from lb.domain.schedule import Capacity, Ending, QueuePlan, RequestClass, Ticket
from tests.fakes.backends import make_backend, make_backends


class Tritons:
    """Backends that execute so many requests at once, on a clock of their own."""

    def __init__(
        self, plan: QueuePlan, takes_s: dict[Backend, float], instances: dict[Backend, int]
    ) -> None:
        self.scheduler = Scheduler()
        self.plan = plan
        self.takes_s = takes_s
        self.instances = instances
        self.eligible: tuple[Backend, ...] = tuple(takes_s)
        self.now = 0.0
        self.began: Counter[Backend] = Counter()
        self.ended: Counter[Backend] = Counter()
        self._inside: dict[Backend, list[Ticket]] = {each: [] for each in takes_s}
        self._ends: list[tuple[float, int, Ticket]] = []

    def offer(self, model: bytes = b"model") -> None:
        ticket = Ticket(RequestClass(model, b"", self.plan, self.eligible), self.now)
        if self.scheduler.offer(ticket, self.now) is not None:
            self._begin(ticket)

    def _begin(self, ticket: Ticket) -> None:
        backend = ticket.backend
        assert backend is not None
        self.began[backend] += 1
        self._inside[backend].append(ticket)
        if len(self._inside[backend]) <= self.instances[backend]:
            self._execute(ticket, backend)

    def _execute(self, ticket: Ticket, backend: Backend) -> None:
        heappush(self._ends, (self.now + self.takes_s[backend], ticket.number, ticket))

    def proceed(self, until: float) -> None:
        """Let end what ends, and begin what begins."""
        while True:
            at = min(self._ends[0][0] if self._ends else until, self.scheduler.wake_at, until)
            self.now = max(self.now, at)
            while self._ends and self._ends[0][0] <= self.now:
                self._end(heappop(self._ends)[2])
            while (ticket := self.scheduler.next_due(self.now)) is not None:
                self._begin(ticket)
            if self.now >= until:
                return

    def _end(self, ticket: Ticket) -> None:
        backend = ticket.backend
        assert backend is not None
        inside = self._inside[backend]
        inside.remove(ticket)
        self.ended[backend] += 1
        self.scheduler.complete(ticket, self.now, Ending.GOOD)
        if len(inside) >= self.instances[backend]:
            self._execute(inside[self.instances[backend] - 1], backend)

    def teach(self, backend: Backend, rounds: int = 8) -> None:
        everywhere, self.eligible = self.eligible, (backend,)
        for _ in range(rounds):
            self.offer()
            self.proceed(self.now + 2 * self.takes_s[backend])
        self.eligible = everywhere


@pytest.mark.parametrize(
    "limit",
    [
        Capacity(16, is_auto=True, instances=2, max_batch=8),
        Capacity(2, is_auto=True, instances=2),
        Capacity(is_shared=True),
    ],
)
def test_one_new_backend_that_warms_up_does_not_stall_the_others(limit: Capacity) -> None:
    backends = [make_backend(f"b{number}") for number in range(LARGE + 2)]
    *old, new = backends
    takes_s = dict.fromkeys(old, 0.05) | {new: 10.0}
    tritons = Tritons(QueuePlan(limits={}, default=limit), takes_s, dict.fromkeys(backends, 2))
    for backend in old:
        tritons.teach(backend)
    start = tritons.now
    taught = tritons.began.total()
    for number in range(300):
        tritons.proceed(start + number * 0.004)
        tritons.offer()
    tritons.proceed(start + 3.0)
    assert tritons.began[new]
    assert tritons.began.total() - taught == 300
    assert tritons.ended.total() - taught > 250


def test_a_number_of_a_backend_says_what_it_executes_at_once() -> None:
    facts = ModelFacts(is_stateful=False, is_decoupled=False, instances=1)
    address = parse_address("127.0.0.1:1")
    big = Backend(BackendSpec(name="big", http=address, concurrency=4))
    planner = Planner(PlanRules(usual=LineRule(by=LimitBy.CONFIGURATION)))
    planner.follow([big])
    plan = planner.plan(b"model", facts)
    assert plan is not None
    tritons = Tritons(plan, {big: 0.2}, {big: 4})
    for number in range(300):
        tritons.proceed(number * 0.04)
        tritons.offer()
    tritons.proceed(13.0)
    assert tritons.ended.total() > 230


def test_a_number_is_kept_exactly_where_some_backends_are_slower() -> None:
    fast, slow = backends = (make_backend("fast"), make_backend("slow"))
    plan = QueuePlan(limits={}, default=Capacity(3))
    tritons = Tritons(plan, {fast: 0.1, slow: 0.2}, dict.fromkeys(backends, 1))
    for backend in backends:
        tritons.teach(backend)
    start = tritons.now
    seen = []
    for number in range(200):
        tritons.proceed(start + number * 0.05)
        tritons.offer()
        if number >= 100:
            seen.append(tritons.began[fast] - tritons.ended[fast])
    assert set(seen) == {3}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_fastest_backend_is_forgotten_with_what_was_learnt_of_it(is_restarted: bool) -> None:
    fast, *slow = backends = tuple(make_backend(f"b{number}") for number in range(3))
    takes_s = {fast: 0.005} | dict.fromkeys(slow, 0.04)
    limit = Capacity(1, is_auto=True)
    tritons = Tritons(QueuePlan(limits={}, default=limit), takes_s, dict.fromkeys(backends, 1))
    for backend in backends:
        tritons.teach(backend)
    scheduler = tritons.scheduler
    scheduler.forget(fast)
    if is_restarted:
        scheduler.follow(lambda ticket: (ticket.plan, ticket.eligible), tritons.now)
    tritons.eligible = tuple(slow)
    for _ in range(20):
        tritons.offer()
        tritons.proceed(tritons.now + 0.1)
    (model_queue,) = scheduler._model_queues.values()
    assert (
        model_queue.stats.best is model_queue.model_backends[slow[0]]
        or model_queue.stats.best is model_queue.model_backends[slow[1]]
    )
    assert model_queue.stats.best_s == pytest.approx(0.04)


@pytest.mark.parametrize("models", [2, 3, 4, 8])
def test_models_that_take_turns_all_learn_how_long_their_requests_take(models: int) -> None:
    names = [b"m%d" % number for number in range(models)]
    takes_s = dict.fromkeys(make_backends(0, 0), 0.001)
    limit = Capacity(1, is_auto=True)
    tritons = Tritons(QueuePlan(limits={}, default=limit), takes_s, dict.fromkeys(takes_s, 1))
    for _ in range(100):
        for name in names:
            tritons.offer(name)
            tritons.proceed(tritons.now + 0.002)
    for model_queue in tritons.scheduler._model_queues.values():
        assert model_queue.stats.tail_s > 0.0
