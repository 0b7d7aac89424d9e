"""The fault suite: scenarios, contestants, the page and the soak."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from benchmarks.faults import report, soak
from benchmarks.faults.contestants import MAKERS, TUNED, UNTUNED, tune, untune
from benchmarks.faults.ledger import Asked, Kind, join
from benchmarks.faults.play import Played, summary
from benchmarks.faults.rules import Rule
from benchmarks.faults.scenarios import Scenario, scenarios
from benchmarks.faults.site import capacity
from benchmarks.load.backend import TEMPLATES
from benchmarks.load.proxies import TRITON_LB


def envoy() -> dict[str, Any]:
    """The configuration that the benchmark of speed has, before it is rendered."""
    text = (TEMPLATES / "envoy.yaml").read_text()
    for name in ("http", "grpc", "https", "grpcs"):
        text = text.replace(f"${{{name}}}", "1")
    loaded: dict[str, Any] = yaml.safe_load(text.replace("${", "{"))
    return loaded


def test_names_are_of_one_scenario_each() -> None:
    for quick in (False, True):
        names = [each.name for each in scenarios(quick=quick)]
        assert len(names) == len(set(names))


def test_every_scenario_has_a_rule_and_known_contestants() -> None:
    for each in scenarios():
        assert each.rules
        assert set(each.only) <= set(MAKERS)


def test_untuned_envoy_sets_no_timeout_limit_or_policy() -> None:
    config = envoy()
    untune(config)
    text = yaml.safe_dump(config)
    assert not [word for word in ("lb_policy", "thresholds", "timeout") if word in text]


def test_tuned_envoy_checks_ejects_and_retries_in_every_way_in() -> None:
    config = envoy()
    tune(config)
    for cluster in config["static_resources"]["clusters"]:
        assert cluster["health_checks"]
        assert cluster["outlier_detection"]
        assert cluster["lb_policy"] == "LEAST_REQUEST"
    for listener in config["static_resources"]["listeners"]:
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        route = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
        assert route["retry_policy"]["num_retries"] == 3


def test_capacity_is_that_of_all_instances() -> None:
    assert capacity(3, 50.0) == 240.0


def played(*errors: str) -> Played:
    """A scenario whose requests failed so, for two contestants."""
    asked = [
        Asked(f"q{n}", Kind.GRPC, 1, 0.0, 0.1, outcomes=1, error=error)
        for n, error in enumerate(errors)
    ]
    rule = Rule("failed", 0, lambda evidence, name: len(evidence[name].counted()))
    evidence = {TRITON_LB: join([], []), TUNED: join(asked, [])}
    return Played(Scenario("row", "a fault", (), (rule,)), evidence)


def test_table_says_who_met_and_who_missed() -> None:
    rows = report.verdict_rows([played("lost")], [TRITON_LB, TUNED, UNTUNED])
    assert rows[1] == ("a fault", "failed", "0 ", "0 met", "1 missed", "")


def test_only_what_ours_missed_fails_the_run() -> None:
    assert report.missed([played("lost")]) == []
    broken = Played(Scenario("row", "a fault", (), ()), errors={TRITON_LB: "did not start"})
    assert report.missed([broken]) == ["row: did not start"]


def test_who_did_not_start_is_in_the_table() -> None:
    broken = Played(Scenario("row", "a fault", (), ()), errors={TRITON_LB: "did not start"})
    assert report.verdict_rows([broken], [TRITON_LB])[1] == ("a fault", "", "", "failed")


def test_page_has_both_tables() -> None:
    page = report.page([played("lost")], [TRITON_LB, TUNED], {"load": "108 requests/s"})
    assert "| a fault | failed | 0  | 0 met | 1 missed |" in page
    assert "| row | envoy-tuned |" in page
    assert "- load: 108 requests/s" in page


def test_summary_counts_failures_by_their_text() -> None:
    assert "2 x lost" in summary(played("lost", "lost").evidence[TUNED])


def held(*memory: float, files: int = 60, tasks: int = 22) -> list[soak.Sample]:
    return [soak.Sample(each, files, 3, tasks) for each in memory]


def test_growth_is_judged_after_the_warm_up() -> None:
    samples = held(*[100.0] * 10, files=50, tasks=20) + held(*[120.0] * 30)
    assert set(soak.growth(samples).values()) == {0.0}
    samples[-10:] = held(*[125.0] * 10, files=61, tasks=29)
    found = soak.growth(samples)
    assert (found["memory"], found["files"], found["threads"], found["tasks"]) == (5.0, 1, 0, 7)
    assert soak.growth([]) == {}


def test_a_leak_is_told_from_a_step() -> None:
    step = soak.growth(held(*[100.0] * 80, *[108.0] * 80))
    assert (step["memory"], step["memory_trend"]) == (8.0, 0.0)
    leak = soak.growth(held(*(100.0 + number / 10 for number in range(160))))
    assert leak["memory_trend"] == pytest.approx(11.0)
