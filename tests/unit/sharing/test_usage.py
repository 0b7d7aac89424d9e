"""Limits per client over several workers, as their clients see them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from lb.access.limits import Limit
from lb.sharing.usage import UsageTable, clear, size

A, B = b"a", b"b"


def tables(count: int) -> tuple[memoryview, list[UsageTable]]:
    memory = memoryview(bytearray(size(count)))
    return memory, [UsageTable(memory, index, count) for index in range(count)]


def limits(
    tables: Sequence[UsageTable], *, rate: float = 0.0, burst: float = 1.0, concurrent: int = 0
) -> list[Limit]:
    return [
        Limit(rate=rate, burst=burst, concurrent=concurrent, table=table, name=b"limit")
        for table in tables
    ]


def passes(limit: Limit, client: bytes, now: float) -> bool:
    """A request comes, and is over at once if it passes."""
    if limit.is_full(client) or limit.wait_s(client, now):
        return False
    limit.take(client, now)
    limit.give_back(client)
    return True


def test_a_rate_of_100_lets_100_pass_over_four_workers() -> None:
    """Most requests come to one worker, the others anywhere."""
    four = limits(tables(4)[1], rate=100.0, burst=10.0)
    random = Random(1)
    passed = 0
    for step in range(20_000):
        now = 1.0 + step * 0.0005
        limit = four[0] if random.random() < 0.7 else random.choice(four)
        passed += passes(limit, A, now)
    assert passed == pytest.approx(100 * 10 + 10, abs=2)


def test_what_a_client_has_used_up_says_nothing_of_another_one() -> None:
    one, two = limits(tables(2)[1], rate=1.0)
    assert passes(one, A, 1.0)
    assert not passes(two, A, 1.0)
    assert passes(two, B, 1.0)


def test_requests_at_once_count_over_all_workers() -> None:
    one, two = limits(tables(2)[1], concurrent=2)
    one.take(A, 1.0)
    two.take(A, 1.0)
    assert one.is_full(A)
    assert two.is_full(A)
    two.give_back(A)
    assert not one.is_full(A)


def test_a_killed_worker_has_nothing_open_and_what_it_let_through_counts() -> None:
    memory, (first, second) = tables(2)
    one, two = limits((first, second), rate=1.0, concurrent=1)
    one.take(A, 1.0)
    assert two.is_full(A)
    clear(memory, 0)
    assert not two.is_full(A)
    assert two.wait_s(A, 1.0) == pytest.approx(1.0)
    (again,) = limits([UsageTable(memory, 0, 2)], rate=1.0, concurrent=1)
    two.take(A, 2.0)
    assert again.is_full(A)
    assert again.wait_s(A, 2.0) == pytest.approx(1.0)


def test_what_a_dead_worker_let_through_counts_in_the_one_that_takes_its_place() -> None:
    memory, (first, second) = tables(2)
    one, two = limits((first, second), rate=1.0, burst=3.0)
    assert [passes(one, A, 1.0) for _ in range(4)] == [True, True, True, False]
    (again,) = limits([UsageTable(memory, 0, 2)], rate=1.0, burst=3.0)
    assert again.wait_s(A, 1.0) == pytest.approx(1.0)
    assert [passes(again, A, 2.1) for _ in range(2)] == [True, False]
    assert not passes(two, A, 2.1)


def test_a_client_that_a_worker_has_forgotten_keeps_to_its_rate() -> None:
    [table] = tables(1)[1]
    limit = Limit(rate=1.0, max_clients=1, table=table, name=b"limit")
    assert passes(limit, A, 1.0)
    assert passes(limit, B, 1.0)
    assert not passes(limit, A, 1.0)


def test_slots_of_clients_that_are_quiet_are_used_again() -> None:
    one, two = limits(tables(2)[1], rate=100.0)
    for number in range(40_000):
        assert passes(one, b"%d" % number, float(number))
    assert not passes(two, b"39999", 39_999.0)


class KilledError(Exception):
    """The worker is killed before a store."""


class Mortal:
    """Memory whose user is killed after a number of stores."""

    def __init__(self, memory: memoryview, life: list[int]) -> None:
        self._memory = memory
        self._life = life

    def __getitem__(self, at: int) -> float:
        found: float = self._memory[at]
        return found

    def __setitem__(self, at: int, value: float) -> None:
        if not self._life[0]:
            raise KilledError
        self._life[0] -= 1
        self._memory[at] = value


def test_a_worker_that_is_killed_at_any_store_costs_a_request_at_most() -> None:
    """One of three workers is killed before its nth store, and started again. Nothing stays open,
    and the rate is exceeded by the request that was under way then, at most."""
    for stores in range(40):
        memory, made = tables(3)
        three = limits(made, rate=100.0, burst=5.0, concurrent=3)
        life = [stores]
        for name in ("cells", "times"):
            setattr(made[0], name, Mortal(getattr(made[0], name), life))
        random = Random(stores)
        passed = kills = 0
        for step in range(1000):
            now = 1.0 + step * 0.001
            worker = random.randrange(3)
            try:
                passed += passes(three[worker], A, now)
            except KilledError:
                kills += 1
                life[0] = 1 << 60
                clear(memory, 0)
                made[0] = UsageTable(memory, 0, 3)
                three[0] = limits(made[:1], rate=100.0, burst=5.0, concurrent=3)[0]
        assert kills == 1
        assert 102 <= passed <= 106
        assert not any(limit.is_full(A) for limit in three)


class TornTable(UsageTable):
    """Another worker decides after this one has read, and before it writes."""

    meanwhile: Limit | None = None

    def claim(self, key: int, now: float) -> int:
        other, self.meanwhile = self.meanwhile, None
        if other is not None:
            assert passes(other, A, now)
        return super().claim(key, now)


@pytest.mark.parametrize("first", [0, 1])
def test_two_that_take_the_same_at_once_have_both_taken(first: int) -> None:
    memory = memoryview(bytearray(size(2)))
    made = [TornTable(memory, index, 2) for index in range(2)]
    both = limits(made, rate=10.0, burst=4.0)
    other = both[1 - first]
    assert passes(other, A, 1.0)
    made[first].meanwhile = other
    assert passes(both[first], A, 1.0)
    # Three of four are used up.
    assert [passes(limit, A, 1.0) for limit in (other, both[first])] == [True, False]
