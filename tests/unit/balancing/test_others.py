from __future__ import annotations

import pytest

from lb.balancing.cost import Cost
from lb.balancing.others import Others, Trend


def learnt(count: int = 30) -> Cost:
    cost = Cost()
    for number in range(count):
        cost.learn(0.01, 1, 0, 0.1 * number)
    return cost


def matters(others: Others) -> bool:
    return others.matters


def told(
    others: Others,
    cost: Cost,
    now: float,
    *,
    wait_s: float = 0.0,
    share: float | None = None,
    device: float | None = None,
) -> None:
    others.told(cost, now, wait_s=wait_s, share=share, device=device)


def test_only_what_has_changed_since_the_cost_was_learnt_counts() -> None:
    others, cost = Others(), learnt()
    told(others, cost, 10.0, share=0.5)
    assert not matters(others)
    told(others, cost, 11.0, share=0.75)
    assert matters(others)
    assert others.slower(11.0) == pytest.approx(2.0)


def test_others_that_leave_make_a_lane_faster() -> None:
    others, cost = Others(), learnt()
    told(others, cost, 10.0, device=0.5)
    told(others, cost, 11.0, device=0.0)
    assert others.slower(11.0) == pytest.approx(0.5)


def test_what_is_measured_meanwhile_contains_it() -> None:
    others, cost = Others(), learnt()
    told(others, cost, 10.0, share=0.0)
    told(others, cost, 11.0, share=0.6)
    assert others.slower(11.0) == pytest.approx(2.5)
    for number in range(40):
        cost.learn(0.025, 1, 0, 11.0 + 0.01 * number)
    told(others, cost, 12.0, share=0.6)
    assert not matters(others)
    assert others.slower(12.0) == pytest.approx(1.0)


def test_where_nothing_was_learnt_all_of_it_counts() -> None:
    others = Others()
    told(others, Cost(), 10.0, share=0.5, wait_s=0.2)
    assert others.slower(10.0) == pytest.approx(2.0)
    assert others.wait_s(10.0) == pytest.approx(0.2)


def test_the_effect_is_bounded_both_ways() -> None:
    others, cost = Others(), learnt()
    told(others, cost, 10.0, share=0.0)
    told(others, cost, 11.0, share=1.0)
    assert others.slower(11.0) == 4.0
    others = Others()
    told(others, cost, 10.0, share=1.0)
    told(others, cost, 11.0, share=0.0)
    assert others.slower(11.0) == 0.25


def test_it_fades_when_no_news_come() -> None:
    others, cost = Others(), learnt()
    told(others, cost, 10.0, share=0.0)
    told(others, cost, 12.0, share=0.75)
    factors = [others.slower(12.0 + age) for age in (0.0, 3.0, 4.0, 5.0, 30.0)]
    assert factors[:2] == [4.0, 4.0]
    assert factors[2] == pytest.approx(2.0)
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] == pytest.approx(1.0)


def test_what_waits_fades_from_the_beginning() -> None:
    others, cost = Others(), learnt()
    told(others, cost, 10.0)
    told(others, cost, 11.0, wait_s=0.4)
    assert matters(others)
    assert others.wait_s(11.0) == pytest.approx(0.4)
    assert others.wait_s(12.0) == pytest.approx(0.2)
    told(others, cost, 12.0, wait_s=0.0)
    assert not matters(others)


def test_the_stronger_sign_counts_and_not_both() -> None:
    others, cost = Others(), learnt()
    told(others, cost, 10.0, share=0.0, device=0.0)
    told(others, cost, 11.0, share=0.5, device=0.75)
    assert others.slower(11.0) == pytest.approx(4.0)
    told(others, cost, 12.0, share=0.0, device=0.5)
    assert others.slower(12.0) == pytest.approx(2.0)


def test_what_cannot_be_told_says_nothing_and_begins_anew() -> None:
    trend = Trend()
    trend.told(0.2, 0.0, is_learnt=True)
    trend.told(None, 0.0, is_learnt=True)
    assert trend.slower == 1.0
    assert trend.more == 0.0
    trend.told(0.9, 0.0, is_learnt=True)
    assert trend.slower == 1.0
