"""Properties of the scheduler, whatever is asked of it in whatever order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lb.domain.backend import Backend
from lb.domain.schedule import (
    Capacity,
    Ending,
    Order,
    QueuePlan,
    QueueRules,
    RequestClass,
    ScheduleRefused,
    Ticket,
)
from tests.fakes.backends import make_backend
from tests.fakes.relay import new_scheduler

SPEEDS_S = (0.002, 0.01, 0.05)
MODELS = (b"resnet", b"bert")
STEPS = ("offer", "offer", "offer", "over", "over", "over", "again", "drop", "snapshot", "reload")


@st.composite
def rules(draw: st.DrawFn) -> QueueRules:
    return QueueRules(
        max_waiting=draw(st.sampled_from((2, 5, 1000))),
        max_wait_s=draw(st.sampled_from((0.05, float("inf")))),
        order=draw(st.sampled_from(Order)),
        reserved=draw(st.sampled_from((0.0, 0.3))),
        max_starve_s=draw(st.sampled_from((0.1, 30.0))),
    )


@st.composite
def limits(draw: st.DrawFn) -> Capacity:
    instances = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(("number", "auto", "adaptive", "none", "shared")))
    batch = draw(st.sampled_from((0, 4)))
    if kind == "shared":
        return Capacity(is_shared=True)
    if kind == "none":
        return Capacity(0, instances=instances, max_batch=batch)
    number = draw(st.integers(1, 4)) if kind == "number" else instances * max(1, batch)
    return Capacity(
        number,
        is_auto=kind == "auto",
        is_adaptive=kind == "adaptive",
        instances=instances,
        max_batch=batch,
    )


class Driver:
    """Does what the relays do, and keeps its own accounts."""

    def __init__(self, limits: list[Capacity], rules: QueueRules, cap: int) -> None:
        self.backends = tuple(
            make_backend(f"b{number}", max_in_flight=cap) for number in range(len(limits))
        )
        plan_limits = dict(zip(self.backends, limits, strict=True))
        self.rules = rules
        self.plans = [QueuePlan(limits=plan_limits, rules=rules) for _ in MODELS]
        self.known: dict[tuple[int, tuple[Backend, ...]], RequestClass] = {}
        self.scheduler = new_scheduler()
        self.now = 1.0
        self.waiting: set[Ticket] = set()
        self.running: list[Ticket] = []
        self.accounted = 0
        self.offered = 0

    def offer(self, draw: st.DataObject) -> None:
        model = draw.draw(st.integers(0, len(MODELS) - 1))
        some = draw.draw(st.sets(st.sampled_from(self.backends), min_size=1))
        eligible = tuple(backend for backend in self.backends if backend in some)
        ticket = Ticket(self.request_class(model, eligible), self.now)
        ticket.priority = draw.draw(st.integers(0, 2))
        ticket.tenant = draw.draw(st.sampled_from(("", "a", "b")))
        ticket.rows = draw.draw(st.sampled_from((1, 8)))
        ticket.deadline = self.now + draw.draw(st.sampled_from((0.02, 0.2, float("inf"))))
        self.offered += 1
        self.place(ticket)

    def place(self, ticket: Ticket) -> None:
        try:
            backend = self.scheduler.offer(ticket, self.now)
        except ScheduleRefused:
            self.accounted += 1
            return
        if backend is None:
            self.waiting.add(ticket)
        else:
            self.begin(ticket)

    def begin(self, ticket: Ticket) -> None:
        backend = ticket.backend
        assert backend is not None
        assert backend in ticket.eligible
        assert ticket not in self.running
        backend.in_flight += 1
        assert not backend.max_in_flight or backend.in_flight <= backend.max_in_flight
        self.running.append(ticket)
        limit = ticket.plan.limit(backend)
        if limit.concurrency and not limit.is_auto and not limit.is_adaptive:
            model_backend = [
                t for t in self.running if t.backend is backend and t.model == ticket.model
            ]
            assert len(model_backend) <= limit.concurrency

    def step(self, draw: st.DataObject) -> None:
        match draw.draw(st.sampled_from(STEPS)):
            case "offer":
                self.offer(draw)
            case "over" if self.running:
                ticket = self.running.pop(draw.draw(st.integers(0, len(self.running) - 1)))
                self.end(ticket, draw.draw(st.sampled_from(Ending)))
            case "drop" if self.waiting:
                ticket = min(self.waiting, key=lambda each: each.number)
                self.waiting.remove(ticket)
                self.scheduler.drop(ticket)
                assert not ticket.is_waiting
                self.accounted += 1
            case "again" if self.running:
                ticket = self.running.pop(draw.draw(st.integers(0, len(self.running) - 1)))
                ticket.tried = (*ticket.tried, _at(ticket))
                ticket.request_class = self.request_class(
                    MODELS.index(ticket.model), ticket.eligible
                )
                self.end(ticket, Ending.FAILED)
                self.accounted -= 1
                self.place(ticket)
            case "snapshot":
                self.follow(is_gone=draw.draw(st.booleans()))
            case "reload":
                some = {each: draw.draw(limits()) for each in self.backends}
                self.plans = [QueuePlan(limits=some, rules=self.rules) for _ in MODELS]
                if draw.draw(st.booleans()):
                    self.offer(draw)
                self.follow(is_gone=False)
        self.now += draw.draw(st.sampled_from((0.0, 0.001, 0.02)))
        if draw.draw(st.booleans()):
            self.settle()

    def request_class(self, model: int, eligible: tuple[Backend, ...]) -> RequestClass:
        """The same object as long as the plan is."""
        request_class = self.known.get((model, eligible))
        if request_class is None or request_class.plan is not self.plans[model]:
            request_class = RequestClass(MODELS[model], b"", self.plans[model], eligible)
            self.known[model, eligible] = request_class
        return request_class

    def plan(self, ticket: Ticket) -> QueuePlan:
        return self.plans[MODELS.index(ticket.model)]

    def follow(self, *, is_gone: bool) -> None:
        for ticket in self.scheduler.follow(
            lambda each: None if is_gone else (self.plan(each), self.backends), self.now
        ):
            self.waiting.remove(ticket)
            self.accounted += 1

    def end(self, ticket: Ticket, ending: Ending) -> None:
        backend = ticket.backend
        assert backend is not None
        backend.in_flight -= 1
        self.scheduler.complete(ticket, self.now, ending)
        self.accounted += 1

    def settle(self) -> None:
        while (ticket := self.scheduler.next_due(self.now)) is not None:
            self.waiting.remove(ticket)
            self.begin(ticket)
            if self.scheduler.wake_at > self.now:
                assert self.scheduler.next_due(self.now) is None
                assert self.scheduler.next_refused(self.now) is None
        while (ticket := self.scheduler.next_refused(self.now)) is not None:
            self.waiting.remove(ticket)
            assert ticket.refused is not None
            self.accounted += 1

    def finish(self) -> None:
        """Let everything end."""
        for _ in range(100_000):
            self.settle()
            if self.running:
                ticket = self.running.pop(0)
                speed = SPEEDS_S[self.backends.index(_at(ticket)) % len(SPEEDS_S)]
                self.now += speed
                self.end(ticket, Ending.GOOD)
            elif self.waiting:
                # Nothing runs, so something must begin or be refused by itself, and soon.
                assert self.scheduler.wake_at < self.now + 60.0
                self.now = max(self.now, self.scheduler.wake_at)
            else:
                break
        assert self.accounted == self.offered
        assert not self.waiting


def _at(ticket: Ticket) -> Backend:
    assert ticket.backend is not None
    return ticket.backend


@settings(deadline=None, max_examples=60)
@given(
    limits=st.lists(limits(), min_size=1, max_size=4),
    rules=rules(),
    cap=st.sampled_from((0, 0, 2)),
    data=st.data(),
)
def test_every_ticket_begins_once_or_is_refused_and_no_limit_is_passed(
    limits: list[Capacity], rules: QueueRules, cap: int, data: st.DataObject
) -> None:
    driver = Driver(limits, rules, cap)
    for _ in range(data.draw(st.integers(1, 40))):
        driver.step(data)
    driver.finish()
    assert all(model_backend.in_flight == 0 for model_backend in driver.scheduler.model_backends())
    assert all(
        not any(model_queue.waiting.values())
        for model_queue in driver.scheduler.model_queues(driver.now)
    )


@settings(deadline=None, max_examples=40)
@given(count=st.integers(1, 5), waiting=st.integers(1, 30), limit=st.integers(1, 3))
def test_equal_backends_are_never_idle_while_somebody_waits(
    count: int, waiting: int, limit: int
) -> None:
    driver = Driver([Capacity(limit)] * count, QueueRules(), 0)
    free_at = dict.fromkeys(driver.backends, 0.0)
    ends: dict[Ticket, float] = {}
    for _ in range(count * limit + waiting):
        ticket = Ticket(driver.request_class(0, driver.backends), driver.now)
        driver.offered += 1
        driver.place(ticket)
        driver.settle()
        for each in driver.running:
            if each not in ends:
                backend = _at(each)
                free_at[backend] = max(free_at[backend], driver.now) + 0.01
                ends[each] = free_at[backend]
        if driver.waiting and len(driver.running) >= count:
            assert {each.backend for each in driver.running} == set(driver.backends)
            first = min(driver.running, key=lambda each: ends[each])
            driver.now = ends[first]
            driver.running.remove(first)
            driver.end(first, Ending.GOOD)
    driver.finish()
