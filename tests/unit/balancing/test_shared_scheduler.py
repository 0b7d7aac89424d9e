"""Schedulers of several workers, asked as their relays ask them."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Final

import pytest

from lb.balancing import scheduler
from lb.balancing.shared_scheduler import SharedScheduler
from lb.domain.backend import Address, Backend
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
from lb.sharing.board import STALE_S, Board, Entry, Values, clear, size
from lb.sharing.usage import UsageTable
from lb.sharing.usage import size as usage_size
from tests.fakes.backends import make_backend, make_spec

NAMES: Final = ("a", "b")
MANY: Final = tuple(f"b{number}" for number in range(40))


class Worker:
    """One process: records of the backends of its own, a scheduler, and who counts."""

    def __init__(
        self,
        board: Board,
        names: Sequence[str],
        plan: Capacity,
        rules: QueueRules,
        most: int,
        usage: UsageTable | None = None,
    ) -> None:
        self.scheduler = SharedScheduler(board, usage)
        self.backends = tuple(make_backend(name, max_in_flight=most) for name in names)
        self.plan = QueuePlan(limits={}, default=plan, rules=rules)
        self.request_class = RequestClass(b"model", b"", self.plan, self.backends)
        self.rung = 0

    def ticket(self, now: float, priority: int = 0) -> Ticket:
        ticket = Ticket(self.request_class, now)
        ticket.priority = priority
        return ticket

    def offer(self, ticket: Ticket, now: float) -> Backend | None:
        backend = self.scheduler.offer(ticket, now)
        if backend is not None:
            backend.in_flight += 1
        return backend

    def begin(self, now: float, priority: int = 0) -> Ticket:
        ticket = self.ticket(now, priority)
        assert self.offer(ticket, now) is not None
        return ticket

    def queue(self, now: float, priority: int = 0) -> Ticket:
        ticket = self.ticket(now, priority)
        assert self.offer(ticket, now) is None
        return ticket

    def complete(self, ticket: Ticket, now: float, ending: Ending = Ending.GOOD) -> None:
        assert ticket.backend is not None
        ticket.backend.in_flight -= 1
        self.scheduler.complete(ticket, now, ending)

    def due(self, now: float) -> list[Ticket]:
        found = []
        while (ticket := self.scheduler.next_due(now)) is not None:
            assert ticket.backend is not None
            ticket.backend.in_flight += 1
            found.append(ticket)
        return found

    def follow(self, backends: tuple[Backend, ...], now: float) -> None:
        """Another snapshot has come, with these backends."""
        self.backends = backends
        self.request_class = RequestClass(b"model", b"", self.plan, backends)
        assert self.scheduler.follow(lambda _: (self.plan, backends), now) == []

    def learn(self, now: float = 0.0, took_s: float = 1.0) -> None:
        """Find out how long executions take at each backend."""
        for _ in range(4 * len(self.backends)):
            ticket = self.begin(now)
            now += took_s
            self.complete(ticket, now)


class Machine:
    """Workers on one board."""

    def __init__(
        self,
        count: int = 2,
        names: Sequence[str] = NAMES,
        *,
        plan: Capacity | None = None,
        rules: QueueRules | None = None,
        most: int = 0,
    ) -> None:
        self.memory = memoryview(bytearray(size(count)))
        usage = memoryview(bytearray(usage_size(count)))
        self.workers = [
            Worker(
                Board(self.memory, index, count),
                names,
                plan or Capacity(1),
                rules or QueueRules(),
                most,
                UsageTable(usage, index, count),
            )
            for index in range(count)
        ]
        for worker in self.workers:
            worker.scheduler.ring = self.ring
        self.now = 0.0
        self.running: list[tuple[float, int, int, Ticket]] = []
        self.free_at = {name: [0.0] * (plan or Capacity(1)).instances for name in names}
        """When each instance of each backend has nothing to do."""
        self.numbers = itertools.count()
        """With which `served` goes on."""
        self.tick(0.0)

    def ring(self, index: int) -> None:
        self.workers[index].rung += 1

    def tick(self, now: float) -> None:
        for _ in range(2):
            for worker in self.workers:
                worker.scheduler.tick(now)


def test_a_request_goes_where_no_worker_has_one() -> None:
    one, two = Machine().workers
    assert {one.begin(0.0).backend.name, two.begin(0.0).backend.name} == set(NAMES)  # type: ignore[union-attr]


def test_a_limit_holds_over_all_workers() -> None:
    one, two = Machine().workers
    one.begin(0.0)
    two.begin(0.0)
    one.queue(0.0)
    two.queue(0.0)


def test_an_end_rings_for_the_worker_whose_request_has_waited_longest() -> None:
    one, two, three = Machine(3).workers
    running = [one.begin(0.0), one.begin(0.0)]
    later = three.queue(0.2)
    first = two.queue(0.1)
    one.complete(running[0], 1.0)
    assert (two.rung, three.rung) == (1, 0)
    assert three.due(1.0) == []  # room is left to the first
    assert two.due(1.0) == [first]
    one.complete(running[1], 1.1)
    assert (two.rung, three.rung) == (1, 1)
    assert three.due(1.1) == [later]


def test_a_new_request_does_not_go_before_one_that_another_worker_has_queued() -> None:
    one, two = Machine().workers
    running = [one.begin(0.0), one.begin(0.0)]
    first = two.queue(0.1)
    one.complete(running[0], 1.0)
    one.queue(1.0)
    assert two.due(1.0) == [first]


def test_a_batch_is_divided_only_where_no_worker_is_busy() -> None:
    one, two = Machine().workers
    for turn in range(32):
        ticket = one.ticket(now := 100.0 * turn)
        ticket.rows = 4 + 4 * (turn % 2)
        assert one.offer(ticket, now) is not None
        one.complete(ticket, now + ticket.rows)

    def divided(now: float) -> tuple[int, ...]:
        ticket = one.ticket(now)
        ticket.rows = 16
        return one.scheduler.divide(ticket, now, 16, 8)

    def may_divide(rows: int) -> bool:
        ticket = one.ticket(9000.0)
        ticket.rows = rows
        return one.scheduler.may_divide(ticket, 9000.0, 16, 8)

    assert len(divided(9000.0)) == 2
    first, second = two.begin(9000.0), two.begin(9000.0)
    assert divided(9000.0) == ()
    assert [may_divide(rows) for rows in (1, 16)] == [False, True]
    queued = two.queue(9000.0)
    two.complete(first, 9001.0)
    two.complete(second, 9001.0)
    assert divided(9001.0) == ()
    assert two.due(9001.0) == [queued]


def test_room_is_not_left_for_long_to_a_worker_that_does_not_use_it() -> None:
    one, two = Machine().workers
    running = [one.begin(0.0), one.begin(0.0)]
    two.queue(0.1)
    mine = one.queue(0.2)
    one.complete(running[0], 1.0)
    assert one.due(1.0) == []
    assert one.scheduler.wake_at <= 1.01
    assert one.due(1.01) == [mine]


def test_a_higher_priority_goes_first_over_all_workers() -> None:
    one, two = Machine().workers
    running = [one.begin(0.0), one.begin(0.0)]
    one.queue(0.1, priority=2)
    urgent = two.queue(0.2, priority=0)
    one.complete(running[0], 1.0)
    assert one.due(1.0) == []
    assert two.rung == 1
    assert two.due(1.0) == [urgent]


def test_a_queue_is_full_by_what_all_workers_have_queued() -> None:
    one, two = Machine(rules=QueueRules(max_waiting=3)).workers
    running = [one.begin(0.0), two.begin(0.0)]
    queued = [one.queue(0.1), one.queue(0.1), two.queue(0.2)]
    for now, worker in ((0.3, one), (0.4, two)):
        with pytest.raises(ScheduleRefused) as refused:
            worker.offer(worker.ticket(now), now)
        assert refused.value.refusal is RefusalReason.FULL
    two.complete(running[1], 0.5)
    assert two.due(0.5) == []
    assert one.due(0.5) == [queued[0]]
    two.queue(0.6)


def test_what_a_killed_worker_had_in_flight_makes_room_at_once() -> None:
    machine = Machine()
    one, two = machine.workers
    one.begin(0.0)
    one.begin(0.0)
    mine = two.queue(0.0)
    clear(machine.memory, 0)
    assert two.due(0.1) == [mine]


def test_a_stopped_worker_holds_its_share_for_a_second() -> None:
    one, two = Machine().workers
    one.begin(0.0)
    one.begin(0.0)
    mine = two.queue(0.0)
    two.scheduler.tick(0.9 * STALE_S)
    assert two.due(0.9 * STALE_S) == []
    two.scheduler.tick(STALE_S + 0.1)
    assert two.due(STALE_S + 0.1) == [mine]


def test_a_worker_that_has_just_started_counts_at_once() -> None:
    machine = Machine()
    one, _ = machine.workers
    board = Board(machine.memory, 1, 2)
    one.scheduler.tick(5.0)  # the second one is gone
    two = Worker(board, NAMES, Capacity(1), QueueRules(), 0)
    two.scheduler.tick(5.05)
    two.begin(5.05)
    two.begin(5.05)
    mine = one.queue(5.06)
    one.scheduler.tick(5.1)
    assert one.due(5.1) == []
    clear(machine.memory, 1)
    assert one.due(5.2) == [mine]


def test_workers_learn_from_each_other_how_long_executions_take() -> None:
    one, two = Machine().workers
    two.complete(two.begin(0.0), 1.0)
    for now in range(2, 40, 3):
        ticket = one.begin(now)
        one.complete(ticket, now + 2.5)
        two.scheduler.rung(now + 2.5)
    for view in two.scheduler.model_backends():
        assert view.expected_s == pytest.approx(2.5)


def served(
    machine: Machine,
    clients: Sequence[tuple[int, str, int]],
    count: int,
    ways: Sequence[float] = (0.0, 0.0, 0.0, 0.0),
) -> Counter[str]:
    """Requests by tenant of so many that end, in 10 ms each.

    Args:
        machine: with workers.
        clients: of each the worker, the tenant, and how many requests it always has open.
        count: of requests.
        ways: seconds that a request, and its answer, is under way from each worker.
    """
    found: Counter[str] = Counter()
    running, free_at = machine.running, machine.free_at
    rung: list[int] = []
    for worker in machine.workers:
        worker.scheduler.ring = rung.append

    def begun(index: int, ticket: Ticket, now: float) -> None:
        assert ticket.backend is not None
        instances = free_at[ticket.backend.name]
        end = max(now + ways[index], instances[0]) + 0.01
        heapq.heapreplace(instances, end)
        heapq.heappush(running, (end + ways[index], next(machine.numbers), index, ticket))

    def send(index: int, tenant: str, now: float) -> None:
        worker = machine.workers[index]
        ticket = worker.ticket(now)
        ticket.tenant = tenant
        if worker.offer(ticket, now) is not None:
            begun(index, ticket, now)

    now = machine.now
    for index, tenant, open_at_once in clients:
        for _ in range(open_at_once):
            send(index, tenant, now)
    ticked_at = now
    while found.total() < count:
        wakes = [worker.scheduler.wake_at for worker in machine.workers]
        now = max(now, min(running[0][0] if running else inf, ticked_at + 0.1, *wakes))
        if running and running[0][0] <= now:
            _, _, index, ticket = heapq.heappop(running)
            machine.workers[index].complete(ticket, now)
            found[ticket.tenant] += 1
            send(index, ticket.tenant, now)
        if now >= ticked_at + 0.1:
            ticked_at = now
            machine.tick(now)
        while rung:
            machine.workers[rung.pop()].scheduler.rung(now)
        for index, worker in enumerate(machine.workers):
            for ticket in worker.due(now):
                begun(index, ticket, now)
    machine.now = now
    return found


@pytest.mark.parametrize(
    "clients",
    [
        [(0, "a", 40), (1, "b", 40), (2, "b", 40), (3, "b", 40)],
        [(0, "a", 8), (0, "b", 100), (1, "b", 30)],
        [(0, "a", 8), (1, "a", 8), (2, "a", 100), (3, "b", 12)],
    ],
)
def test_tenants_get_their_shares_wherever_their_clients_are(
    clients: Sequence[tuple[int, str, int]],
) -> None:
    machine = Machine(4, plan=Capacity(2, instances=2), rules=QueueRules(has_tenants=True))
    found = served(machine, clients, 1500)
    assert found["a"] / found.total() == pytest.approx(1 / 2, rel=0.1)


def test_weights_of_tenants_hold_over_all_workers() -> None:
    rules = QueueRules(has_tenants=True, tenant_weights={"a": 3.0})
    machine = Machine(4, plan=Capacity(2, instances=2), rules=rules)
    found = served(machine, [(0, "a", 50), (1, "b", 50), (2, "c", 20), (3, "c", 50)], 1500)
    assert found["a"] / found.total() == pytest.approx(3 / 5, rel=0.1)
    assert found["b"] / found.total() == pytest.approx(1 / 5, rel=0.1)


@pytest.mark.parametrize("has_tenants", [True, False], ids=["tenants", "order of arrival"])
@pytest.mark.parametrize(("ways", "least"), [((0.0, 0.005), 0.25), ((0.03, 0.0), 0.1)])
def test_requests_are_served_however_long_the_way_from_their_worker_is(
    ways: tuple[float, float], least: float, has_tenants: bool
) -> None:
    """Each worker learns from its own answers how far ahead requests have to be sent. The one that
    sent further ahead took all the room for as long as requests were queued: the other one got
    0 to 13 % with 5 ms one way, and 0 % with 30 ms, three times what an execution takes."""
    plan = Capacity(2, is_auto=True, instances=2)
    machine = Machine(plan=plan, rules=QueueRules(has_tenants=has_tenants))
    served(machine, [(0, "a", 50), (1, "b", 50)], 1000, (0.001, 0.001))
    served(machine, [], 1000, ways)
    found = served(machine, [], 1000, ways)
    assert least <= found["a"] / found.total() <= 1 - least


def test_what_a_tenant_leaves_unused_is_not_saved_up() -> None:
    machine = Machine(4, plan=Capacity(2, instances=2), rules=QueueRules(has_tenants=True))
    served(machine, [(1, "b", 40), (2, "b", 40)], 1000)
    found = served(machine, [(0, "a", 40)], 400)
    assert found["a"] / found.total() == pytest.approx(1 / 2, rel=0.1)


def test_each_worker_shows_its_own_requests_so_that_they_can_be_added_up() -> None:
    one, two = Machine().workers
    one.begin(0.0)
    one.begin(0.0)
    two.scheduler.rung(0.0)
    shown = [
        sum(each.in_flight for each in worker.scheduler.model_backends()) for worker in (one, two)
    ]
    assert shown == [2, 0]


def test_a_request_that_a_new_snapshot_has_moved_is_told_of() -> None:
    one, two = Machine().workers
    running = [one.begin(0.0), two.begin(0.0)]
    queued = one.queue(0.1)
    request_class = RequestClass(b"model", b"", one.plan, one.backends)
    assert one.scheduler.follow(lambda _: (request_class.plan, request_class.eligible), 0.2) == []
    one.complete(running[0], 0.5)
    assert one.due(0.5) == [queued]
    later = two.queue(0.6)
    one.complete(queued, 0.7)
    assert two.due(0.7) == [later]


@pytest.mark.interpreted("a constant")
def test_a_request_that_is_moved_later_than_others_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "_RENEWED_AT_ONCE", 1)
    machine = Machine()
    one, two = machine.workers
    running = [two.begin(0.0), two.begin(0.0)]
    other = RequestClass(b"other", b"", one.plan, one.backends)
    for backend in one.backends:
        one.scheduler.start(Ticket(other, 0.0), backend, 0.0)
    one.scheduler.offer(Ticket(other, 0.1), 0.1)
    queued = one.queue(0.1)
    one.scheduler.follow(lambda ticket: (ticket.plan, ticket.eligible), 0.2)
    machine.tick(0.2)
    one.scheduler.follow_rest(0.2)
    machine.tick(0.3)
    two.complete(running[0], 0.4)
    assert one.rung == 1
    assert one.due(0.4) == [queued]


def test_an_end_at_a_backend_that_a_new_snapshot_has_no_more_is_told_of() -> None:
    one, two = Machine().workers
    one.scheduler.on_untold = lambda: None  # this iteration of its loop goes on
    one.complete(one.begin(0.0), 0.0001, Ending.FAILED)
    one.scheduler.follow(lambda ticket: (ticket.plan, ticket.eligible), 0.0001)
    for _ in NAMES:
        two.begin(0.001)


@pytest.mark.parametrize("most", [0, 1])
def test_a_backend_with_another_address_is_not_the_one_that_finishes_under_its_name(
    most: int,
) -> None:
    one, two = Machine(most=most).workers
    running = [one.begin(0.0), one.begin(0.0)]
    spec = replace(make_spec("a", max_in_flight=most), http=Address("127.0.0.2", 8000))
    moved = {worker: Backend(spec) for worker in (one, two)}

    for worker, backend in moved.items():
        worker.follow((backend, worker.backends[1]), 0.1)
    ours = one.begin(0.2)
    assert ours.backend is moved[one], "it has room, and the one before has none"
    queued = two.queue(0.3)
    for ticket in running:
        one.complete(ticket, 1.0)
    assert two.due(1.0) == [queued]
    for worker, backend in moved.items():
        worker.follow((backend,), 1.1)  # the one before is gone
    one.complete(ours, 2.0)
    assert two.begin(2.0).backend is moved[two]
    one.queue(2.1)  # it knows that


def test_the_limit_of_a_backend_holds_after_another_record_of_it_is_gone() -> None:
    one, two = Machine(names=("a",), plan=Capacity(5), most=1).workers
    [first] = one.backends
    old = one.begin(0.0)
    again = (Backend(make_spec("a", max_in_flight=1)),)

    one.follow(again, 0.1)
    one.complete(one.begin(0.2), 0.3)
    one.complete(old, 1.0)
    one.scheduler.forget(first)
    one.follow(again, 1.1)
    running = two.begin(2.0)
    one.request_class = RequestClass(b"other", b"", one.plan, again)
    queued = one.queue(2.1)
    two.complete(running, 3.0)
    assert one.due(3.0) == [queued]


def test_requests_that_were_cut_with_their_backend_take_no_place_when_it_is_back() -> None:
    machine = Machine(names=("a",), plan=Capacity(5), most=2)
    for worker in machine.workers:
        worker.complete(worker.begin(0.0), 0.1)
        worker.backends[0].in_flight = 2  # of models that are not scheduled
    machine.tick(0.2)
    for worker in machine.workers:
        worker.backends[0].in_flight = 0
        worker.scheduler.forget(worker.backends[0])
        worker.follow((), 0.3)
    for worker in machine.workers:
        worker.follow((make_backend("a", max_in_flight=2),), 0.4)
    for worker in machine.workers:
        worker.complete(worker.begin(0.5), 0.6)


def test_requests_that_outlast_their_model_take_their_place_until_they_end() -> None:
    machine = Machine(names=("a",), plan=Capacity(5), most=2)
    one, two = machine.workers
    one.complete(one.begin(0.0), 0.1)
    [backend] = one.backends
    backend.in_flight = 2  # of models that are not scheduled
    machine.tick(0.2)
    one.scheduler.forget(backend)
    one.follow(one.backends, 0.3)
    queued = two.queue(0.4)
    backend.in_flight = 0
    machine.tick(0.5)
    assert two.due(0.5) == [queued]


def test_the_end_of_a_request_leaves_those_at_the_next_record_of_its_backend_in_their_places() -> (
    None
):
    one, two = Machine(names=("a",), plan=Capacity(5), most=1).workers
    old = one.begin(0.0)
    one.follow((make_backend("a", max_in_flight=1),), 0.1)
    running = one.begin(0.2)
    one.complete(old, 1.0)
    queued = two.queue(1.1)
    one.complete(running, 2.0)
    assert two.due(2.0) == [queued]


def test_a_limit_that_known_backends_get_later_holds_over_all_workers() -> None:
    machine = Machine(names=("a",), plan=Capacity(5))

    def limit(most: int, now: float) -> None:
        for worker in machine.workers:
            worker.backends[0].apply(make_spec("a", max_in_flight=most))
            worker.follow(worker.backends, now)

    one, two = machine.workers
    one.learn(0.0, 0.01)
    two.learn(1.0, 0.01)
    running = one.begin(2.0)
    limit(1, 3.0)
    queued = two.queue(3.0)
    limit(0, 4.0)
    assert two.due(4.0) == [queued]
    two.complete(queued, 5.0)
    limit(1, 6.0)
    queued = two.queue(6.0)
    one.complete(running, 7.0)
    assert two.due(7.0) == [queued]


def test_records_of_one_backend_may_go_in_any_order() -> None:
    for first in (0, 1, None):
        [one] = Machine(1, names=("a",), plan=Capacity(5), most=1).workers
        records = [*one.backends, Backend(make_spec("a", max_in_flight=1))]
        for now, record in enumerate(records):
            one.request_class = RequestClass(b"model", b"", one.plan, (record,))
            one.complete(one.begin(float(now)), now + 0.5)
        order = records if first is None else [records[first], records[1 - first]]
        for now, record in enumerate(order, 2):
            one.scheduler.forget(record)
            if first is not None or record is order[-1]:
                one.scheduler.follow(lambda _: None, float(now))
        assert list(one.scheduler.model_backends()) == []


def test_what_was_forgotten_as_idle_is_shared_again_when_it_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "_MAX_MODEL_QUEUES", 1)
    one, two = Machine().workers
    first = one.request_class
    others = [RequestClass(name, b"", one.plan, one.backends) for name in (b"other", b"third")]
    for now in (0.0, 1.0):
        for request_class in (first, *others):  # each has the one before forgotten
            one.request_class = request_class
            one.complete(one.begin(now), now + 0.1)
        one.request_class = RequestClass(b"model", b"", one.plan, one.backends)
        first = one.request_class
        one.complete(one.begin(now + 0.2), now + 0.3)
        one.scheduler.follow(lambda _: None, now + 0.3)
    running = [two.begin(3.0), two.begin(3.0)]
    one.queue(3.1)  # it knows what the other one has in flight
    two.complete(running[0], 3.2)
    assert one.rung == 1


def test_nothing_is_left_when_all_has_ended() -> None:
    for names, plan in (
        (NAMES, Capacity(2, instances=2)),
        (NAMES, Capacity(8, is_auto=True, max_batch=4)),
        (NAMES, Capacity(is_shared=True)),
        (MANY, Capacity(2)),
    ):
        machine = Machine(3, names, plan=plan)
        running: list[tuple[Worker, Ticket]] = []
        now = 0.0
        for number in range(300):
            now += 0.01
            worker = machine.workers[number % 3]
            ticket = worker.ticket(now)
            if worker.offer(ticket, now) is not None:
                running.append((worker, ticket))
            if len(running) > number % 7:
                ended, its = running.pop(0)
                ended.complete(its, now)
            for each in machine.workers:
                running += [(each, begun) for begun in each.due(now)]
        while running:
            now += 0.1
            ended, its = running.pop(0)
            ended.complete(its, now)
            for each in machine.workers:
                each.scheduler.rung(now)
                running += [(each, begun) for begun in each.due(now)]
        machine.tick(now)
        for worker in machine.workers:
            assert not worker.scheduler.in_flight_by_model(worker.backends[0])[b"model"]
            assert all(backend.in_flight == 0 for backend in worker.backends)
            assert list(worker.scheduler.model_queues(now, idle=False)) == []


class CountingBoard(Board):
    """Counts what is read of others."""

    reads = 0

    def read(self, worker: int, number: int) -> Values:
        self.reads += 1
        return super().read(worker, number)


@pytest.mark.interpreted("a class of its own")
def test_busy_neighbours_are_read_a_few_times_in_a_millisecond() -> None:
    memory = memoryview(bytearray(size(3)))
    boards = [CountingBoard(memory, index, 3) for index in range(3)]
    workers = [
        Worker(board, NAMES, Capacity(64, is_auto=True, instances=64), QueueRules(), 0)
        for board in boards
    ]
    for _ in range(2):
        for worker in workers:
            worker.scheduler.tick(1.0)
    running: list[tuple[Worker, Ticket]] = []
    for number in range(300):
        now = 1.0 + number * 0.00001
        running.append((workers[number % 3], workers[number % 3].begin(now)))
        if number > 30:
            ended, ticket = running.pop(0)
            ended.complete(ticket, now)
    # 3 ms with 570 changes: two backends of two neighbours, 15 times.
    assert 0 < max(board.reads for board in boards) <= 2 * 2 * 16


class BusyBoard(Board):
    """Another worker decides while this one does: after it has chosen, before it has told."""

    meanwhile: Worker | None = None

    def write(self, entry: Entry) -> bool:
        other, self.meanwhile = self.meanwhile, None
        if other is not None:
            other.offer(other.ticket(0.0), 0.0)
        return super().write(entry)


@pytest.mark.interpreted("a class of its own")
def test_the_limit_of_a_backend_is_not_exceeded_by_two_that_decide_at_once() -> None:
    memory = memoryview(bytearray(size(2)))
    boards = [BusyBoard(memory, index, 2) for index in range(2)]
    one, two = (Worker(board, ("a",), Capacity(8), QueueRules(), 3) for board in boards)
    for now in (0.0, 0.0):
        one.scheduler.tick(now)
        two.scheduler.tick(now)
    one.complete(one.begin(0.0), 1.0)
    two.complete(two.begin(1.0), 2.0)
    one.learn(2.0)
    two.learn(10.0)
    one.begin(20.0)
    one.begin(20.0)
    boards[0].meanwhile = two
    one.offer(one.ticket(20.0), 20.0)
    assert one.backends[0].in_flight + two.backends[0].in_flight == 3


@pytest.mark.interpreted("a class of its own")
def test_a_second_attempt_does_not_exceed_a_limit_with_one_that_begins_at_once() -> None:
    memory = memoryview(bytearray(size(2)))
    boards = [BusyBoard(memory, index, 2) for index in range(2)]
    one, two = (Worker(board, NAMES, Capacity(1), QueueRules(), 0) for board in boards)
    for _ in range(2):
        one.scheduler.tick(0.0)
        two.scheduler.tick(0.0)
    first = one.begin(0.0)
    second = first.hedge()
    assert first.backend is not None
    second.tried = (first.backend,)
    boards[0].meanwhile = two
    assert one.scheduler.hedge(second, 0.0) is None
    assert sum(backend.in_flight for backend in two.backends) == 1


def test_a_limit_of_a_model_is_not_exceeded_by_what_was_decided_a_moment_ago() -> None:
    """A decision is told of when the loop asks for it. Others may have been heard of meanwhile."""
    one, two = Machine(names=("a",), plan=Capacity(2)).workers
    one.learn()
    two.learn(10.0)
    running = [two.begin(20.0), two.begin(20.0)]
    first = one.queue(20.0)
    two.complete(running[0], 21.0)
    one.scheduler.rung(21.0)
    second = one.queue(21.0)  # now the first is to begin
    two.scheduler.start(two.ticket(21.0), two.backends[0], 21.0)
    one.scheduler.rung(21.0)
    assert one.due(21.0) == []
    rung = one.rung
    two.complete(running[1], 22.0)
    assert one.rung == rung + 1
    assert one.due(22.0) == [first]
    one.complete(first, 23.0)
    assert one.due(23.0) == [second]
