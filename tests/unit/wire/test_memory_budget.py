"""The account of bytes held: the ceiling, and who gives way."""

from __future__ import annotations

import pytest

from lb.kserve.merge.steps import finish
from lb.wire.memory_budget import MemoryBudget, Payer, Seat, SharedBytes


class Owner:
    """Holds bytes; lets go of them all when told."""

    def __init__(self, memory_budget: MemoryBudget) -> None:
        self.held = 0
        self.evicted = 0
        self._memory_budget = memory_budget

    def evict(self) -> None:
        self.evicted += 1
        self._memory_budget.release(self, self.held)

    @property
    def charged_to(self) -> Payer | None:
        return None


class Miser(Owner):
    """Breaks the contract: keeps its bytes when told to let go."""

    def evict(self) -> None:
        self.evicted += 1


def test_bytes_are_on_the_account_until_released() -> None:
    memory_budget = MemoryBudget(100)
    first, second = Owner(memory_budget), Owner(memory_budget)
    assert memory_budget.take(first, 10)
    assert memory_budget.take(second, 20)
    assert memory_budget.take(first, 5)
    assert (memory_budget.held, first.held, second.held, len(memory_budget)) == (35, 15, 20, 2)
    memory_budget.release(first, 15)
    assert (memory_budget.held, len(memory_budget)) == (20, 1)


def test_memory_budget_is_short_from_seven_eighths_on() -> None:
    memory_budget = MemoryBudget(800)
    owner = Owner(memory_budget)
    memory_budget.take(owner, 699)
    assert not memory_budget.is_short
    memory_budget.take(owner, 1)
    assert memory_budget.is_short


def test_the_largest_holder_gives_way_for_a_smaller_one() -> None:
    memory_budget = MemoryBudget(100)
    large, small = Owner(memory_budget), Owner(memory_budget)
    memory_budget.take(large, 90)
    assert memory_budget.take(small, 11)
    assert (large.evicted, large.held, small.held) == (1, 0, 11)
    assert (memory_budget.held, memory_budget.evictions) == (11, 1)


def test_who_would_be_the_largest_gives_way_itself() -> None:
    memory_budget = MemoryBudget(100)
    quiet, greedy = Owner(memory_budget), Owner(memory_budget)
    memory_budget.take(quiet, 40)
    memory_budget.take(greedy, 30)
    assert not memory_budget.take(greedy, 31)
    assert (quiet.evicted, greedy.evicted) == (0, 1)
    assert (quiet.held, greedy.held, memory_budget.held) == (40, 0, 40)


def test_what_never_fits_is_refused() -> None:
    memory_budget = MemoryBudget(100)
    owner = Owner(memory_budget)
    assert not memory_budget.take(owner, 101)
    assert memory_budget.held == 0


def test_a_holder_that_keeps_its_bytes_is_a_bug_that_shows() -> None:
    memory_budget = MemoryBudget(100)
    memory_budget.take(Miser(memory_budget), 90)
    with pytest.raises(RuntimeError, match="still holds"):
        memory_budget.take(Owner(memory_budget), 20)


def test_what_nobody_waits_for_gives_way_before_memory_is_short() -> None:
    memory_budget = MemoryBudget(800)
    spare, request = Owner(memory_budget), Owner(memory_budget)
    memory_budget.spares = (spare,)
    assert memory_budget.take(spare, 300)
    assert memory_budget.take(request, 399)
    assert spare.evicted == 0
    assert memory_budget.take(request, 1)
    assert (spare.evicted, memory_budget.held, memory_budget.shortages) == (1, 400, 0)
    assert memory_budget.take(request, 300)
    assert (spare.evicted, memory_budget.shortages) == (1, 1)


def test_what_nobody_waits_for_gives_way_to_what_passes_the_ceiling() -> None:
    memory_budget = MemoryBudget(800)
    spare, request = Owner(memory_budget), Owner(memory_budget)
    memory_budget.spares = (spare,)
    assert memory_budget.take(request, 600)
    assert memory_budget.take(spare, 50)
    assert memory_budget.take(request, 200)
    assert (spare.evicted, request.evicted, memory_budget.held) == (1, 0, 800)
    assert memory_budget.evictions == 0


