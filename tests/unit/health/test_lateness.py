from __future__ import annotations

from lb.health.lateness import Lateness, is_excused


def test_what_comes_in_time_is_not_late() -> None:
    lateness = Lateness(0.1, 100.0)
    assert lateness.measure(100.1) == 0.0
    assert lateness.measure(100.15) == 0.0
    assert lateness.total(100.2) == 0.0


def test_lateness_adds_up() -> None:
    lateness = Lateness(0.5, 100.0)
    assert lateness.measure(101.5) == 1.0
    assert lateness.measure(102.25) == 0.25
    assert lateness.total(102.5) == 1.25


def test_what_should_have_come_by_now_counts() -> None:
    lateness = Lateness(0.5, 100.0)
    assert lateness.total(103.5) == 3.0
    lateness.measure(103.5)
    assert lateness.total(103.5) == 3.0


def test_a_quarter_of_the_time_out_is_an_excuse() -> None:
    assert not is_excused(0.5, 2.0)
    assert is_excused(0.51, 2.0)
