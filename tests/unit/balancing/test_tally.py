"""What lanes know together."""

from __future__ import annotations

from lb.balancing.tally import IDLE_ALIKE, Tally


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
