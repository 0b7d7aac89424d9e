"""The scheduler, asked as the relays ask it."""

from __future__ import annotations

from random import Random

import pytest

from lb.balancing.scheduler import Scheduler
from lb.domain.backend import Backend
from lb.domain.load import LoadReport, Measured, ModelLoad
from lb.domain.schedule import (
    Capacity,
    Ending,
    QueuePlan,
    QueueRules,
    RefusalReason,
    RequestClass,
    ScheduleRefused,
    Ticket,
    Wait,
)
from tests.fakes.backends import make_backend


class Desk:
    """A scheduler, backends, and whoever counts what is under way."""

    usual_deadline_s = float("inf")
    """Of requests that name none."""

    def __init__(
        self,
        *takes_s: float,
        limit: int = 2,
        instances: int = 1,
        rounds: int = 4,
        rules: QueueRules | None = None,
        capacity: Capacity | None = None,
    ) -> None:
        self.scheduler = Scheduler()
        self.backends = tuple(make_backend(f"b{number}") for number in range(len(takes_s)))
        self.plan = QueuePlan(
            limits={},
            default=capacity or Capacity(limit, instances=instances),
            rules=rules or QueueRules(),
        )
        self.known: dict[tuple[Backend, ...], RequestClass] = {}
        self.now = 0.0
        for backend, took_s in zip(self.backends, takes_s, strict=True):
            for _ in range(rounds if took_s else 0):
                ticket = self.ticket(backend)
                assert self.offer(ticket) is backend
                self.now += took_s
                self.complete(ticket)
                self.now += 0.1

    def request_class(self, eligible: tuple[Backend, ...]) -> RequestClass:
        """The same object as long as the plan is."""
        request_class = self.known.get(eligible)
        if request_class is None or request_class.plan is not self.plan:
            request_class = self.known[eligible] = RequestClass(b"model", b"", self.plan, eligible)
        return request_class

    def ticket(
        self, *eligible: Backend, priority: int = 0, deadline_s: float | None = None
    ) -> Ticket:
        ticket = Ticket(self.request_class(eligible or self.backends), self.now)
        ticket.priority = priority
        ticket.deadline = self.now + (self.usual_deadline_s if deadline_s is None else deadline_s)
        return ticket

    def offer(self, ticket: Ticket) -> Backend | None:
        backend = self.scheduler.offer(ticket, self.now)
        if backend is not None:
            backend.in_flight += 1
        return backend

    def complete(self, ticket: Ticket, ending: Ending = Ending.GOOD) -> None:
        assert ticket.backend is not None
        ticket.backend.in_flight -= 1
        self.scheduler.complete(ticket, self.now, ending)

    def due(self) -> list[Ticket]:
        found = []
        while (ticket := self.scheduler.next_due(self.now)) is not None:
            assert ticket.backend is not None
            ticket.backend.in_flight += 1
            found.append(ticket)
        return found

    def refused(self) -> list[tuple[Ticket, RefusalReason]]:
        found = []
        while (ticket := self.scheduler.next_refused(self.now)) is not None:
            assert ticket.refused is not None
            assert ticket.refused.retry_after_s > 0
            found.append((ticket, ticket.refused.refusal))
        return found

    def fill(self, count: int, **facts: float) -> list[Ticket]:
        """Offer so many; those that began are first."""
        tickets = [self.ticket(**facts) for _ in range(count)]  # type: ignore[arg-type]
        for ticket in tickets:
            self.offer(ticket)
        return tickets


