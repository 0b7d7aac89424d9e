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
        "consecutive": 7, "share": 0.4, "latency_factor": 9, "base": "1s", "max": "2s",
    }  # fmt: skip
    assert outlier_rules(settings(outliers=outliers)) == OutlierRules(
        consecutive=7, share=0.4, latency_factor=9.0, base_s=1.0, max_s=2.0
    )
    slow = {"window": "3s", "aggression": 2, "min_share": 0.2}
    assert ramp_rules(settings(slow_start=slow)) == RampRules(
        window_s=3.0, aggression=2.0, min_share=0.2
    )


def test_a_directory_goes_by_them_from_then_on() -> None:
    directory = make_pool()
    apply_judgement(directory, settings(outliers={"min_left": 0.5}), 102.0)
    directory.look(102.0)
    assert directory.passive.least == 0.5
    assert directory.ramps.rules == RampRules()
    assert all(record.backend.reports_due for record in directory.records)
    apply_judgement(directory, settings(outliers={"enabled": False}), 103.0)
    for record in directory.records:
        record.backend.reports_due = 0
    directory.look(102.1)
    assert not any(record.backend.reports_due for record in directory.records)
