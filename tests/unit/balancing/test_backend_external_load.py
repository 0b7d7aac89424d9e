from __future__ import annotations

import pytest

from lb.balancing.backend_external_load import BackendExternalLoad, Trend, queueing_slowdown
from lb.balancing.cost import Cost


def learnt(count: int = 30) -> Cost:
    cost = Cost()
    for number in range(count):
        cost.learn(0.01, 1, 0, 0.1 * number)
    return cost


def matters(others: BackendExternalLoad) -> bool:
    return others.matters


def report(
    others: BackendExternalLoad,
    cost: Cost,
    now: float,
    *,
    wait_s: float = 0.0,
    share: float | None = None,
    device: float | None = None,
    execution_s: float = 0.0,
) -> None:
    others.on_report(cost, now, wait_s=wait_s, share=share, device=device, execution_s=execution_s)


def test_requests_meet_what_others_execute() -> None:
    assert [queueing_slowdown(0.0), queueing_slowdown(0.5), queueing_slowdown(0.75)] == [
        1.0,
        1.5,
        2.5,
    ]
    assert queueing_slowdown(0.95) < queueing_slowdown(1.0) < 7.0


def test_only_what_has_changed_since_the_cost_was_learnt_counts() -> None:
    others, cost = BackendExternalLoad(), learnt()
    report(others, cost, 10.0, share=0.5)
    assert not matters(others)
    report(others, cost, 11.0, share=0.75)
    assert matters(others)
    assert others.slower(11.0) == pytest.approx(2.5 / 1.5)


def test_others_that_leave_make_a_lane_faster_but_not_than_an_execution() -> None:
    others, cost = BackendExternalLoad(), learnt()
    report(others, cost, 10.0, share=0.75)
    report(others, cost, 11.0, share=0.0)
    assert others.slower(11.0) == pytest.approx(1 / 2.5)
    report(others, cost, 12.0, share=0.0, execution_s=0.008)
    assert others.slower(12.0) == pytest.approx(0.8)
    report(others, cost, 13.0, share=0.0, execution_s=0.02)
    assert others.slower(13.0) == 1.0


def test_on_a_device_that_is_shared_the_two_take_turns() -> None:
    others, cost = BackendExternalLoad(), learnt()
    report(others, cost, 10.0, device=0.0)
    report(others, cost, 11.0, device=1.0)
    assert others.slower(11.0) == pytest.approx(2.0)
    others = BackendExternalLoad()
    report(others, cost, 10.0, device=1.0)
    report(others, cost, 11.0, device=0.0)
    assert others.slower(11.0) == pytest.approx(0.5)


def test_what_is_measured_meanwhile_contains_it() -> None:
    others, cost = BackendExternalLoad(), learnt()
    report(others, cost, 10.0, share=0.0)
    report(others, cost, 11.0, share=0.5)
    assert others.slower(11.0) == pytest.approx(1.5)
    for number in range(40):
        cost.learn(0.015, 1, 0, 11.0 + 0.01 * number)
    report(others, cost, 12.0, share=0.5)
    assert not matters(others)
    assert others.slower(12.0) == pytest.approx(1.0)


def test_where_nothing_was_learnt_all_of_it_counts() -> None:
    others = BackendExternalLoad()
    report(others, Cost(), 10.0, share=0.5, wait_s=0.2)
    assert others.slower(10.0) == pytest.approx(1.5)
    assert others.wait_s(10.0) == pytest.approx(0.2)


def test_the_effect_is_bounded_both_ways() -> None:
    others, cost = BackendExternalLoad(), learnt()
    report(others, cost, 10.0, share=0.0)
    report(others, cost, 11.0, share=1.0)
    assert others.slower(11.0) == 6.0
    others = BackendExternalLoad()
    report(others, cost, 10.0, share=1.0)
    report(others, cost, 11.0, share=0.0)
    assert others.slower(11.0) == pytest.approx(1 / 6)


def test_it_is_over_when_no_news_come() -> None:
    others, cost = BackendExternalLoad(), learnt()
    report(others, cost, 10.0, share=0.0)
    report(others, cost, 12.0, share=1.0)
    factors = [others.slower(12.0 + age) for age in (0.0, 3.0, 4.0, 5.0, 30.0)]
    assert factors == [6.0, 6.0, 1.0, 1.0, 1.0]


def test_what_waits_is_executed_meanwhile() -> None:
    others, cost = BackendExternalLoad(), learnt()
    report(others, cost, 10.0)
    report(others, cost, 11.0, wait_s=0.4)
    assert matters(others)
    assert others.wait_s(11.0) == pytest.approx(0.4)
    assert others.wait_s(11.3) == pytest.approx(0.1)
    assert others.wait_s(12.0) == 0.0
    report(others, cost, 12.0, wait_s=0.0)
    assert not matters(others)


def test_the_stronger_sign_counts_and_not_both() -> None:
    others, cost = BackendExternalLoad(), learnt()
    report(others, cost, 10.0, share=0.0, device=0.0)
    report(others, cost, 11.0, share=0.5, device=0.75)
    assert others.slower(11.0) == pytest.approx(1.75)
    report(others, cost, 12.0, share=0.75, device=0.75)
    assert others.slower(12.0) == pytest.approx(2.5)


def test_what_cannot_be_told_says_nothing_and_begins_anew() -> None:
    trend = Trend()
    trend.on_report(0.2, 0.0, is_learnt=True)
    trend.on_report(None, 0.0, is_learnt=True)
    assert trend.ratio(queueing_slowdown) == 1.0
    assert trend.more == 0.0
    trend.on_report(0.9, 0.0, is_learnt=True)
    assert trend.ratio(queueing_slowdown) == 1.0
