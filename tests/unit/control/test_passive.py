from __future__ import annotations

import logging

import pytest

from lb.control.passive import PassiveHealth
from lb.domain.backend import Backend
from lb.domain.fault import Fault
from lb.health.outliers import OutlierRules
from tests.fakes.backends import make_backend


class Told:
    """Passive health of three backends, and how often it told of a change."""

    def __init__(self, rules: OutlierRules | None) -> None:
        self.changes = 0
        self.passive = PassiveHealth(rules)
        self.passive.changed = self.count
        self.backends = [make_backend(name) for name in "abc"]
        self.now = 100.0

    def count(self, _now: float) -> None:
        self.changes += 1

    def serve_well(self) -> None:
        for _ in range(30):
            self.now += 0.1
            self.passive.judge(self.backends, self.now)
            for backend in self.backends:
                while backend.reports_due:
                    self.passive.answered(backend, b"m", 0.02, self.now)

    def fail(self, backend: Backend, times: int, fault: Fault = Fault.DEVICE) -> None:
        for _ in range(times):
            self.passive.failed(backend, b"m", fault, 0.001, self.now)


def test_who_is_out_is_told_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(OutlierRules())
    told.serve_well()
    broken = told.backends[1]
    with caplog.at_level(logging.INFO):
        told.fail(broken, 5)
    assert told.changes == 1
    assert told.passive.out == {broken}
    assert told.passive.models == {broken: frozenset({b"m"})}
    assert told.passive.counts == {broken: {"device": 1}}
    assert told.passive.reasons() == {
        broken: "m: ejected, its answers say that its device is broken"
    }
    [line] = caplog.records
    assert line.message == "backend ejected"
    assert line.__dict__["backend"] == "b"
    assert line.__dict__["reason"] == "device"


def test_its_way_back_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(OutlierRules())
    told.serve_well()
    broken = told.backends[1]
    told.fail(broken, 5)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        told.now += 5.1
        told.passive.judge(told.backends, told.now)
        assert set(told.passive.trials) == {b"m"}
        assert told.passive.trials[b"m"].backend is broken
        told.passive.answered(broken, b"m", 0.02, told.now)
    assert [each.message for each in caplog.records] == [
        "backend on probation",
        "backend serves again",
    ]
    assert told.passive.is_quiet
    assert told.passive.out == frozenset()


def test_nobody_is_judged_without_rules() -> None:
    told = Told(None)
    told.passive.judge(told.backends, told.now)
    told.fail(told.backends[0], 100)
    told.passive.abandoned(told.backends[0], b"m", 100.0, told.now)
    assert told.passive.is_quiet
    assert told.changes == 0
    assert all(not backend.reports_due for backend in told.backends)


def test_answers_that_somebody_else_asked_for_judge_nobody_without_rules() -> None:
    told = Told(None)
    for second in range(20):
        told.now += 1.0
        told.passive.judge(told.backends, told.now)
        times = (0.01, 0.01, 0.01 if second < 10 else 1.0)
        for backend, took_s in zip(told.backends, times, strict=True):
            backend.reports_due = max(backend.reports_due, 1)  # as hedging does
            told.passive.answered(backend, b"m", took_s, told.now)
    assert told.passive.is_quiet
    assert told.passive.out == frozenset()
    assert all(not backend.reports_due for backend in told.backends)


def test_without_rules_nobody_stays_out() -> None:
    told = Told(OutlierRules())
    told.serve_well()
    told.fail(told.backends[1], 5)
    told.passive.configure(None, told.now)
    assert told.passive.is_quiet
    assert told.changes == 2


def test_a_backend_that_died_is_not_out_any_more() -> None:
    told = Told(OutlierRules())
    told.serve_well()
    told.fail(told.backends[1], 5)
    told.passive.forget(told.backends[1], told.now)
    assert told.passive.out == frozenset()
    assert told.passive.counts
    told.passive.removed(told.backends[0], told.now)
    told.passive.removed(told.backends[1], told.now)
    assert not told.passive.counts
    assert told.changes == 2
