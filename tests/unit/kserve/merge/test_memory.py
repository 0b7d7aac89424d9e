"""Sums over backends that come, go and begin anew."""

from __future__ import annotations

import pytest

from lb.kserve.merge import memory as module
from lb.kserve.merge.counters import Counters, ModelKey
from lb.kserve.merge.memory import StatisticsMemory, added
from lb.kserve.merge.steps import finish
from tests.fakes.work import instructions

KEY = ("m", "1")
COUNT = ("inference_count",)
LAST = ("last_inference",)


def sum_of(memory: StatisticsMemory, key: ModelKey) -> Counters:
    return finish(memory.total(key))


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
        return sum_of(self.memory, key).get(COUNT, 0)


def test_backends_are_summed_and_the_last_inference_is_the_latest() -> None:
    world = World()
    assert world.says("a", 5, last=70) == 5
    assert world.says("b", 7, last=30) == 12
    assert world.says("a", 6, last=80) == 13
    assert sum_of(world.memory, KEY)[LAST] == 80


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
    assert sum_of(world.memory, KEY)[LAST] == 95


def test_a_clock_that_is_set_back_is_no_restart() -> None:
    world = World()
    world.says("a", 5, last=70)
    assert world.says("a", 6, last=60) == 6


def test_an_older_answer_that_comes_later_is_not_taken_for_a_restart() -> None:
    memory = StatisticsMemory()
    memory.take("a", KEY, {COUNT: 9}, asked_at=2.0, answered_at=3.0)
    memory.take("a", KEY, {COUNT: 8}, asked_at=1.0, answered_at=4.0)
    assert sum_of(memory, KEY) == {COUNT: 9}
    memory.take("a", KEY, {COUNT: 8}, asked_at=3.5, answered_at=5.0)
    assert sum_of(memory, KEY) == {COUNT: 17}


def test_models_and_versions_are_counted_apart() -> None:
    world = World()
    world.says("a", 5)
    world.says("a", 7, key=("m", "2"))
    assert world.total() == 5
    assert world.total(("other", "1")) == 0


def test_the_models_spoken_of_longest_ago_are_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_COUNTERS", 50)
    world = World()
    keys = [(f"m{at}", "1") for at in range(3)]
    for key in keys:
        world.says("a", 5, key=key)
    world.says("b", 5, key=keys[0])
    assert [world.total(key) for key in keys] == [10, 5, 5]
    world.memory.trim()
    assert [world.total(key) for key in keys] == [10, 0, 5]
    assert 0 < len(world.memory) <= 50


def test_models_that_have_counted_nothing_take_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COUNTERS", 50)
    memory = StatisticsMemory()
    for at in range(10):
        memory.take("a", (f"m{at}", "1"), {}, 0.0, 1.0)
    memory.trim()
    assert 0 < len(memory) <= 50


def test_backends_without_end_are_summed_and_take_no_more_room() -> None:
    world = World()
    for at in range(1000):
        assert world.says(f"pod-{at}", 2) == 2 * (at + 1)
    assert len(world.memory) <= 12 * 257


def test_a_pool_of_hundreds_that_all_live_is_counted_once() -> None:
    world = World()
    world.memory.asked = 600
    for _ in range(3):
        for at in range(600):
            world.says(f"b{at}", 5)
        assert world.total() == 3000


def rows_of(keys: range) -> Counters:
    """Numbers of responses by key, and a count."""
    found: Counters = {COUNT: keys.stop}
    found.update({("response_stats", str(key), "success", "count"): 1 for key in keys})
    return found


def test_rows_that_never_repeat_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time all rows are others, which is how a restart looks. The newest ones stay."""
    monkeypatch.setattr(module, "MAX_BASE", 500)
    memory = StatisticsMemory()
    inferences = 0
    for view in range(60):
        rows = rows_of(range(100 * view, 100 * (view + 1)))
        inferences += rows[COUNT]
        memory.take("a", KEY, rows, 2.0 * view, 2.0 * view + 1)
        total = sum_of(memory, KEY)
        assert total[COUNT] == inferences
        assert rows.keys() <= total.keys()
        assert len(memory) <= 500 + 101 + 16
    assert len(total) > 500


def test_rows_that_a_server_still_has_are_kept_beyond_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_BASE", 50)
    memory = StatisticsMemory()
    rows = rows_of(range(100))
    memory.take("a", KEY, {path: 2 * value for path, value in rows.items()}, 0.0, 1.0)
    memory.take("a", KEY, rows, 2.0, 3.0)  # it has begun anew
    assert sum_of(memory, KEY) == {path: 3 * value for path, value in rows.items()}


def test_one_model_that_is_too_large_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COUNTERS", 50)
    memory = StatisticsMemory()
    memory.take("a", KEY, rows_of(range(100)), 0.0, 1.0)
    assert len(sum_of(memory, KEY)) == 101
    memory.trim()
    assert len(memory) == 0
    memory.take("a", KEY, rows_of(range(100)), 2.0, 3.0)
    assert sum_of(memory, KEY)[COUNT] == 100


def test_a_row_that_made_room_is_no_restart() -> None:
    memory = StatisticsMemory()
    memory.take("a", KEY, rows_of(range(5)), 0.0, 1.0)
    fewer = rows_of(range(1, 5))
    memory.take("a", KEY, fewer, 2.0, 3.0, is_whole=False)
    assert sum_of(memory, KEY) == fewer
    memory.take("a", KEY, rows_of(range(2, 5)), 4.0, 5.0)
    assert sum_of(memory, KEY)[COUNT] == 10


def test_sums_leave_their_parts_alone() -> None:
    one: Counters = {COUNT: 1, LAST: 5}
    other: Counters = {COUNT: 2, LAST: 3, ("x",): 1}
    assert added(one, other) == {COUNT: 3, LAST: 5, ("x",): 1}
    assert one == {COUNT: 1, LAST: 5}


def test_what_a_backend_says_costs_the_same_beside_any_number_of_others() -> None:
    memory = StatisticsMemory()
    memory.asked = 1000
    counters: Counters = {COUNT: 1}

    def takes(backend: str) -> int:
        return instructions(lambda: memory.take(backend, KEY, counters, 0.0, 1.0))

    takes("first")
    alone = takes("second")
    for at in range(500):
        memory.take(f"b{at}", KEY, counters, 0.0, 1.0)
    assert takes("last") <= 2 * alone


def test_a_sum_is_of_one_moment() -> None:
    memory = StatisticsMemory()
    memory.asked = 1000
    for at in range(900):
        memory.take(f"b{at}", KEY, rows_of(range(20)), 0.0, 1.0)
    whole = sum_of(memory, KEY)
    work = memory.total(KEY)
    next(work)
    memory.take("b899", KEY, rows_of(range(40)), 2.0, 3.0)
    memory.take("new", KEY, rows_of(range(20)), 2.0, 3.0)
    assert finish(work) == whole
    assert sum_of(memory, KEY)[COUNT] == whole[COUNT] + 40
