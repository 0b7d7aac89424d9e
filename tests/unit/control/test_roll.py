from __future__ import annotations

import dataclasses

from lb.control.record import BackendRecord, Member
from lb.control.roll import MOST_REMOVED, Roll
from lb.domain.backend import Address, AdminState
from tests.fakes.backends import make_spec


def member(name: str, port: int = 8000, weight: float = 1.0) -> Member:
    address = Address(host="127.0.0.1", port=port)
    return Member(dataclasses.replace(make_spec(name), http=address, weight=weight))


def make_roll(*members: Member, busy: bool = True) -> Roll:
    roll = Roll()
    roll.replace(members, 100.0, 60.0)
    for record in roll.records.values():
        record.backend.in_flight = int(busy)
    return roll


def names(roll: Roll) -> list[str]:
    for name, record in roll.records.items():
        assert record.backend.name == name
    return list(roll.records)


def gone(roll: Roll, now: float) -> list[BackendRecord]:
    return roll.remove_finished(now)


def test_those_that_leave_come_last() -> None:
    roll = make_roll(member("a"), member("b"))
    roll.replace([member("c"), member("b")], 101.0, 60.0)
    assert names(roll) == ["c", "b", "a"]
    assert [each.backend.name for each in roll.removed()] == ["a"]


def test_a_backend_leaves_when_its_requests_are_over_or_its_time_is() -> None:
    roll = make_roll(member("a"), member("b"))
    a, b = roll.records.values()
    roll.replace([], 101.0, 60.0)
    a.backend.in_flight = 0
    assert gone(roll, 102.0) == [a]
    assert gone(roll, 160.9) == []
    assert gone(roll, 161.0) == [b]
    assert names(roll) == []


def test_a_backend_that_is_wanted_again_in_time_lives_on() -> None:
    roll = make_roll(member("a"))
    a = roll.records["a"]
    a.admin = AdminState.DRAINING
    roll.replace([], 101.0, 60.0)
    assert a.admin is AdminState.REMOVING
    roll.replace([member("a", weight=2.0)], 102.0, 60.0)
    assert roll.records["a"] is a
    assert (a.admin, a.finish_by, a.backend.inverse_weight) == (AdminState.DRAINING, None, 0.5)
    assert gone(roll, 1000.0) == []


def test_a_new_address_takes_the_name_and_the_old_one_gets_a_number() -> None:
    roll = make_roll(member("a", 1))
    first = roll.records["a"]
    roll.replace([member("a", 2)], 101.0, 60.0)
    second = roll.records["a"]
    second.backend.in_flight = 1
    roll.replace([member("a", 3)], 102.0, 60.0)
    assert names(roll) == ["a", "a~1", "a~2"]
    assert roll.records["a"] not in (first, second)
    assert {roll.records["a~1"], roll.records["a~2"]} == {first, second}


def test_an_address_that_comes_back_gets_its_old_name_back() -> None:
    roll = make_roll(member("a", 1))
    first = roll.records["a"]
    roll.replace([member("a", 2)], 101.0, 60.0)
    second = roll.records["a"]
    second.backend.in_flight = 1
    roll.replace([member("a", 1)], 102.0, 60.0)
    assert names(roll) == ["a", "a~1"]
    assert (roll.records["a"], roll.records["a~1"]) == (first, second)


def test_a_name_with_a_number_gives_way_when_it_is_wanted() -> None:
    roll = make_roll(member("a", 1))
    first = roll.records["a"]
    roll.replace([member("a", 2), member("a~1", 3)], 101.0, 60.0)
    assert names(roll) == ["a", "a~1", "a~2"]
    assert roll.records["a~2"] is first


def test_the_word_of_the_operator_goes_with_the_name() -> None:
    roll = make_roll(member("a", 1))
    roll.records["a"].admin = AdminState.DISABLED
    roll.replace([member("a", 2)], 101.0, 60.0)
    assert roll.records["a"].admin is AdminState.DISABLED
    # The one that leaves says nothing about a successor of its number.
    roll.replace([member("a~1", 5)], 102.0, 60.0)
    assert roll.records["a~1"].admin is AdminState.ENABLED


def test_only_so_many_leave_at_a_time() -> None:
    roll = make_roll(*(member(f"b{number}") for number in range(MOST_REMOVED + 2)))
    first = list(roll.records.values())[:2]
    roll.replace([], 101.0, 60.0)
    assert gone(roll, 101.0) == first
    assert len(names(roll)) == MOST_REMOVED