def of_800(relayed_at_most: int = 100) -> MemoryBudget:
    memory_budget = MemoryBudget(800)
    memory_budget.relayed_at_most = relayed_at_most
    return memory_budget


def test_the_largest_of_those_that_hold_much_gives_way_before_memory_is_short() -> None:
    memory_budget = of_800()
    large, largest, small = (Owner(memory_budget) for _ in range(3))
    memory_budget.take(large, 200)
    memory_budget.take(largest, 450)
    assert memory_budget.take(small, 50)
    assert (large.evicted, largest.evicted, memory_budget.held) == (0, 1, 250)
    assert (memory_budget.is_short, memory_budget.shortages) == (False, 0)


def test_who_asks_for_more_gives_way_if_it_would_hold_most() -> None:
    memory_budget = of_800()
    quiet, greedy = Owner(memory_budget), Owner(memory_budget)
    memory_budget.take(quiet, 300)
    memory_budget.take(greedy, 90)
    assert not memory_budget.take(greedy, 310)
    assert (quiet.evicted, greedy.evicted, memory_budget.held) == (0, 1, 300)


def test_memory_becomes_short_where_nobody_holds_much() -> None:
    memory_budget = of_800()
    owners = [Owner(memory_budget) for _ in range(8)]
    assert all(memory_budget.take(each, 90) for each in owners)
    assert (memory_budget.is_short, memory_budget.shortages) == (True, 1)
    assert not any(each.evicted for each in owners)
    assert not memory_budget.take(owners[0], 11), "it would hold much"
    assert [each.evicted for each in owners] == [1, *[0] * 7]


def test_who_held_much_once_does_not_give_way_before_others_that_do() -> None:
    memory_budget = of_800()
    smaller, larger = Owner(memory_budget), Owner(memory_budget)
    memory_budget.take(smaller, 400)
    memory_budget.release(smaller, 350)
    memory_budget.take(larger, 200)
    assert all(memory_budget.take(Owner(memory_budget), 90) for _ in range(5))
    assert (smaller.evicted, larger.evicted) == (0, 1)


def test_shared_bytes_are_counted_once_as_long_as_one_holds_any() -> None:
    memory_budget = MemoryBudget(1000)
    shared = SharedBytes(memory_budget, 300)
    first, second = Owner(shared), Owner(shared)
    assert shared.take(first, 300)
    assert shared.take(second, 200)
    assert (memory_budget.held, first.held, second.held, len(memory_budget)) == (300, 300, 200, 1)
    shared.release(first, 300)
    shared.release(second, 100)
    assert memory_budget.held == 300
    shared.release(second, 100)
    assert (memory_budget.held, len(memory_budget), len(shared)) == (0, 0, 0)
    assert shared.take(first, 10), "one may begin again"
    assert memory_budget.held == 300


def test_all_that_share_bytes_give_way_together() -> None:
    memory_budget = MemoryBudget(1000)
    shared, other = SharedBytes(memory_budget, 600), Owner(memory_budget)
    sharers = [Owner(shared) for _ in range(3)]
    assert all(shared.take(each, 600) for each in sharers)
    assert memory_budget.take(other, 500)
    assert [each.evicted for each in sharers] == [1, 1, 1]
    assert (memory_budget.held, shared.held, memory_budget.evictions) == (500, 0, 1)


def test_who_wants_to_share_bytes_that_do_not_fit_gives_way() -> None:
    memory_budget = MemoryBudget(1000)
    other = Owner(memory_budget)
    memory_budget.take(other, 500)
    assert not memory_budget.is_short
    shared = SharedBytes(memory_budget, 2000)
    one = Owner(shared)
    assert not shared.take(one, 2000)
    assert (one.evicted, one.held, memory_budget.held) == (1, 0, 500)
    assert shared.admit_kept(100) is memory_budget.admit_kept(100)
    assert shared.is_short is memory_budget.is_short


