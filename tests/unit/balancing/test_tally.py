"""What lanes know together."""

from __future__ import annotations

from lb.balancing.lanes import Lane
from lb.balancing.site import Site
from lb.balancing.tally import IDLE_ALIKE, Tally
from lb.domain.schedule import LaneLimit
from tests.fakes.backends import make_backend


def test_what_few_requests_exceed_is_learnt_and_forgotten_in_a_pause() -> None:
    tally = Tally()
    for number in range(400):
        tally.came(0.01 if number % 2 else 0.03, number / 100)
    assert 0.03 < tally.tail_s < 0.06
    tally.came(0.01, 10.0)
    assert tally.tail_s == 0.0


def test_a_rare_crowd_is_remembered_for_hundreds_of_requests() -> None:
    tally = Tally()
    for number in range(400):
        tally.came(0.01, number / 100)
    for number in range(400, 450):
        tally.came(0.1, number / 100)
    crowded_s = tally.tail_s
    assert crowded_s > 0.05
    for number in range(450, 500):
        tally.came(0.01, number / 100)
    assert tally.tail_s > 0.7 * crowded_s


def test_lanes_count_as_more_alike_where_costs_vary_by_what_cannot_be_seen() -> None:
    tally = Tally()
    for _ in range(200):
        tally.executed(0.0102, 0.01)
    assert tally.idle_alike == IDLE_ALIKE
    for number in range(200):
        tally.executed(0.05 if number % 2 else 0.002, 0.01)
    assert tally.idle_alike > 2 * IDLE_ALIKE


def lane_of(tally: Tally, *took_s: float) -> Lane:
    lane = Lane(Site(make_backend()), LaneLimit(2), tally)
    for each_s in took_s:
        lane.learn(each_s, 1, 0, 1.0)
    return lane


def test_the_fastest_is_found_anew_when_it_is_gone_or_not_known_any_more() -> None:
    tally = Tally()
    fast, slow = (lane_of(tally, each_s, each_s) for each_s in (0.005, 0.04))
    slower, hardly_known = lane_of(tally, 0.05, 0.05), lane_of(tally, 0.001)
    tally.lost((fast, slow, slower, hardly_known))
    assert (tally.best, tally.best_s) == (fast, 0.005)
    fast.forget()
    tally.lost((fast, slow, slower, hardly_known))
    assert (tally.best, tally.best_s) == (slow, 0.04)
    tally.lost((slower, hardly_known))
    assert (tally.best, tally.best_s) == (slower, 0.05)


def test_where_nothing_is_known_any_more_the_first_that_ends_tells() -> None:
    tally = Tally()
    fast, slow = lane_of(tally, 0.005, 0.005), lane_of(tally)
    fast.forget()
    tally.lost((fast, slow))
    assert not tally.best
    for _ in range(2):
        slow.learn(0.04, 1, 0, 2.0)
    assert tally.best is slow
    assert tally.best_s == 0.04
