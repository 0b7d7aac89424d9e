"""What sequences of a model are like."""

from __future__ import annotations

import pytest

from lb.balancing.habits import FADE_S, UNKNOWN_S, Habit, StepCost, faded
from tests.fakes.backends import make_backend

SECOND = 1.0


END = 2000.0


def taught(cost: StepCost, *took_s: float) -> StepCost:
    """Steps one after the other, with pauses between them; the last one is over at `END`."""
    for number, took in enumerate(took_s, start=1 - len(took_s)):
        cost.ended(END + 10 * number - took, END + 10 * number)
    return cost


def test_a_rate_fades_with_silence() -> None:
    assert faded(2.0, 0.0) == 2.0
    assert faded(2.0, FADE_S) == pytest.approx(2.0 * 0.3679, rel=1e-3)
    assert faded(2.0, 10_000 * FADE_S) == 0.0


def test_the_usual_rate_is_that_between_the_first_step_and_the_last() -> None:
    habit = Habit()
    for _ in range(500):
        habit.note(0.03, is_step=False)  # a step is over
        habit.note(0.07, is_step=True)  # the next one begins
    assert habit.rate == pytest.approx(10.0, rel=0.05)


def test_the_usual_rate_of_many_that_are_slow_and_few_that_are_fast_is_their_mean() -> None:
    habit = Habit()
    for number in range(2000):
        habit.note(0.1, is_step=True)
        if number % 10 == 0:
            habit.note(1.0, is_step=True)
    # In a second one sequence has ten steps, and another has one.
    assert habit.rate == pytest.approx(11.0 / 2.0, rel=0.1)


def test_steps_one_after_the_other_cost_what_they_take() -> None:
    cost = taught(StepCost(), *[0.02] * 20)
    assert cost.is_known
    assert cost.mean_s == pytest.approx(0.02)


def test_steps_of_one_batch_share_its_time() -> None:
    cost = StepCost()
    for batch in range(200):
        for _ in range(4):
            cost.ended(batch * SECOND, batch * SECOND + 0.02)
    assert cost.mean_s == pytest.approx(0.005, rel=0.3)


def test_steps_that_wait_for_each_other_cost_the_time_between_their_ends() -> None:
    cost = StepCost()
    for number in range(100):
        cost.ended(number * 0.01 - 0.09, number * 0.01 + 0.01)  # ten at a time
    assert cost.mean_s == pytest.approx(0.01, rel=0.1)


def test_a_first_step_that_takes_very_long_counts_little() -> None:
    cost = taught(StepCost(), 5.0, *[0.01] * 15)
    assert cost.mean_s == cost.quick_s == pytest.approx(0.01)


def test_an_outlier_changes_little() -> None:
    cost = taught(StepCost(), *[0.01] * 64, 60.0)
    assert cost.mean_s < 0.012


def test_another_speed_is_learnt() -> None:
    cost = taught(StepCost(), *[0.01] * 64, *[0.04] * 200)
    assert cost.mean_s == pytest.approx(0.04, rel=0.05)


def test_an_unknown_backend_counts_as_the_best_one_of_its_weight() -> None:
    fast, slow, new = make_backend("fast"), make_backend("slow"), make_backend("new", weight=2.0)
    habit = Habit()
    assert habit.step_s(new) == UNKNOWN_S / 2
    taught(habit.cost(fast), *[0.01] * 20)
    taught(habit.cost(slow), *[0.08] * 20)
    units = [habit.unit_s(each, END) for each in (fast, slow, new)]
    assert units == pytest.approx([0.01, 0.08, 0.005])


def test_backends_that_hardly_differ_are_alike() -> None:
    habit = Habit()
    backends = [make_backend(f"b{number}") for number in range(4)]
    for backend, took in zip(backends, (0.010, 0.012, 0.011, 0.04), strict=True):
        taught(habit.cost(backend), *[took] * 30)
    units = [habit.unit_s(backend, END) for backend in backends]
    assert units[0] == units[1] == units[2] == pytest.approx(0.011)
    assert units[3] == pytest.approx(0.04)


def test_backends_that_were_busy_when_they_were_looked_at_are_alike() -> None:
    habit = Habit()
    idle, busy = make_backend("idle"), make_backend("busy")
    taught(habit.cost(idle), *[0.010] * 40)
    for number in range(400):  # many at once: all but the first wait for others
        habit.cost(busy).ended(5000.0 - 0.01, 5000.0 + number * 0.002)
    assert habit.unit_s(idle, 5001.0) == habit.unit_s(busy, 5001.0)


def test_a_backend_that_has_become_slow_is_known_to_be_after_some_minutes() -> None:
    cost = taught(StepCost(), *[0.01] * 20)
    for second in range(10_000, 10_300):
        cost.ended(second, second + 0.04)
    assert cost.quick_s == pytest.approx(0.04)


def test_a_slow_backend_is_tried_again_when_only_others_were_heard_of() -> None:
    habit = Habit()
    fast, slow = make_backend("fast"), make_backend("slow")
    taught(habit.cost(slow), *[0.08] * 20)
    taught(habit.cost(fast), *[0.01] * 20)
    assert habit.unit_s(slow, END + 300.0) == pytest.approx(0.08)  # it was quiet everywhere
    habit.cost(fast).ended(END + 300.0, END + 300.01)
    assert habit.unit_s(slow, END + 301.0) == habit.unit_s(fast, END + 301.0)


def test_a_backend_that_starts_slowly_takes_longer() -> None:
    backend = make_backend()
    habit = Habit()
    taught(habit.cost(backend), *[0.01] * 20)
    backend.set_share(0.25)
    assert habit.unit_s(backend, END) == pytest.approx(0.04)


def test_backends_that_have_gone_are_forgotten() -> None:
    gone, stays = make_backend("gone"), make_backend("stays")
    habit = Habit()
    for backend in (gone, stays):
        taught(habit.cost(backend), *[0.05] * 20)
        habit.unit_s(backend, END)
    habit.keep_only(frozenset({stays}))
    assert set(habit.costs) == {stays}
    assert habit.unit_s(stays, END + 1.0) == pytest.approx(0.05)
