from __future__ import annotations

import dataclasses

from lb.control.backend_registry import MOST_REMOVED, BackendRegistry
from lb.control.record import BackendRecord, Member
from lb.domain.backend import Address, AdminState
from tests.fakes.backends import make_spec


def member(name: str, port: int = 8000, weight: float = 1.0) -> Member:
    address = Address(host="127.0.0.1", port=port)
    return Member(dataclasses.replace(make_spec(name), http=address, weight=weight))


def make_roll(*members: Member, busy: bool = True) -> BackendRegistry:
    registry = BackendRegistry()
    registry.replace(members, 100.0, 60.0)
    for record in registry.records.values():
        record.backend.in_flight = int(busy)
    return registry


def names(registry: BackendRegistry) -> list[str]:
    for name, record in registry.records.items():
        assert record.backend.name == name
    return list(registry.records)


def gone(registry: BackendRegistry, now: float) -> list[BackendRecord]:
    return registry.remove_finished(now)


def test_those_that_leave_come_last() -> None:
    registry = make_roll(member("a"), member("b"))
    registry.replace([member("c"), member("b")], 101.0, 60.0)
    assert names(registry) == ["c", "b", "a"]
    assert [each.backend.name for each in registry.removed()] == ["a"]


def test_a_backend_leaves_when_its_requests_are_over_or_its_time_is() -> None:
    registry = make_roll(member("a"), member("b"))
    a, b = registry.records.values()
    registry.replace([], 101.0, 60.0)
    a.backend.in_flight = 0
    assert gone(registry, 102.0) == [a]
    assert gone(registry, 160.9) == []
    assert gone(registry, 161.0) == [b]
    assert names(registry) == []


def test_a_backend_that_is_wanted_again_in_time_lives_on() -> None:
    registry = make_roll(member("a"))
    a = registry.records["a"]
    a.admin = AdminState.DRAINING
    registry.replace([], 101.0, 60.0)
    assert a.admin is AdminState.REMOVING
    registry.replace([member("a", weight=2.0)], 102.0, 60.0)
    assert registry.records["a"] is a
    assert (a.admin, a.finish_by, a.backend.inverse_weight) == (AdminState.DRAINING, None, 0.5)
    assert gone(registry, 1000.0) == []


def test_a_new_address_takes_the_name_and_the_old_one_gets_a_number() -> None:
    registry = make_roll(member("a", 1))
    first = registry.records["a"]
    registry.replace([member("a", 2)], 101.0, 60.0)
    second = registry.records["a"]
    second.backend.in_flight = 1
    registry.replace([member("a", 3)], 102.0, 60.0)
    assert names(registry) == ["a", "a~1", "a~2"]
    assert registry.records["a"] not in (first, second)
    assert {registry.records["a~1"], registry.records["a~2"]} == {first, second}


def test_an_address_that_comes_back_gets_its_old_name_back() -> None:
    registry = make_roll(member("a", 1))
    first = registry.records["a"]
    registry.replace([member("a", 2)], 101.0, 60.0)
    second = registry.records["a"]
    second.backend.in_flight = 1
    registry.replace([member("a", 1)], 102.0, 60.0)
    assert names(registry) == ["a", "a~1"]
    assert (registry.records["a"], registry.records["a~1"]) == (first, second)


def test_a_name_with_a_number_gives_way_when_it_is_wanted() -> None:
    registry = make_roll(member("a", 1))
    first = registry.records["a"]
    registry.replace([member("a", 2), member("a~1", 3)], 101.0, 60.0)
    assert names(registry) == ["a", "a~1", "a~2"]
    assert registry.records["a~2"] is first


def test_the_word_of_the_operator_goes_with_the_name() -> None:
    registry = make_roll(member("a", 1))
    registry.records["a"].admin = AdminState.DISABLED
    registry.replace([member("a", 2)], 101.0, 60.0)
    assert registry.records["a"].admin is AdminState.DISABLED
    # The one that leaves says nothing about a successor of its number.
    registry.replace([member("a~1", 5)], 102.0, 60.0)
    assert registry.records["a~1"].admin is AdminState.ENABLED


def test_only_so_many_leave_at_a_time() -> None:
    registry = make_roll(*(member(f"b{number}") for number in range(MOST_REMOVED + 2)))
    first = list(registry.records.values())[:2]
    registry.replace([], 101.0, 60.0)
    assert gone(registry, 101.0) == first
    assert len(names(registry)) == MOST_REMOVED