class Tenant(Owner):
    """Holds bytes for a client, over one of its connections."""

    def __init__(self, memory_budget: MemoryBudget, client: str, connection: int = 1) -> None:
        super().__init__(memory_budget)
        self.client_key = client
        self.client_connection = connection

    @property
    def charged_to(self) -> Payer:
        return self


def holders_of(
    memory_budget: MemoryBudget, count: int, size: int, client: str, connection: int = 1
) -> list[Tenant]:
    made = [Tenant(memory_budget, client, connection) for _ in range(count)]
    assert all(memory_budget.take(each, size) for each in made)
    return made


def cut(holders: list[Tenant]) -> int:
    return sum(each.evicted for each in holders)


def test_small_holders_of_one_client_give_way_to_another_that_is_refused() -> None:
    memory_budget = MemoryBudget(8000)
    many = holders_of(memory_budget, 320, 20, "many")
    few = holders_of(memory_budget, 30, 20, "few")
    assert memory_budget.is_short
    room = finish(memory_budget.make_room_for([("few", 1)]))
    assert memory_budget.held == memory_budget.roomy_at == 6000
    assert room == (("many",), 50, 1000)
    assert (cut(many), cut(many[:270]), cut(few)) == (50, 0, 0), "those that began last"


def test_connections_of_one_client_are_compared_with_each_other_alone() -> None:
    memory_budget = MemoryBudget(8000)
    first, second = (holders_of(memory_budget, 150, 20, "same", each) for each in (1, 2))
    other = holders_of(memory_budget, 60, 20, "other", 3)
    finish(memory_budget.make_room_for([("same", 4)]))
    assert (cut(first), cut(other)) == (60, 0), "the first of two that hold as much"
    assert cut(second) == 0
    assert memory_budget.held == memory_budget.roomy_at


def test_clients_that_hold_about_as_much_do_not_give_way() -> None:
    memory_budget = MemoryBudget(8000)
    large = holders_of(memory_budget, 310, 20, "large")
    holders_of(memory_budget, 40, 20, "small")
    assert finish(memory_budget.make_room_for([("small", 1), ("large", 1)])).evicted == 0
    assert finish(memory_budget.make_room_for([])).evicted == 0
    assert cut(large) == 0


def test_clients_keep_a_share_and_their_largest_request() -> None:
    memory_budget = MemoryBudget(8000)
    alike = [holders_of(memory_budget, 1, 240, str(number)) for number in range(29)]
    large = holders_of(memory_budget, 1, 300, "large")
    two = holders_of(memory_budget, 2, 200, "two")
    assert memory_budget.is_short
    room = finish(memory_budget.make_room_for([("new", 1)]))
    assert (room.greedy, cut(two), cut(large), sum(map(cut, alike))) == (("two",), 1, 0, 0)
    assert two[1].evicted, "the other one is older"


def test_nobody_gives_way_once_memory_is_not_short_any_more() -> None:
    memory_budget = MemoryBudget(8000)
    many = holders_of(memory_budget, 350, 20, "many")
    counting = memory_budget.make_room_for([("few", 1)])
    memory_budget.release(many[0], 20)
    assert finish(counting).evicted == 0


def test_holders_are_counted_and_give_way_in_steps() -> None:
    memory_budget = MemoryBudget(80_000)
    many = holders_of(memory_budget, 3500, 20, "many")
    assert memory_budget.take(Owner(memory_budget), 20), "it is nobody's"
    refused: list[Seat] = []
    steps = memory_budget.make_room_for(refused)
    for _ in range(7):
        next(steps)
        assert memory_budget.evictions == 0
    refused.append(("few", 1))
    for _ in steps:
        assert cut(many) <= 25
        for each in many:
            each.evicted = 0
    assert memory_budget.held <= memory_budget.roomy_at


def test_the_largest_give_way_until_there_is_room_for_a_while() -> None:
    memory_budget = MemoryBudget(800)
    holders = [Owner(memory_budget) for _ in range(5)]
    for size, holder in zip((100, 200, 160, 150, 100), holders, strict=True):
        assert memory_budget.take(holder, size)
    memory_budget.relieve()
    assert [each.evicted for each in holders] == [0, 1, 0, 0, 0]
    assert memory_budget.held <= memory_budget.roomy_at
