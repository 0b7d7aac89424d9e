"""Medians, ratios, targets and the pages that show them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.load import plots, report
from benchmarks.load.bench import Clock, Plan
from benchmarks.load.cells import select
from benchmarks.load.processes import Cores
from benchmarks.load.report import Report
from benchmarks.load.results import Result, Results, Row, Sample, ratio
from benchmarks.load.sections import Section, Verdict
from benchmarks.load.tables import aligned, piped
from benchmarks.load.targets import judge

PROXIES = ["triton-lb", "envoy", "haproxy"]


def _sample(cpu_us: float) -> Sample:
    return Sample(cpu_us, 1000.0, 1.0, 2.0, 3.0, 1 << 20, 0.9, 0.0, 0.5)


def _row(ours: float, envoy: float, haproxy: float) -> Row:
    return {
        "direct": Result([_sample(0.0)]),
        "triton-lb": Result([_sample(ours)]),
        "envoy": Result([_sample(envoy)]),
        "haproxy": Result([_sample(haproxy)]),
    }


def _report(results: Results) -> Report:
    plan = Plan(select(list(results)), PROXIES, 3, 1.0, 2, Cores(0, 1, 1))
    titles = {cell.name: cell.title for cell in plan.cells}
    return Report(plan, {"date": "today"}, results, judge(results, titles))


def test_median_is_taken_over_rounds_and_absent_after_an_error() -> None:
    samples = [_sample(30.0), _sample(10.0), _sample(20.0)]
    median = Result(samples).median()
    assert median is not None
    assert median.cpu_us == 20.0
    assert Result(samples, error="closed").median() is None


def test_ratio_is_the_median_of_the_ratios_within_rounds() -> None:
    row = _row(0, 0, 0)
    row["triton-lb"].samples = [_sample(20.0), _sample(80.0), _sample(30.0)]
    row["envoy"].samples = [_sample(50.0), _sample(160.0), _sample(60.0)]
    assert ratio(row, "triton-lb", "envoy") == 0.5
    assert ratio(row, "triton-lb", "envoy", "p99_us") == 1.0
    assert ratio(row, "triton-lb", "nginx") is None
    row["envoy"].error = "reset"
    assert ratio(row, "triton-lb", "envoy") is None


def test_the_page_shows_the_ratio_to_each_peer() -> None:
    text = report.as_text(_report({"http-small-16": _row(20.0, 50.0, 12.5)}))
    line = next(line for line in text.splitlines() if line.count("20.0") == 1 and "12.5" in line)
    assert line.split()[-5:] == ["20.0", "50.0", "12.5", "0.40", "1.60"]
    page = report.as_markdown(_report({"http-small-16": _row(20.0, 50.0, 12.5)}), {"CPU": "a.png"})
    assert "| 20.0 | 50.0 | 12.5 | 0.40 | 1.60 |" in page
    assert "![CPU](a.png)" in page


def test_targets_are_met_or_missed_by_the_ratio_to_the_peer_they_name() -> None:
    verdicts = _report({"http-small-16": _row(24.9, 50.0, 12.0)}).verdicts
    assert [(each.to, each.word) for each in verdicts] == [("envoy", "met"), ("haproxy", "missed")]


def test_a_target_against_our_own_figure_compares_two_cells() -> None:
    results = {"http-backends-2": _row(20.0, 50, 10), "http-backends-200": _row(22.0, 90, 10)}
    (verdict,) = _report(results).verdicts
    assert verdict.measured == pytest.approx(1.1)
    assert verdict.word == "met"
    results["http-backends-2"]["triton-lb"].error = "closed"
    (verdict,) = _report(results).verdicts
    assert verdict.word == "not measured"


def test_the_p99_target_looks_at_latency_not_at_cpu() -> None:
    name = "http-small-64-half-rate"
    row = _row(90.0, 10.0, 10.0)
    row["triton-lb"].samples = [replace(_sample(90.0), p99_us=1.0)]
    verdicts = judge({name: row}, {})
    assert [(each.to, each.measured, each.word) for each in verdicts] == [
        ("envoy", 0.5, "met"),
        ("haproxy", 0.5, "no limit"),
    ]


def test_triton_lb_and_triton_lb_compiled_are_judged_side_by_side() -> None:
    row = _row(40.0, 50.0, 10.0)
    row["triton-lb-compiled"] = Result([_sample(15.0)])
    verdicts = judge({"http-small-16": row}, {})
    assert [(each.of, each.to, each.word) for each in verdicts] == [
        ("triton-lb", "envoy", "missed"),
        ("triton-lb-compiled", "envoy", "met"),
        ("triton-lb", "haproxy", "missed"),
        ("triton-lb-compiled", "haproxy", "met"),
    ]
    plan = Plan(
        select(["http-small-16"]), [*PROXIES, "triton-lb-compiled"], 3, 1.0, 2, Cores(0, 1, 1)
    )
    page = report.as_markdown(Report(plan, {}, {"http-small-16": row}, verdicts), {})
    assert "triton-lb meets 0 of 2; triton-lb-compiled meets 2 of 2." in page
    assert "| envoy | 0.60 | 0.80 missed (+33%) | 0.30 met (-50%) |" in page
    assert "| 0.80 (0.30) | 4.00 (1.50) |" in page


def test_builds_of_another_commit_are_compared_with_the_same_build_of_ours() -> None:
    names = ["triton-lb", "triton-lb-compiled", "triton-lb@base", "triton-lb-compiled@base"]
    row = {
        name: Result([_sample(cpu_us)])
        for name, cpu_us in zip(names, (40.0, 15.0, 50.0, 12.0), strict=True)
    }
    results = {"http-small-16": row}
    against = dict(zip(names[:2], names[2:], strict=True))
    plan = Plan(select(list(results)), names, 3, 1.0, 2, Cores(0, 1, 1), against=against)
    done = Report(plan, {}, results)
    page = report.as_markdown(done, {})
    assert "| to triton-lb@base | to triton-lb-compiled@base |" in page
    assert "| 40.0 | 15.0 | 50.0 | 12.0 | 0.80 | 1.25 |" in page
    (cell,) = json.loads(report.as_json(done))["cells"].values()
    assert cell["proxies"]["triton-lb-compiled@base"]["triton_lb_to_it"] == 1.25


def test_what_has_no_limit_shows_its_figure_alone() -> None:
    assert Verdict("", "", "haproxy", 0.4, None).text == "0.40"
    assert Verdict("", "", "haproxy", None, None).text == "not measured"


def test_peers_that_were_not_in_the_run_have_no_verdicts_and_failures_are_not_measured() -> None:
    row = _row(20.0, 50.0, 12.0)
    row["envoy"].error = "reset"
    del row["haproxy"]
    (verdict,) = judge({"http-small-16": row}, {})
    assert (verdict.to, verdict.word) == ("envoy", "not measured")


def test_a_verdict_is_about_the_figure_as_it_is_printed() -> None:
    assert Verdict("", "", "", 0.604, 0.6).word == "met"
    assert Verdict("", "", "", 0.606, 0.6).word == "missed"


def test_failures_and_what_was_left_out_are_told_with_their_reasons() -> None:
    row = _row(20.0, 50.0, 12.5)
    row["triton-lb"].error = "3 errors"
    row["haproxy"] = Result(left_out="cannot do it")
    done = _report({"http-small-16": row})
    text = report.as_text(done)
    assert done.failures() == ["http-small-16: triton-lb: 3 errors"]
    assert "http-small-16: haproxy: cannot do it" in text
    assert "| failed | 50.0 | - |" in report.as_markdown(done, {})


def test_other_parts_add_their_tables_verdicts_and_failures() -> None:
    verdict = Verdict("10,000 idle", "idle", "envoy", 1.5, 1.0)
    section = Section(
        "idle",
        "Idle connections",
        [("a", "b"), ("1", "2")],
        "why",
        {"x": 1},
        [verdict],
        ["idle: envoy: out of files"],
    )
    plan = Plan([], PROXIES, 3, 1.0, 2, Cores(0, 1, 1))
    done = Report(plan, {}, {}, section.verdicts, [section])
    assert "IDLE CONNECTIONS" in report.as_text(done)
    assert "## Idle connections" in report.as_markdown(done, {})
    stored = json.loads(report.as_json(done))
    assert stored["sections"] == {"idle": {"x": 1}}
    assert stored["targets"][0]["verdict"] == "missed"
    assert done.failures() == ["idle: envoy: out of files"]


def test_json_has_every_sample_and_our_ratio_to_each_proxy() -> None:
    row = _row(20.0, 50.0, 12.5)
    for name in PROXIES:  # direct is measured once only
        row[name].samples *= 3
    stored = json.loads(report.as_json(_report({"http-small-16": row})))
    envoy = stored["cells"]["http-small-16"]["proxies"]["envoy"]
    assert envoy["median"]["cpu_us"] == envoy["samples"][0]["cpu_us"] == 50.0
    assert envoy["triton_lb_to_it"] == 0.4


def test_tables_put_figures_to_the_right_and_words_to_the_left() -> None:
    rows = [("cell", "proxy", "us"), ("a", "x", "7"), ("a", "long", "100")]
    assert aligned(rows).splitlines() == [
        "cell  proxy   us",
        "----------------",
        "a     x        7",
        "      long   100",
    ]
    assert piped(rows).splitlines()[1] == "|---|---:|---:|"


def test_dear_cells_are_drawn_apart_and_cells_at_a_given_rate_elsewhere() -> None:
    results = {
        "http-small-64": _row(20, 50, 10),
        "http-small-64-half-rate": _row(50, 90, 40),
        "http-image-16": _row(400, 450, 500),
    }
    small, large = plots.split_by_cost(_report(results))
    assert [cell.name for cell in small] == ["http-small-64"]
    assert [cell.name for cell in large] == ["http-image-16"]


def test_the_number_of_backends_is_drawn_in_order_and_only_if_it_varies() -> None:
    row = _row(20, 50, 10)
    series = plots.backend_series(_report({"http-backends-200": row, "http-backends-8": row}))
    assert [count for count, _ in series["http"]] == [8, 200]
    assert plots.backend_series(_report({"http-backends-8": row})) == {}


def test_without_matplotlib_there_are_no_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert plots.draw(_report({"http-small-64": _row(20, 50, 10)}), tmp_path) == {}


def test_a_run_is_late_when_more_of_its_time_has_passed_than_of_its_work() -> None:
    clock = Clock(seconds=0.0, effort=10.0)
    assert clock.is_late(1.0)
    clock = Clock(seconds=1e6, effort=10.0)
    assert not clock.is_late(1.0)
