"""The account of bytes held: the ceiling, and who gives way."""

from __future__ import annotations

import pytest

from lb.wire.ledger import Ledger, SharedBytes


class Owner:
    """Holds bytes; lets go of them all when told."""

    def __init__(self, ledger: Ledger) -> None:
        self.held = 0
        self.evicted = 0
        self._ledger = ledger

    def evict(self) -> None:
        self.evicted += 1
        self._ledger.release(self, self.held)


class Miser(Owner):
    """Breaks the contract: keeps its bytes when told to let go."""

    def evict(self) -> None:
        self.evicted += 1


def test_bytes_are_on_the_account_until_released() -> None:
    ledger = Ledger(100)
    first, second = Owner(ledger), Owner(ledger)
    assert ledger.take(first, 10)
    assert ledger.take(second, 20)
    assert ledger.take(first, 5)
    assert (ledger.held, first.held, second.held, len(ledger)) == (35, 15, 20, 2)
    ledger.release(first, 15)
    assert (ledger.held, len(ledger)) == (20, 1)


def test_ledger_is_short_from_seven_eighths_on() -> None:
    ledger = Ledger(800)
    owner = Owner(ledger)
    ledger.take(owner, 699)
    assert not ledger.is_short
    ledger.take(owner, 1)
    assert ledger.is_short


def test_the_largest_holder_gives_way_for_a_smaller_one() -> None:
    ledger = Ledger(100)
    large, small = Owner(ledger), Owner(ledger)
    ledger.take(large, 90)
    assert ledger.take(small, 11)
    assert (large.evicted, large.held, small.held) == (1, 0, 11)
    assert (ledger.held, ledger.evictions) == (11, 1)


def test_who_would_be_the_largest_gives_way_itself() -> None:
    ledger = Ledger(100)
    quiet, greedy = Owner(ledger), Owner(ledger)
    ledger.take(quiet, 40)
    ledger.take(greedy, 30)
    assert not ledger.take(greedy, 31)
    assert (quiet.evicted, greedy.evicted) == (0, 1)
    assert (quiet.held, greedy.held, ledger.held) == (40, 0, 40)


def test_what_never_fits_is_refused() -> None:
    ledger = Ledger(100)
    owner = Owner(ledger)
    assert not ledger.take(owner, 101)
    assert ledger.held == 0


def test_a_holder_that_keeps_its_bytes_is_a_bug_that_shows() -> None:
    ledger = Ledger(100)
    ledger.take(Miser(ledger), 90)
    with pytest.raises(RuntimeError, match="still holds"):
        ledger.take(Owner(ledger), 20)


def test_what_nobody_waits_for_gives_way_before_memory_is_short() -> None:
    ledger = Ledger(800)
    spare, request = Owner(ledger), Owner(ledger)
    ledger.spares = (spare,)
    assert ledger.take(spare, 300)
    assert ledger.take(request, 399)
    assert spare.evicted == 0
    assert ledger.take(request, 1)
    assert (spare.evicted, ledger.held, ledger.shortages) == (1, 400, 0)
    assert ledger.take(request, 300)
    assert (spare.evicted, ledger.shortages) == (1, 1)


def test_what_nobody_waits_for_gives_way_to_what_passes_the_ceiling() -> None:
    ledger = Ledger(800)
    spare, request = Owner(ledger), Owner(ledger)
    ledger.spares = (spare,)
    assert ledger.take(request, 600)
    assert ledger.take(spare, 50)
    assert ledger.take(request, 200)
    assert (spare.evicted, request.evicted, ledger.held) == (1, 0, 800)
    assert ledger.evictions == 0


def test_shared_bytes_are_counted_once_as_long_as_one_holds_any() -> None:
    ledger = Ledger(1000)
    shared = SharedBytes(ledger, 300)
    first, second = Owner(shared), Owner(shared)
    assert shared.take(first, 300)
    assert shared.take(second, 200)
    assert (ledger.held, first.held, second.held, len(ledger)) == (300, 300, 200, 1)
    shared.release(first, 300)
    shared.release(second, 100)
    assert ledger.held == 300
    shared.release(second, 100)
    assert (ledger.held, len(ledger), len(shared)) == (0, 0, 0)
    assert shared.take(first, 10), "one may begin again"
    assert ledger.held == 300


def test_all_that_share_bytes_give_way_together() -> None:
    ledger = Ledger(1000)
    shared, other = SharedBytes(ledger, 600), Owner(ledger)
    sharers = [Owner(shared) for _ in range(3)]
    assert all(shared.take(each, 600) for each in sharers)
    assert ledger.take(other, 500)
    assert [each.evicted for each in sharers] == [1, 1, 1]
    assert (ledger.held, shared.held, ledger.evictions) == (500, 0, 1)


def test_who_wants_to_share_bytes_that_do_not_fit_gives_way() -> None:
    ledger = Ledger(1000)
    other = Owner(ledger)
    ledger.take(other, 500)
    assert not ledger.is_short
    shared = SharedBytes(ledger, 2000)
    one = Owner(shared)
    assert not shared.take(one, 2000)
    assert (one.evicted, one.held, ledger.held) == (1, 0, 500)
    assert shared.may_keep(100) is ledger.may_keep(100)
    assert shared.is_short is ledger.is_short
