"""Tenants of two workers that tell each other what each tenant has had."""

from __future__ import annotations

import pytest

from lb.balancing.tenant_times import TenantTimes
from lb.sharing.usage import UsageTable, size


def workers(count: int = 2) -> list[TenantTimes]:
    memory = memoryview(bytearray(size(count)))
    tables = [UsageTable(memory, index, count) for index in range(count)]
    return [TenantTimes(table, b"model", b"", 0) for table in tables]


def test_what_a_tenant_has_had_at_one_worker_counts_at_the_other() -> None:
    here, there = workers()
    for times in (here, there):
        times.joined("a", 0.0)
        times.joined("b", 0.0)
    here.serve("a", 3.0, 0.0)
    assert there.time("a") == here.time("a") > there.time("b") == here.time("b")
    there.serve("b", 5.0, 0.0)
    assert here.time("b") > here.time("a")


def test_one_that_had_nothing_queued_saves_nothing_up() -> None:
    here, there = workers()
    here.joined("a", 0.0)
    for _ in range(10):
        here.serve("a", 1.0, 0.0)
    begun_at = here.time("a")
    there.joined("late", 1.0)
    here.joined("late", 1.0)
    assert 0.0 < there.time("late") == here.time("late") <= begun_at


def test_one_with_requests_in_several_queues_stays_until_the_last_has_none() -> None:
    here, there = workers()
    here.joined("a", 0.0)
    here.joined("a", 0.0)
    here.left("a", 0.0)
    slot = here.slot("a")
    there.joined("b", 0.0)
    for _ in range(10):
        there.serve("b", 1.0, 0.0)
    before = here.time("a")
    there.joined("a", 1.0)
    assert there.time("a") == before, "it has requests queued at the other worker"
    assert slot > 0
    here.left("a", 2.0)
    there.left("a", 2.0)
    there.joined("a", 3.0)
    assert there.time("a") > before


def test_a_request_that_is_put_back_is_paid_for_once() -> None:
    (times,) = workers(1)
    times.joined("a", 0.0)
    times.serve("a", 2.0, 0.0)
    paid = times.time("a")
    times.put_back("a", 2.0)
    times.serve("a", 2.0, 0.0)
    assert times.time("a") == paid
    times.serve("a", 2.0, 0.0)
    assert times.time("a") == pytest.approx(2 * paid)


def test_of_many_tenants_those_with_queued_requests_are_kept() -> None:
    (times,) = workers(1)
    times.joined("stays", 0.0)
    times.serve("stays", 1.0, 0.0)
    kept = times.time("stays")
    for number in range(3000):
        times.joined(f"{number}", 0.0)
        times.left(f"{number}", 0.0)
    assert times.time("stays") == kept
    with pytest.raises(KeyError):
        times.time("0")
