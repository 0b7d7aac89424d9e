"""Who of those that wait is next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random

import pytest

from lb.balancing.tenant_times import TenantTimes
from lb.balancing.waiting import LOWEST, TenantQueue, WaitingQueue
from lb.domain.schedule import Order, QueuePlan, QueueRules, RequestClass, Ticket
from lb.sharing.usage import UsageTable, size

PLAN = QueuePlan(limits={})


def ticket(
    number: int,
    *,
    priority: int = 0,
    tenant: str = "",
    deadline: float = float("inf"),
    arrived_at: float = 0.0,
    work_s: float = 1.0,
) -> Ticket:
    made = Ticket(RequestClass(b"model", b"", PLAN, ()), arrived_at)
    made.number = number
    made.priority = priority
    made.tenant = tenant
    made.deadline = deadline
    made.work_s = work_s
    made.queued_at = arrived_at
    return made


def queue_of(tickets: Iterable[Ticket], rules: QueueRules | None = None) -> WaitingQueue:
    queue = WaitingQueue(rules or QueueRules())
    for each in tickets:
        queue.add(each)
    return queue


def served(queue: WaitingQueue, count: int = 1 << 30, now: float = 0.0) -> list[Ticket]:
    order: list[Ticket] = []
    while queue.count and len(order) < count:
        head = queue.level(now).turn().at(0)
        assert queue.level(now).turn().at(0) is head
        queue.serve(head)
        order.append(head)
    return order


def test_first_come_is_first_served() -> None:
    tickets = [ticket(number, arrived_at=float(number)) for number in range(200)]
    assert served(queue_of(tickets)) == tickets


def test_earliest_deadline_goes_first() -> None:
    late, soon, never = ticket(1, deadline=9.0), ticket(2, deadline=3.0), ticket(3)
    assert served(queue_of([never, late, soon])) == [soon, late, never]


def test_those_that_name_a_deadline_pass_one_without_for_seconds_at_most() -> None:
    quiet = ticket(1, arrived_at=100.0, work_s=0.05)
    queue = queue_of(
        [
            quiet,
            *(ticket(n, arrived_at=99.9 + n, deadline=104.9 + n, work_s=0.05) for n in range(2, 9)),
        ]
    )
    assert queue.level(101.0).turn().at(0) is quiet


def test_one_without_a_deadline_is_not_passed_for_ever() -> None:
    rules = QueueRules(max_starve_s=5.0)
    patient = ticket(1, arrived_at=0.0, work_s=0.01)
    hurried = ticket(2, arrived_at=4.0, deadline=5.5)
    assert served(queue_of([hurried, patient], rules)) == [patient, hurried]


def test_short_one_passes_long_ones_that_came_a_little_earlier() -> None:
    long, other = ticket(1, arrived_at=0.0, work_s=0.1), ticket(2, arrived_at=0.5, work_s=0.1)
    soon, late = ticket(3, arrived_at=0.8, work_s=0.001), ticket(4, arrived_at=1.2, work_s=0.001)
    assert served(queue_of([long, other, soon, late])) == [soon, long, late, other]


def test_higher_priority_goes_first() -> None:
    low, high, middle = (
        ticket(1, priority=7),
        ticket(2, priority=0),
        ticket(3, priority=3),
    )
    assert served(queue_of([low, high, middle])) == [high, middle, low]


def test_starving_priority_has_every_other_turn() -> None:
    high = [ticket(number, arrived_at=40.0) for number in range(10)]
    low = [ticket(100 + number, priority=2, arrived_at=0.0) for number in range(10)]
    order = served(queue_of([*high, *low]), count=8, now=41.0)
    assert [each.priority for each in order] == [2, 0, 2, 0, 2, 0, 2, 0]


def test_weighted_priorities_share_by_weight() -> None:
    rules = QueueRules(order=Order.WEIGHTED, weights={0: 3.0, 1: 1.0})
    tickets = [ticket(number, priority=number % 2) for number in range(400)]
    order = served(queue_of(tickets, rules), count=200)
    assert Counter(each.priority for each in order) == {0: 150, 1: 50}


def test_tenants_take_turns_however_many_they_send() -> None:
    greedy = [ticket(number, tenant="greedy") for number in range(1000)]
    modest = [ticket(2000 + number, tenant="modest") for number in range(50)]
    order = served(queue_of([*greedy, *modest]), count=100)
    assert 49 <= sum(each.tenant == "modest" for each in order) <= 50


def test_tenants_pay_by_execution_time() -> None:
    large = [ticket(number, tenant="large", work_s=8.0) for number in range(200)]
    small = [ticket(1000 + number, tenant="small", work_s=1.0) for number in range(2000)]
    order = served(queue_of([*large, *small]), count=450)
    spent = Counter[str]()
    for each in order:
        spent[each.tenant] += int(each.work_s)
    assert 0.9 < spent["large"] / spent["small"] < 1.1


def test_tenants_may_have_weights() -> None:
    rules = QueueRules(tenant_weights={"gold": 3.0})
    tickets = [ticket(number, tenant=("gold", "iron")[number % 2]) for number in range(800)]
    order = served(queue_of(tickets, rules), count=200)
    assert 148 <= sum(each.tenant == "gold" for each in order) <= 152


def test_dropped_one_is_passed_over() -> None:
    tickets = [ticket(number, tenant=str(number % 3)) for number in range(300)]
    queue = queue_of(tickets)
    for each in tickets[::2]:
        queue.remove(each)
        assert not each.is_waiting
    assert set(served(queue)) == set(tickets[1::2])


def shared_times() -> Callable[[int], TenantTimes]:
    """Times of tenants as a worker has them."""
    table = UsageTable(memoryview(bytearray(size(1))), 0, 1)
    return lambda level: TenantTimes(table, b"model", b"", level)


@pytest.mark.parametrize("is_shared", [False, True])
def test_tenants_that_come_and_go_disturb_no_turns(is_shared: bool) -> None:
    queue = WaitingQueue(QueueRules(), shared_times() if is_shared else None)
    stay = [ticket(number, tenant=f"stays{number % 2}") for number in range(200)]
    for each in stay:
        queue.add(each)
    random = Random(1)
    order: list[Ticket] = []
    for number in range(100):
        passing = [
            ticket(1000 + 10 * number + each, tenant=f"{number}/{each}") for each in range(9)
        ]
        for each in passing:
            queue.add(each)
        random.shuffle(passing)
        for each in passing:
            queue.remove(each)
        order += served(queue, count=2)
    assert sorted(each.number for each in order) == list(range(200))
    turns = [each.tenant for each in order]
    assert all(set(turns[at : at + 2]) == {"stays0", "stays1"} for at in range(0, 200, 2))
    assert queue.count == 0
    assert queue.highest() == LOWEST + 1


def test_one_that_was_put_back_is_next_and_all_that_wait_are_listed() -> None:
    queue = WaitingQueue(QueueRules(), shared_times())
    tickets = [ticket(number, tenant=str(number % 2)) for number in range(6)]
    for each in tickets:
        queue.add(each)
    assert queue.level(0.0).turn_slot() > 0
    first, second = served(queue, count=2)
    queue.put_back(first)
    assert set(queue) == {*tickets} - {second}
    assert first in served(queue, count=2)


def test_victim_is_of_the_lowest_priority() -> None:
    high, low = ticket(1), ticket(2, priority=5)
    queue = queue_of([high, low])
    assert queue.victim(ticket(3, priority=1)) is low
    assert queue.victim(ticket(4, priority=6)) is None


def test_victim_is_of_who_has_most_waiting() -> None:
    greedy = [ticket(number, tenant="greedy") for number in range(10)]
    queue = queue_of(greedy)
    assert queue.victim(ticket(20, tenant="modest")) is greedy[-1]
    assert queue.victim(ticket(21, tenant="greedy")) is None


def test_longest_queue_is_found_among_many_tenants() -> None:
    tickets = [ticket(number, tenant=f"t{number}") for number in range(100)]
    greedy = [ticket(1000 + number, tenant="greedy") for number in range(50)]
    queue = queue_of([*tickets, *greedy])
    victims = []
    for number in range(20):
        victim = queue.victim(ticket(5000 + number, tenant="new"))
        if victim is not None:
            victims.append(victim.tenant)
            queue.remove(victim)
    assert victims
    assert set(victims) == {"greedy"}


def test_work_ahead_is_what_would_be_served_before() -> None:
    queue = queue_of([ticket(number, deadline=float(number)) for number in range(1, 11)])
    assert queue.ahead(ticket(20, deadline=5.5)) == (5, 5.0)
    assert queue.ahead(ticket(21)) == (10, 10.0)
    assert queue.ahead(ticket(22, priority=1, deadline=0.5)) == (10, 10.0)


def test_place_in_the_order_goes_through_priorities() -> None:
    tickets = [ticket(number, priority=number // 5) for number in range(10)]
    queue = queue_of(tickets)
    assert queue.nth(3, 0.0) is tickets[3]
    assert queue.nth(7, 0.0) is tickets[7]


def test_last_one_may_go_before_the_first_only_for_a_while_and_without_deadlines() -> None:
    queue = TenantQueue("", 1.0, 0)
    for number, arrived_at in enumerate((10.0, 10.5)):
        waiting = ticket(number, arrived_at=arrived_at)
        waiting.key = arrived_at
        queue.add(waiting)
    assert queue.may_overtake(9.0)
    assert not queue.may_overtake(10.1)
    queue.at(0).deadline = 20.0
    assert not queue.may_overtake(9.0)
