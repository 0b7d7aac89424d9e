"""Sums over backends that come, go and begin anew."""

from __future__ import annotations

import pytest

from lb.kserve.merge import memory as module
from lb.kserve.merge.counters import Counters
from lb.kserve.merge.memory import StatisticsMemory, added

KEY = ("m", "1")
COUNT = ("inference_count",)
LAST = ("last_inference",)


class World:
    """A memory that is told things one after the other."""

    def __init__(self) -> None:
        self.memory = StatisticsMemory()
        self.now = 0.0

    def says(self, backend: str, count: int, last: int = 0, key: tuple[str, str] = KEY) -> int:
        """A backend gives a number. Returns the sum of all."""
        self.now += 1.0
        counters: Counters = {COUNT: count, LAST: last}
        self.memory.take(backend, key, counters, self.now, self.now + 0.5)
        return self.total(key)

    def total(self, key: tuple[str, str] = KEY) -> int:
        return self.memory.total(key).get(COUNT, 0)


def test_backends_are_summed_and_the_last_inference_is_the_latest() -> None:
    world = World()
    assert world.says("a", 5, last=70) == 5
    assert world.says("b", 7, last=30) == 12
    assert world.says("a", 6, last=80) == 13
    assert world.memory.total(KEY)[LAST] == 80


def test_what_a_backend_counted_stays_when_it_is_gone() -> None:
    world = World()
    world.says("a", 5)
    assert world.says("b", 1) == 6
    assert world.says("b", 2) == 7


def test_a_backend_that_begins_anew_is_counted_on() -> None:
    world = World()
    world.says("a", 5, last=70)
    assert world.says("a", 0) == 5
    assert world.says("a", 3, last=90) == 8
    assert world.says("a", 1, last=95) == 9
    assert world.memory.total(KEY)[LAST] == 95


def test_a_clock_that_is_set_back_is_no_restart() -> None:
    world = World()
    world.says("a", 5, last=70)
    assert world.says("a", 6, last=60) == 6


def test_an_older_answer_that_comes_later_is_not_taken_for_a_restart() -> None:
    memory = StatisticsMemory()
    memory.take("a", KEY, {COUNT: 9}, asked_at=2.0, answered_at=3.0)
    memory.take("a", KEY, {COUNT: 8}, asked_at=1.0, answered_at=4.0)
    assert memory.total(KEY) == {COUNT: 9}
    memory.take("a", KEY, {COUNT: 8}, asked_at=3.5, answered_at=5.0)
    assert memory.total(KEY) == {COUNT: 17}


def test_models_and_versions_are_counted_apart() -> None:
    world = World()
    world.says("a", 5)
    world.says("a", 7, key=("m", "2"))
    assert world.total() == 5
    assert world.total(("other", "1")) == 0


def test_the_models_spoken_of_longest_ago_are_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_COUNTERS", 6)
    world = World()
    keys = [(f"m{at}", "1") for at in range(3)]
    for key in keys:
        world.says("a", 5, key=key)
    world.says("b", 5, key=keys[0])
    assert [world.total(key) for key in keys] == [10, 5, 5]
    world.memory.trim()
    assert [world.total(key) for key in keys] == [10, 0, 5]
    assert len(world.memory) == 6


def test_models_that_have_counted_nothing_take_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COUNTERS", 6)
    memory = StatisticsMemory()
    for at in range(10):
        memory.take("a", (f"m{at}", "1"), {}, 0.0, 1.0)
    memory.trim()
    assert len(memory) == 6


def test_backends_without_end_are_summed_and_take_no_more_room() -> None:
    world = World()
    for at in range(1000):
        assert world.says(f"pod-{at}", 2) == 2 * (at + 1)
    assert len(world.memory) <= 2 * 257


def test_sums_leave_their_parts_alone() -> None:
    one: Counters = {COUNT: 1, LAST: 5}
    other: Counters = {COUNT: 2, LAST: 3, ("x",): 1}
    assert added(one, other) == {COUNT: 3, LAST: 5, ("x",): 1}
    assert one == {COUNT: 1, LAST: 5}