@pytest.fixture(params=["no deadlines", "late deadlines"], autouse=True)
def usual_deadline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without deadlines most decisions are made in shorter ways. They are the same."""
    if request.param == "late deadlines":
        monkeypatch.setattr(Desk, "usual_deadline_s", 1e9)


def test_request_begins_where_it_ends_first() -> None:
    desk = Desk(0.04, 0.005)
    ticket = desk.ticket()
    assert desk.offer(ticket) is desk.backends[1]
    assert ticket.expected_s == pytest.approx(0.005, rel=0.1)
    assert ticket.position == 0


def test_what_does_not_fit_waits_and_begins_in_order() -> None:
    desk = Desk(0.005)
    tickets = desk.fill(4)
    assert [ticket.is_waiting for ticket in tickets] == [False, False, True, True]
    assert tickets[3].position == 1
    assert tickets[3].wait is Wait.LIMIT
    assert desk.due() == []
    desk.now += 0.005
    desk.complete(tickets[0])
    assert desk.due() == [tickets[2]]


def test_request_waits_for_a_fast_backend_while_a_slow_one_is_idle() -> None:
    desk = Desk(0.005, 0.08)
    tickets = desk.fill(3)
    assert [ticket.backend for ticket in tickets] == [desk.backends[0]] * 2 + [None]
    assert tickets[2].wait is Wait.FASTER


def test_slow_backend_is_used_when_many_wait() -> None:
    desk = Desk(0.005, 0.04)
    tickets = desk.fill(12)
    assert [ticket.backend for ticket in tickets].count(desk.backends[1]) == 1


def test_stalled_backend_is_not_waited_for() -> None:
    desk = Desk(0.005, 0.04)
    tickets = desk.fill(3)
    for _ in range(100):
        assert desk.scheduler.wake_at > desk.now
        desk.now = desk.scheduler.wake_at
        if desk.due():
            break
    assert tickets[2].backend is desk.backends[1]
    assert desk.now < tickets[2].arrived_at + 0.1


def test_equal_backends_share_equally_whatever_was_learnt_of_varying_requests() -> None:
    for seed in range(20):
        rng = Random(seed)
        desk = Desk(0.0, 0.0, 0.0, limit=6, instances=4)
        for number in range(rng.randrange(3, 60)):
            ticket = desk.ticket(desk.backends[number % 3])
            desk.offer(ticket)
            desk.now += rng.uniform(0.001, 1.0)
            desk.complete(ticket)
        begun = [ticket.backend for ticket in desk.fill(12)]
        assert max(begun.count(backend) for backend in desk.backends) <= 6, (seed, begun)


def test_equal_backends_share_long_requests_equally_after_short_ones() -> None:
    for seed in range(10):
        rng = Random(seed)
        desk = Desk(0.0, 0.0, 0.0, limit=5, instances=4)
        for number in range(60):
            ticket = desk.ticket(desk.backends[number % 3])
            desk.offer(ticket)
            desk.now += rng.uniform(0.019, 0.021) + 0.003 * (number % 3)
            desk.complete(ticket)
        begun = [ticket.backend for ticket in desk.fill(12)]
        assert {begun.count(backend) for backend in desk.backends} == {4}, seed


def test_restarted_backend_has_its_part_soon() -> None:
    desk = Desk(0.02, 0.02, 0.02, limit=5, instances=4, rounds=30)
    desk.scheduler.forget(desk.backends[0])
    in_flight_by_model: list[tuple[float, Ticket]] = []
    begun = 0
    takes_s = [0.5, *[0.02] * 1000]
    for _ in range(300):
        while len(in_flight_by_model) < 8:
            ticket = desk.ticket()
            backend = desk.offer(ticket)
            assert backend is not None
            is_new = backend is desk.backends[0]
            begun += is_new
            in_flight_by_model.append((desk.now + (takes_s.pop(0) if is_new else 0.02), ticket))
        in_flight_by_model.sort(key=lambda each: each[0])
        desk.now, ticket = in_flight_by_model.pop(0)
        desk.complete(ticket)
        desk.due()
    assert begun > 50


def test_dropped_request_never_begins() -> None:
    desk = Desk(0.005)
    tickets = desk.fill(4)
    desk.scheduler.drop(tickets[2])
    desk.complete(tickets[0])
    assert desk.due() == [tickets[3]]
    desk.scheduler.drop(tickets[3])
    assert tickets[3].backend is not None


def test_full_queue_refuses_and_says_when_to_come_again() -> None:
    desk = Desk(0.005, rules=QueueRules(max_waiting=3))
    desk.fill(5)
    with pytest.raises(ScheduleRefused) as caught:
        desk.offer(desk.ticket())
    assert caught.value.refusal is RefusalReason.FULL
    assert caught.value.retry_after_s == pytest.approx(0.02, rel=0.2)


def test_lowest_priority_makes_room() -> None:
    desk = Desk(0.005, rules=QueueRules(max_waiting=3))
    low = desk.fill(5, priority=3)
    desk.offer(desk.ticket())
    assert desk.refused() == [(low[4], RefusalReason.SHED)]


def test_request_that_cannot_be_in_time_is_refused_at_once() -> None:
    desk = Desk(0.005, rounds=25)
    desk.fill(18, deadline_s=0.1)
    with pytest.raises(ScheduleRefused) as caught:
        desk.fill(4, deadline_s=0.1)
    assert caught.value.refusal is RefusalReason.LATE
    assert caught.value.retry_after_s < 0.1
    assert desk.offer(desk.ticket(deadline_s=0.5)) is None


def test_what_waits_and_is_much_larger_than_all_that_ran_keeps_nobody_from_waiting() -> None:
    desk = Desk(0.005, rounds=25)
    for number in range(60):
        size = 600_000 if number % 10 == 0 else 400
        model_queue = desk.scheduler._model_queues[b"model", b""]
        model_queue.stats.usual.learn(0.05 if size > 400 else 0.005, 1, size, desk.now)
    desk.fill(3)
    for _ in range(5):
        large = desk.ticket(deadline_s=0.9)
        large.size = 100_000_000
        desk.offer(large)
    assert model_queue.stats.usual.byte_s * 100_000_000 > 1.0
    assert desk.offer(desk.ticket(deadline_s=1.0)) is None


def test_nobody_is_refused_by_an_estimate_right_after_everything_stood_still() -> None:
    desk = Desk(0.05, limit=2, rounds=30)
    for _ in range(4):  # the machine stood still
        ticket = desk.ticket()
        desk.offer(ticket)
        desk.now += 3.0
        desk.complete(ticket)
        desk.due()
    (model_backend,) = desk.scheduler._model_queues[b"model", b""].model_backends.values()
    assert model_backend.cost.mean_s > 1.0
    desk.fill(6, deadline_s=5.0)
    assert desk.offer(desk.ticket(deadline_s=5.0)) is None


def test_nobody_is_refused_while_a_backend_is_idle() -> None:
    desk = Desk(2.0, limit=1, rounds=30)
    for _ in range(50):
        desk.now += 0.02
        ticket = desk.ticket(deadline_s=0.2)
        assert desk.offer(ticket) is not None
        desk.now += 0.02
        desk.complete(ticket)


def test_whoever_waits_for_a_faster_backend_goes_to_an_idle_one_before_it_is_late() -> None:
    desk = Desk(0.01, 0.2, limit=1, rounds=25)
    (running,) = desk.fill(1)
    waiting = desk.ticket(deadline_s=0.05)
    assert desk.offer(waiting) is None
    while waiting.is_waiting:
        assert desk.scheduler.wake_at > desk.now
        desk.now = desk.scheduler.wake_at
        desk.due()
        assert desk.refused() == []
    assert running.backend is desk.backends[0]
    assert waiting.backend is desk.backends[1]
    assert desk.now < waiting.deadline


def test_one_that_is_in_time_goes_before_one_that_seems_late() -> None:
    desk = Desk(0.1, limit=1, rounds=25)
    (running,) = desk.fill(1)
    late, good = desk.ticket(deadline_s=0.205), desk.ticket(deadline_s=0.4)
    assert desk.offer(late) is None
    assert desk.offer(good) is None
    desk.now += 0.11
    desk.complete(running)
    assert desk.due() == [good]
    assert desk.refused() == [(late, RefusalReason.LATE)]


def test_nobody_is_refused_because_of_a_few_slow_requests() -> None:
    desk = Desk(0.7)
    assert desk.offer(desk.ticket(deadline_s=0.5)) is not None


def test_nobody_is_refused_who_may_be_quick() -> None:
    rng = Random(1)
    desk = Desk(0.0)
    for _ in range(100):
        ticket = desk.ticket()
        desk.offer(ticket)
        desk.now += rng.uniform(0.001, 1.0)
        desk.complete(ticket)
    assert desk.offer(desk.ticket(deadline_s=0.2)) is not None


def test_what_was_decided_and_not_told_may_still_be_dropped() -> None:
    desk = Desk(0.005, 0.005)
    tickets = desk.fill(6)
    desk.complete(tickets[0])
    another = desk.ticket()
    desk.offer(another)
    assert not tickets[4].is_waiting
    desk.scheduler.drop(tickets[4])
    assert desk.due() == [tickets[5]]
    assert tickets[4].backend is None


def test_waiting_request_that_has_become_late_is_refused() -> None:
    desk = Desk(0.005)
    tickets = desk.fill(3, deadline_s=0.02)
    assert tickets[2].is_waiting
    desk.now = desk.scheduler.wake_at
    assert desk.now <= 0.02 + tickets[2].arrived_at
    assert desk.due() == []
    assert desk.refused() == []  # a quick execution might still do
    desk.now = tickets[2].deadline
    assert desk.due() == []
    assert desk.refused() == [(tickets[2], RefusalReason.LATE)]


def test_nobody_waits_longer_than_the_plan_allows() -> None:
    desk = Desk(0.005, rules=QueueRules(max_wait_s=0.5))
    tickets = desk.fill(3)
    desk.now += 0.5
    assert desk.due() == []
    assert desk.refused() == [(tickets[2], RefusalReason.EXPIRED)]


def test_nobody_waits_for_ever_beside_those_that_may_use_more_backends() -> None:
    desk = Desk(0.01, 0.01, limit=1)
    running = desk.fill(22)[:2]
    lone = desk.ticket(desk.backends[0])
    assert desk.offer(lone) is None
    for _ in range(60):
        desk.now += 0.005
        desk.complete(running.pop(0))
        desk.offer(desk.ticket())  # as many come as end
        running += desk.due()
    assert not lone.is_waiting


def test_models_that_share_the_limit_of_a_backend_take_turns() -> None:
    desk = Desk(0.01, limit=2)
    desk.backends[0].max_in_flight = 1
    running = desk.fill(10)[:1]
    others = [desk.ticket() for _ in range(3)]
    for other in others:
        other.request_class = RequestClass(b"other", b"", desk.plan, desk.backends)
        assert desk.offer(other) is None
    for _ in range(30):
        desk.now += 0.01
        desk.complete(running.pop(0))
        desk.offer(desk.ticket())
        running += desk.due()
        assert len(running) == 1
    assert not any(other.is_waiting for other in others)


def test_the_more_urgent_pool_goes_first() -> None:
    desk = Desk(0.01, 0.01, limit=1)
    running = desk.fill(4)[:2]
    urgent, usual = desk.ticket(desk.backends[0]), desk.ticket(desk.backends[0])
    usual.priority = 1
    assert desk.offer(usual) is None
    assert desk.offer(urgent) is None
    first = next(each for each in running if each.backend is desk.backends[0])
    for ticket in desk.fill(2, priority=1):
        assert ticket.is_waiting
    desk.now += 0.01
    desk.complete(first)
    began = desk.due()
    assert began[0].priority == 0
    assert usual.is_waiting


@pytest.mark.parametrize(("then_s", "ends_at"), [(60.0, 61.0), (0.5, 1.5)])
def test_how_long_tickets_may_wait_follows_the_plan(then_s: float, ends_at: float) -> None:
    desk = Desk(0.0, limit=1, rules=QueueRules(max_wait_s=1.0))
    desk.now = 1.0
    _, waiting = desk.fill(2)
    plan = QueuePlan(limits={}, default=Capacity(1), rules=QueueRules(max_wait_s=then_s))
    desk.scheduler.follow(lambda _: (plan, desk.backends), desk.now)
    assert desk.due() == []
    desk.now = ends_at - 0.1
    assert desk.refused() == []
    assert desk.scheduler.wake_at <= ends_at + 1e-6
    desk.now = ends_at
    assert desk.refused() == [(waiting, RefusalReason.EXPIRED)]


def test_refused_ticket_that_is_dropped_before_it_is_told_is_gone() -> None:
    desk = Desk(0.0, limit=1, rules=QueueRules(max_waiting=1))
    _, waiting = desk.fill(2, priority=1)
    desk.offer(desk.ticket())  # makes the other one go
    desk.scheduler.drop(waiting)
    assert desk.refused() == []


def test_part_is_kept_for_the_highest_priority() -> None:
    desk = Desk(0.005, 0.005, 0.005, rules=QueueRules(reserved=0.3))
    low = desk.fill(6, priority=1)
    assert len({ticket.backend for ticket in low} - {None}) == 2
    assert low[2].wait is Wait.RESERVED
    urgent = desk.ticket()
    assert desk.offer(urgent) not in {ticket.backend for ticket in low} - {None}
    assert urgent.expected_s == pytest.approx(0.005, rel=0.1)


def test_what_yields_goes_ahead_as_late_as_possible() -> None:
    desk = Desk(0.01, rules=QueueRules(reserved=0.3))
    first, second = desk.fill(2, priority=1)
    assert first.backend is not None
    began = desk.now
    assert second.is_waiting
    desk.now = desk.scheduler.wake_at
    assert began + 0.005 < desk.now < began + 0.01
    assert desk.due() == [second]


def test_urgent_request_goes_ahead_where_others_must_not_yet() -> None:
    desk = Desk(0.01, rules=QueueRules(reserved=0.3))
    low = desk.fill(3, priority=1)
    assert [ticket.is_waiting for ticket in low] == [False, True, True]
    assert desk.offer(desk.ticket()) is desk.backends[0]


def test_room_that_other_requests_leave_at_a_backend_is_found() -> None:
    desk = Desk(0.005, 0.005)
    for backend in desk.backends:
        backend.max_in_flight = 2
        backend.in_flight = 2
    waiting = desk.ticket()
    assert desk.offer(waiting) is None
    desk.backends[1].in_flight = 0
    assert desk.scheduler.wake_at <= desk.now + 0.01
    desk.now = desk.scheduler.wake_at
    assert desk.due() == [waiting]


def test_starving_low_priority_does_not_block_what_is_kept_from_it() -> None:
    desk = Desk(0.005, 0.005, rules=QueueRules(reserved=0.5, max_starve_s=1.0))
    low = desk.fill(4, priority=1)
    urgent = desk.fill(5)
    assert urgent[4].is_waiting
    desk.now += 2.0
    desk.complete(urgent[0])
    assert {ticket.priority for ticket in desk.due()} == {0}
    assert low[3].is_waiting


def test_ticket_may_be_offered_again_and_keeps_its_place_in_time() -> None:
    desk = Desk(0.005, 0.006)
    first, *_, waiting = desk.fill(5)
    failed_at = first.backend
    assert failed_at is not None
    desk.complete(first, Ending.FAILED)
    first.tried = (failed_at,)
    desk.offer(first)
    assert first.backend is not failed_at
    assert first.arrived_at <= waiting.arrived_at


def test_new_snapshot_gives_those_that_wait_other_backends() -> None:
    desk = Desk(0.005)
    waiting = desk.fill(4)[2:]
    new = make_backend("new")
    asked = []

    def renew(ticket: Ticket) -> tuple[QueuePlan, tuple[Backend, ...]]:
        asked.append(ticket)
        return desk.plan, (*desk.backends, new)

    assert desk.scheduler.follow(renew, desk.now) == []
    assert len(asked) == 1
    assert desk.due() == waiting[:1]
    assert waiting[0].backend is new


def test_very_many_follow_a_snapshot_a_bounded_number_at_a_time() -> None:
    desk = Desk(0.005, 0.005, rules=QueueRules(max_waiting=10_000))
    waiting = desk.fill(3004)[4:]
    _, left = desk.backends
    asked: list[Ticket] = []

    def renew(ticket: Ticket) -> tuple[QueuePlan, tuple[Backend, ...]]:
        asked.append(ticket)
        return desk.plan, eligible

    eligible = (left,)
    scheduler = desk.scheduler
    assert scheduler.follow(renew, desk.now) == []
    assert scheduler.is_following
    (view,) = scheduler.model_queues(desk.now)
    assert view.waiting == {0: 3000}
    scheduler.drop(waiting[-1])
    (view,) = scheduler.model_queues(desk.now)
    assert view.waiting == {0: 2999}
    calls = 1
    while scheduler.is_following:
        assert scheduler.follow_rest(desk.now) == []
        calls += 1
    assert 4 <= calls < 3000
    assert len(asked) == calls
    (view,) = scheduler.model_queues(desk.now)
    assert view.waiting == {0: 2999}
    assert {ticket.eligible for ticket in waiting[:-1]} == {(left,)}
    assert not waiting[-1].is_waiting


def test_nothing_begins_where_an_old_snapshot_said_while_others_follow_a_new_one() -> None:
    desk = Desk(0.005, 0.005, rules=QueueRules(max_waiting=10_000))
    tickets = desk.fill(3004)
    gone, left = desk.backends
    desk.scheduler.follow(lambda _: (desk.plan, (left,)), desk.now)
    begun = []
    running = [ticket for ticket in tickets[:4] if ticket.backend is left]
    for ticket in tickets[:4]:
        if ticket.backend is gone:
            desk.complete(ticket)
    for _ in range(20):
        desk.now += 0.005
        desk.complete(running.pop(0))
        found = desk.due()
        running += found
        begun += found
        if desk.scheduler.is_following:
            desk.scheduler.follow_rest(desk.now)
    assert begun == tickets[4 : 4 + len(begun)], "not in order"
    assert len(begun) >= 10
    assert {ticket.backend for ticket in begun} <= {left, None}


def test_model_that_is_not_scheduled_any_more_gives_its_tickets_back() -> None:
    desk = Desk(0.005)
    tickets = desk.fill(4)
    assert desk.scheduler.follow(lambda _: None, desk.now) == tickets[2:]
    assert not tickets[2].is_waiting
    desk.complete(tickets[0])
    assert desk.due() == []


def test_views_show_lanes_and_those_that_wait() -> None:
    desk = Desk(0.005)
    desk.fill(3)
    desk.fill(2, priority=4)
    (model_backend,) = desk.scheduler.model_backends()
    assert (model_backend.in_flight, model_backend.limit) == (2, 2)
    assert model_backend.expected_s == pytest.approx(0.005)
    (model_queue,) = desk.scheduler.model_queues(desk.now + 1.0)
    assert model_queue.waiting == {0: 1, 4: 2}
    assert model_queue.oldest_s == pytest.approx(1.0)


def test_restarted_backend_is_learnt_anew() -> None:
    desk = Desk(0.005)
    desk.scheduler.forget(desk.backends[0])
    (model_backend,) = desk.scheduler.model_backends()
    assert model_backend.learnt == 0


def test_load_from_elsewhere_counts() -> None:
    desk = Desk(0.005, 0.005)
    for pending in (0.0, 5.0):
        desk.now += 1.0
        load = ModelLoad(pending=pending)
        report = LoadReport(at=desk.now, models={b"model": load})
        desk.scheduler.on_load_report(desk.backends[0], report)
    assert {desk.offer(desk.ticket()) for _ in range(2)} == {desk.backends[1]}
    assert desk.scheduler.in_flight_by_model(desk.backends[1]) == {b"model": 2}


def test_unused_backends_are_known_by_what_they_have_measured_themselves() -> None:
    desk = Desk(0.0, 0.0, 0.0)
    for backend, took_s in zip(desk.backends, (0.04, 0.005, 0.01), strict=True):
        measured = {(b"model", b"1"): Measured(base_s=took_s)}
        desk.scheduler.assume(backend, measured, desk.now)
    assert [desk.offer(desk.ticket()) for _ in range(3)] == [
        desk.backends[1],
        desk.backends[2],
        desk.backends[1],
    ]
    model_backends = {
        model_backend.backend: model_backend for model_backend in desk.scheduler.model_backends()
    }
    assert model_backends[desk.backends[0]].expected_s == 0.04
    assert model_backends[desk.backends[0]].learnt == 0


def test_lanes_that_are_there_already_begin_with_it_too_and_a_restart_ends_it() -> None:
    desk = Desk(0.0, 0.0)
    held = desk.ticket(desk.backends[0])
    desk.offer(held)
    slow, fast = (Measured(base_s=each) for each in (0.04, 0.005))
    desk.scheduler.assume(desk.backends[0], {(b"model", b"1"): slow}, desk.now)
    desk.scheduler.assume(desk.backends[1], {(b"model", b"1"): fast}, desk.now)
    assert [model_backend.expected_s for model_backend in desk.scheduler.model_backends()] == [0.04]
    desk.scheduler.forget(desk.backends[0])
    desk.scheduler.follow(lambda ticket: (desk.plan, ticket.eligible), desk.now)
    assert [model_backend.expected_s for model_backend in desk.scheduler.model_backends()] == [0.0]
    assert desk.offer(desk.ticket(desk.backends[1])) is desk.backends[1]
    assert sorted(
        model_backend.expected_s for model_backend in desk.scheduler.model_backends()
    ) == [0.0, 0.005]


def test_lines_that_are_not_used_are_forgotten() -> None:
    scheduler = Scheduler()
    backend = make_backend("one")
    plan = QueuePlan(limits={})

    def begin(number: int) -> Ticket:
        ticket = Ticket(RequestClass(b"model", b"%d" % number, plan, (backend,)), 0.0)
        scheduler.offer(ticket, 0.0)
        return ticket

    used = begin(0)
    for number in range(1, 5000):
        scheduler.complete(begin(number), 0.1, Ending.GOOD)
    known = [view.version for view in scheduler.model_queues(1.0)]
    assert len(known) < 5000
    assert b"0" in known
    scheduler.complete(used, 0.1, Ending.GOOD)


@pytest.mark.parametrize("deadline_s", [float("inf"), 5.0])
@pytest.mark.parametrize("slower_s", [0.010, 0.012, 0.1])
@pytest.mark.parametrize(
    "capacity",
    [
        Capacity(1, is_auto=True),
        Capacity(2),
        Capacity(1, is_auto=True, instances=3),
        Capacity(1, is_auto=True, max_batch=8),
        Capacity(1, is_shared=True),
    ],
    ids=["auto", "two", "instances", "batches", "side by side"],
)
def test_a_backend_that_other_models_fill_is_not_waited_for(
    capacity: Capacity, slower_s: float, deadline_s: float
) -> None:
    desk = Desk(0.01, slower_s, capacity=capacity)
    filled, other = desk.backends
    filled.max_in_flight = 1
    for _ in range(3):
        filling = Ticket(RequestClass(b"other", b"", desk.plan, (filled,)), desk.now)
        desk.offer(filling)
        ticket = desk.ticket(deadline_s=deadline_s)
        assert desk.scheduler.best(ticket, desk.now) is other
        assert desk.offer(ticket) is other
        desk.now += slower_s
        desk.complete(ticket)
        desk.complete(filling)
        desk.now += 1.0


def test_a_backend_that_its_own_model_fills_is_waited_for_where_that_is_quicker() -> None:
    desk = Desk(0.01, 0.1, capacity=Capacity(1, is_auto=True, instances=3))
    for backend in desk.backends:
        backend.max_in_flight = 2
    running = desk.fill(2)
    queued = desk.ticket()
    assert desk.offer(queued) is None
    desk.now += 0.01
    desk.complete(running[0])
    assert desk.due() == [queued]
    assert queued.backend is desk.backends[0]


def test_one_may_ask_for_some_models_and_for_those_with_queued_requests_only() -> None:
    desk = Desk(0.01, limit=1)
    other = Ticket(RequestClass(b"other", b"", desk.plan, desk.backends), desk.now)
    desk.offer(other)
    found = [view.model for view in desk.scheduler.model_backends([b"other"])]
    assert found == [b"other"]
    desk.complete(other)
    assert list(desk.scheduler.model_queues(desk.now, idle=False)) == []
    desk.fill(2)
    waiting = [view.model for view in desk.scheduler.model_queues(desk.now, idle=False)]
    assert waiting == [b"model"]


class TestBeside:
    """Second attempts beside the first."""

    def test_it_begins_elsewhere_and_counts_there(self) -> None:
        desk = Desk(0.005, 0.005, limit=1)
        first = desk.ticket()
        home = desk.offer(first)
        second = first.hedge()
        second.tried = (first.backend,) if first.backend else ()
        assert desk.scheduler.hedge(second, desk.now) not in (None, home)
        assert [model_backend.in_flight for model_backend in desk.scheduler.model_backends()] == [
            1,
            1,
        ]
        assert desk.offer(desk.ticket()) is None, "both are full"
        assert second.backend is not None
        second.backend.in_flight += 1
        desk.complete(second, Ending.NEITHER)
        assert len(desk.due()) == 1

    def test_it_does_not_wait(self) -> None:
        desk = Desk(0.005, 0.005, limit=1)
        first, other = desk.ticket(), desk.ticket()
        desk.offer(first)
        desk.offer(other)
        second = first.hedge()
        assert first.backend is not None
        second.tried = (first.backend,)
        assert desk.scheduler.hedge(second, desk.now) is None
        assert [model_backend.in_flight for model_backend in desk.scheduler.model_backends()] == [
            1,
            1,
        ]
        assert not second.is_waiting

    def test_it_goes_ahead_of_nobody(self) -> None:
        desk = Desk(0.005, 0.005, limit=1)
        first = desk.ticket()
        desk.offer(first)
        assert first.backend is not None
        waiting = desk.ticket(first.backend)
        assert desk.offer(waiting) is None
        second = first.hedge()
        second.tried = (first.backend,)
        assert desk.scheduler.hedge(second, desk.now) is None
        assert waiting.is_waiting

    def test_it_does_not_go_where_it_was(self) -> None:
        desk = Desk(0.005)
        first = desk.ticket()
        desk.offer(first)
        second = first.hedge()
        second.tried = desk.backends
        assert desk.scheduler.hedge(second, desk.now) is None

    def test_it_is_what_the_first_one_is(self) -> None:
        desk = Desk(0.005)
        first = desk.ticket(priority=3)
        first.rows, first.size, first.tenant, first.position = 8, 900, "t", 4
        first.wait = Wait.FASTER
        second = first.hedge()
        for name in ("rows", "size", "tenant", "position", "wait", "request_class", "priority",
                     "deadline", "arrived_at"):  # fmt: skip
            assert getattr(second, name) == getattr(first, name)
        assert second.backend is None


def test_nothing_goes_ahead_of_urgent_requests_that_use_what_is_kept_for_them() -> None:
    desk = Desk(0.01, 0.01, rules=QueueRules(reserved=0.5))
    low = desk.fill(2, priority=1)
    urgent = desk.ticket()
    assert desk.offer(urgent) is not low[0].backend
    assert low[0].backend is not None
    assert low[1].is_waiting
    desk.now += 0.0095
    assert desk.due() == []
    desk.now += 0.0005
    desk.complete(low[0])
    assert desk.due() == [low[1]]
