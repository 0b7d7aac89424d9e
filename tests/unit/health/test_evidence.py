from __future__ import annotations

import pytest

from lb.domain.fault import Fault
from lb.health.evidence import CLEAR, LIKELY, SURE, Rest, is_slow_beside, may_be_slow
from lb.health.outlier_state import FailureRate, OutlierState, Phase, Run


def outlier_state(good: int = 100, bad: int = 0, took_s: float = 0.02) -> OutlierState:
    made = OutlierState(10.0)
    total = good + bad
    for n in range(total):
        made.errors.add(is_bad=n * bad // total != (n + 1) * bad // total)
        made.usual.add(took_s, is_outlying=False)
    return made


def run(count: int, fault: Fault = Fault.ERROR) -> Run:
    made = Run()
    for _ in range(count):
        made.add(fault, 10.0)
    return made


def errors(each: OutlierState) -> FailureRate:
    return each.errors


def failing(each: OutlierState) -> Run:
    return each.failing


def rest(*others: OutlierState, now: float = 11.0) -> Rest:
    mine = outlier_state()
    return Rest([mine, *others], mine, now)


def test_five_failures_are_evidence_where_others_are_good() -> None:
    assert rest(outlier_state(), outlier_state()).odds(run(5), errors, certain=False) > SURE
    assert rest(outlier_state(), outlier_state()).odds(run(4), errors, certain=False) > LIKELY


def test_the_more_others_fail_the_longer_a_run_must_be() -> None:
    needed = []
    for bad in (0, 10, 30, 60, 90):
        others = rest(outlier_state(100 - bad, bad), outlier_state(100 - bad, bad))
        needed.append(
            next(n for n in range(1, 1000) if others.odds(run(n), errors, certain=False) > SURE)
        )
    assert needed == sorted(needed)
    assert needed[0] <= 5
    assert needed[-1] > 50


def test_nothing_is_evidence_while_nothing_is_known_of_others() -> None:
    assert rest().odds(run(1000), errors, certain=False) == 0.0
    assert rest(outlier_state(2)).odds(run(1000), errors, certain=False) == 0.0
    assert rest(outlier_state(), now=1000.0).odds(run(1000), errors, certain=True) == 0.0


def test_three_certain_failures_are_evidence_with_little_knowledge() -> None:
    assert rest(outlier_state(1)).odds(run(3, Fault.DEVICE), errors, certain=True) >= CLEAR


def test_others_fail_too_when_half_of_them_do() -> None:
    bad, good = outlier_state(), outlier_state()
    bad.failing.add(Fault.ERROR, 11.0)
    assert not rest(bad, good).fails_too(failing)
    bad.failing.add(Fault.ERROR, 11.0)
    assert rest(bad, good).fails_too(failing)
    assert not rest(bad, good, outlier_state()).fails_too(failing)
    assert rest().fails_too(failing)


def test_those_that_are_out_are_not_compared_with() -> None:
    out = outlier_state()
    out.phase = Phase.EJECTED
    others = rest(out, outlier_state())
    assert others.out == 1
    assert len(others.serving) == 1


def test_a_share_deviates_when_it_is_larger_than_that_of_the_rest() -> None:
    mine = outlier_state(70, 30)
    assert rest(outlier_state()).deviation(mine.errors, errors) > SURE
    assert rest(outlier_state(70, 30)).deviation(mine.errors, errors) < SURE
    assert rest(outlier_state()).deviation(outlier_state(97, 3).errors, errors) == 0.0


def test_an_answer_is_slow_by_what_is_usual_here_and_elsewhere() -> None:
    assert may_be_slow(outlier_state(), 0.11, 5.0)
    assert not may_be_slow(outlier_state(), 0.09, 5.0)
    assert not may_be_slow(outlier_state(good=9), 1.0, 5.0)
    assert not may_be_slow(outlier_state(took_s=0.0005), 0.004, 5.0)
    assert is_slow_beside(rest(outlier_state()), 0.11, 5.0)
    assert not is_slow_beside(rest(outlier_state(took_s=0.1)), 0.11, 5.0)
    assert not is_slow_beside(rest(), 1.0, 5.0)


def test_the_usual_time_of_others_is_that_of_the_middle_one() -> None:
    others = rest(outlier_state(took_s=0.02), outlier_state(took_s=0.03), outlier_state(took_s=5.0))
    assert others.usual_s == pytest.approx(0.03, rel=0.01)
