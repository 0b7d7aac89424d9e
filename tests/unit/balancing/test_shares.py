"""How much of each backend's time open sequences take."""

from __future__ import annotations

import pytest

from lb.balancing.habits import FADE_S, UNKNOWN_S, Habit
from lb.balancing.shares import OpenModel, Share, Totals, by_work, usual_rate
from lb.domain.backend import Backend
from tests.fakes.backends import make_backends

NOW = 100.0


def share_on(backend: Backend, model: OpenModel, rate: float = 0.0, running: int = 0) -> Share:
    share = model.shares[backend] = Share(model, backend, len(model.shares))
    share.open = running
    share.add(rate, 0.0, NOW)
    return share


def test_rates_add_up_and_fade_together() -> None:
    (backend,) = make_backends(0)
    share = share_on(backend, OpenModel(b"m", 1, Habit()))
    share.add(2.0, 4.0, NOW)
    share.add(1.0, 0.0, NOW + FADE_S)
    left = 2.0 * 0.3679
    assert share.seen(NOW + FADE_S) == pytest.approx(1.0 + left, rel=1e-3)
    assert share.expected(NOW + FADE_S) == pytest.approx(1.0 + 3.0 * left, rel=1e-3)
    share.take(2.0, 4.0, NOW)
    assert share.expected(NOW + FADE_S) == pytest.approx(1.0)
    share.take(1.0, 0.0, NOW + FADE_S)
    assert share.expected(NOW + FADE_S) == pytest.approx(0.0, abs=1e-12)


def test_more_cannot_be_taken_than_there_is() -> None:
    (backend,) = make_backends(0)
    share = share_on(backend, OpenModel(b"m", 1, Habit()), rate=1.0)
    share.take(3.0, 1.0, NOW)
    assert share.expected(NOW) == 0.0


def test_a_part_is_the_rate_times_what_a_step_takes() -> None:
    (backend,) = make_backends(0)
    share = share_on(backend, OpenModel(b"m", 1, Habit()), rate=20.0)
    share.add(0.0, 100.0, NOW)  # what is only assumed does not count
    assert share.part(NOW) == pytest.approx(20.0 * UNKNOWN_S)


def test_totals_are_of_all_models_and_without_the_dead() -> None:
    one, two = make_backends(0, 0)
    first, second = OpenModel(b"a", 1, Habit()), OpenModel(b"b", 2, Habit())
    shares = [share_on(one, first, 10.0), share_on(one, second, 5.0), share_on(two, first, 3.0)]
    totals = Totals()
    assert not totals.hold(NOW)
    parts = totals.renew(shares, NOW)
    assert parts == pytest.approx({one: 15.0 * UNKNOWN_S, two: 3.0 * UNKNOWN_S})
    assert totals.hold(NOW + 0.1)
    assert not totals.hold(NOW + 1.0)
    two.died()
    assert totals.renew(shares, NOW)[two] == 0.0


def test_a_new_one_goes_where_fewer_steps_are_to_be_expected() -> None:
    one, two = make_backends(0, 0)
    model = OpenModel(b"m", 1, Habit())
    share_on(one, model, rate=3.0, running=1)
    share_on(two, model, rate=1.0, running=4)
    assert by_work(model.habit, model.shares, Totals(), (one, two), 0, NOW) is two


def test_a_new_one_counts_at_least_as_much_as_those_that_are_open() -> None:
    one, two = make_backends(0, 0)
    model = OpenModel(b"m", 1, Habit())
    assert usual_rate(model.habit, model.shares.values(), NOW) == model.habit.rate == 1.0
    share_on(one, model, rate=30.0, running=2)
    share_on(two, model, rate=0.0, running=1)
    assert usual_rate(model.habit, model.shares.values(), NOW) == pytest.approx(10.0)
    one.died()
    assert usual_rate(model.habit, model.shares.values(), NOW + 1.0) == 1.0


def test_of_those_that_are_quiet_the_one_with_fewer_is_taken() -> None:
    one, two = make_backends(0, 0)
    model = OpenModel(b"m", 1, Habit())
    share_on(one, model, running=5)
    share_on(two, model, running=4)
    assert by_work(model.habit, model.shares, Totals(), (one, two), 0, NOW) is two


def test_other_models_count_too() -> None:
    one, two = make_backends(0, 0)
    model, other = OpenModel(b"m", 1, Habit()), OpenModel(b"o", 2, Habit())
    totals = Totals()
    totals.renew([share_on(one, other, rate=8.0, running=1)], NOW)
    assert by_work(model.habit, model.shares, totals, (one, two), 0, NOW) is two


def test_a_backend_without_a_free_slot_comes_last() -> None:
    one, two = make_backends(0, 0)
    model = OpenModel(b"m", 1, Habit())
    share_on(one, model, rate=0.1, running=4)
    share_on(two, model, rate=9.0, running=3)
    assert by_work(model.habit, model.shares, Totals(), (one, two), 4, NOW) is two
    assert by_work(model.habit, model.shares, Totals(), (one, two), 5, NOW) is one
    assert by_work(model.habit, model.shares, Totals(), (one, two), 3, NOW) is one


def test_where_all_is_equal_it_is_requests_in_flight_and_then_the_turn() -> None:
    one, two = make_backends(1, 0)
    habit = Habit()
    assert by_work(habit, {}, Totals(), (one, two), 0, NOW) is two
    two.in_flight = 1
    two.last_sequence = 7
    assert by_work(habit, {}, Totals(), (one, two), 0, NOW) is one
