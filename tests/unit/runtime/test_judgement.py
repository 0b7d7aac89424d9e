from __future__ import annotations

from typing import Any

from lb.health.outliers import OutlierRules
from lb.health.ramp import RampRules
from lb.runtime.judgement import apply_judgement, outlier_rules, ramp_rules
from lb.settings.model import Settings
from tests.fakes.pool import make_pool


def settings(**more: Any) -> Settings:
    usual = {"listen": {"http": "127.0.0.1:0"}, "backends": [{"name": "a", "http": "127.0.0.1:1"}]}
    return Settings.model_validate(usual | more)


def test_defaults_are_those_of_the_rules() -> None:
    assert outlier_rules(settings()) == OutlierRules()
    assert ramp_rules(settings()) == RampRules()


def test_each_setting_has_its_rule() -> None:
    outliers = {
        "consecutive_failures": 7, "latency_factor": 9, "base_ejection_time": "1s",
    }  # fmt: skip
    assert outlier_rules(settings(outlier_detection=outliers)) == OutlierRules(
        consecutive=7, latency_factor=9.0, base_s=1.0
    )
    assert ramp_rules(settings(slow_start={"window": "3s"})) == RampRules(window_s=3.0)


def test_an_ejection_may_begin_longer_than_the_usual_maximum() -> None:
    rules = outlier_rules(settings(outlier_detection={"base_ejection_time": "10m"}))
    assert rules is not None
    assert (rules.base_s, rules.max_s) == (600.0, 600.0)


def test_a_directory_goes_by_them_from_then_on() -> None:
    directory = make_pool()
    apply_judgement(directory, settings(slow_start={"window": "3s"}), 102.0)
    directory.look(102.0)
    assert directory.ramps.rules == RampRules(window_s=3.0)
    assert all(record.backend.reports_due for record in directory.records)
    apply_judgement(directory, settings(outlier_detection={"enabled": False}), 103.0)
    for record in directory.records:
        record.backend.reports_due = 0
    directory.look(102.1)
    assert not any(record.backend.reports_due for record in directory.records)
