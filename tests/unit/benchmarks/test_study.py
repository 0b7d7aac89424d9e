"""The scheduling study: what is played, what it comes to, the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.load.backend import TEMPLATES
from benchmarks.load.processes import BenchError
from benchmarks.load.proxies import ENVOY, HAPROXY, TRITON_LB
from benchmarks.study import goals, report, scaling
from benchmarks.study.bound import PERFECT, bound, dispatch, is_apt
from benchmarks.study.contestants import (
    CONTESTANTS,
    ENVOY_LEAST,
    ENVOY_WEIGHTED,
    HAPROXY_TUNED,
    contestant,
    peers,
)
from benchmarks.study.figures import Figures, Run, by_kind, failures, figures, middle
from benchmarks.study.generator import HTTP, Job, Outcome
from benchmarks.study.gpus import Gpu, limits, one, speeds, tuned_limits, write_repository
from benchmarks.study.journal import Journal, Key
from benchmarks.study.parts import UNEQUAL, chosen, duration_s, limited_to, parts
from benchmarks.study.session import Played, capacity, fingerprint
from benchmarks.study.trace import Arrival, Kind, arrivals
from benchmarks.study.wires import GOOD, LATE


def outcome(due: float, took: float, what: str = GOOD, kind: int = 0) -> Outcome:
    return Outcome(kind, due, due, due + took, what)


def run(p99: float, *, goodput: float = 100.0, batch: float = 1.0) -> Run:
    made = Figures(100, 100.0, goodput, p99 / 2, p99, p99, p99, 0.0)
    return Run(made, {}, 100.0, [0.5], batch, [1.0], 0.1)


# What is played


def test_every_part_has_a_name_and_contestants_of_its_own() -> None:
    names = [each.name for each in parts()]
    assert len(names) == len(set(names))
    for part in parts():
        assert part.steps
        assert part.contestants
        for name in part.contestants:
            assert contestant(name).name == name
        for step in part.steps:
            assert sum(map(bool, (step.rate, step.share, step.clients))) == 1
            assert {kind.model for kind in step.kinds} <= set(part.fleet[0])


def test_the_core_takes_about_twenty_minutes_and_everything_two_hours() -> None:
    core = sum(duration_s(part, 5) for part in chosen([], everything=False))
    whole = sum(duration_s(part, 5) for part in chosen([], everything=True))
    assert core <= 21 * 60
    assert whole + 9 * 60 <= 125 * 60


def test_parts_are_chosen_by_name_and_limited_to_contestants() -> None:
    (part,) = chosen(["unequal"], everything=False)
    assert limited_to(part, [TRITON_LB]).contestants == (TRITON_LB,)
    assert limited_to(part, []) == part
    with pytest.raises(ValueError, match="nobody"):
        chosen(["nobody"], everything=False)


def test_the_same_seed_gives_the_same_arrivals_at_the_rate_asked_for() -> None:
    kinds = (Kind("a", 3.0), Kind("b", 1.0))
    due = arrivals(200.0, 50.0, kinds, seed=7)
    assert due == arrivals(200.0, 50.0, kinds, seed=7)
    assert due != arrivals(200.0, 50.0, kinds, seed=8)
    assert len(due) == pytest.approx(10_000, rel=0.05)
    assert sum(each.kind for each in due) == pytest.approx(2_500, rel=0.1)
    assert [each.at for each in due] == sorted(each.at for each in due)


def test_a_job_survives_the_way_to_its_process() -> None:
    job = Job(HTTP, 80, (Kind(fields=(("a", "b"),), deadline_ms=5.0),), 1.0, 3, rate=9.0)
    assert Job.from_json(job.as_json()) == job


# Tritons


def test_speeds_and_limits_are_those_of_the_tuned_peer() -> None:
    assert speeds(UNEQUAL) == [8.0, 4.0, 1.0]
    assert limits(UNEQUAL) == [1, 1, 1]
    assert tuned_limits(UNEQUAL) == [4, 2, 1]


def test_a_batch_carries_more_than_one_row_after_the_other() -> None:
    gpu = Gpu(40.0, row_ms=2.5, max_batch=8)
    assert gpu.rate() == pytest.approx(1000 / 42.5)
    assert replace(gpu, batches=True).rate() == pytest.approx(8 * 1000 / 60)
    assert replace(gpu, instances=2).rate(2.0) == pytest.approx(2 * 1000 / 45)
    assert replace(gpu, batches=True).slots() == 8


def test_capacity_is_that_of_all_tritons_and_of_the_model_that_is_full_first() -> None:
    assert capacity(UNEQUAL, (Kind(),)) == pytest.approx(325.0)
    both = [{"cheap": Gpu(5.0), "dear": Gpu(40.0)}]
    kinds = (Kind("c", 0.8, model="cheap"), Kind("d", 0.2, model="dear"))
    assert capacity(both, kinds) == pytest.approx(125.0)


def test_a_repository_says_what_the_gpu_is(tmp_path: Path) -> None:
    write_repository(tmp_path, one(Gpu(5.0, instances=2, max_batch=8, batches=True)))
    config = (tmp_path / "gpu" / "config.pbtxt").read_text()
    for part in ("max_batch_size: 8", "count: 2", "dynamic_batching", 'string_value: "5.0"'):
        assert part in config
    assert (tmp_path / "gpu" / "1" / "model.py").exists()


# Contestants


def test_names_are_found_and_commits_of_ours_too() -> None:
    assert contestant(f"{TRITON_LB}@HEAD~1").revision == "HEAD~1"
    for name in ("nobody", "envoy-least@HEAD"):
        with pytest.raises(BenchError, match=name):
            contestant(name)
    assert TRITON_LB not in peers()
    assert ENVOY_LEAST in peers()


def test_configurations_still_have_what_is_changed_in_them() -> None:
    assert "  timeout connect 1s\n" in (TEMPLATES / "haproxy.cfg").read_text()
    assert "lb_policy: LEAST_REQUEST" in (TEMPLATES / "envoy.yaml").read_text()
    assert all(each.proxy for each in CONTESTANTS.values())


def test_servers_are_listed_with_weights_and_limits(tmp_path: Path) -> None:
    from benchmarks.study.fleet import Address

    addresses = [Address(f"t{n}", 8000 + n, 9000 + n, 7000 + n) for n in range(3)]
    tuned = CONTESTANTS[HAPROXY_TUNED].servers(addresses, UNEQUAL, is_grpc=False)
    assert tuned.splitlines()[0] == "server b0 127.0.0.1:8000 weight 80 maxconn 4"
    assert "server b2 127.0.0.1:8002 weight 10 maxconn 1" in tuned
    weighted = CONTESTANTS[ENVOY_WEIGHTED].servers(addresses, UNEQUAL, is_grpc=True)
    listed = yaml.safe_load(f"[{weighted}]")
    assert [each["load_balancing_weight"] for each in listed] == [8, 4, 1]
    plain = CONTESTANTS[ENVOY_LEAST].servers(addresses, UNEQUAL, is_grpc=False)
    assert "weight" not in plain
    assert {CONTESTANTS[name].proxy for name in (HAPROXY_TUNED, ENVOY_LEAST)} == {HAPROXY, ENVOY}


# Figures


def test_only_good_answers_have_latencies_and_only_those_in_time_are_goodput() -> None:
    outcomes = [outcome(0.0, 0.010), outcome(0.5, 0.300), outcome(1.0, 0.2, LATE)]
    found = figures(outcomes, seconds=2.0, budget_ms=200.0)
    assert (found.asked, found.rate, found.goodput) == (3, 1.0, 0.5)
    assert found.p99 == pytest.approx(300.0)
    assert found.failed == pytest.approx(1 / 3)
    assert failures(outcomes) == {LATE: 1}
    assert figures([], 1.0, 0.0).p99 == 0.0


def test_kinds_are_told_apart_where_there_are_several() -> None:
    outcomes = [outcome(0.0, 0.01), outcome(0.0, 0.05, kind=1)]
    kinds = (Kind("small"), Kind("large"))
    found = by_kind(outcomes, kinds, 1.0, 0.0)
    assert [each.p50 for each in found.values()] == [pytest.approx(10), pytest.approx(50)]
    assert by_kind(outcomes, kinds[:1], 1.0, 0.0) == {}


def test_the_middle_of_runs_is_taken_figure_by_figure() -> None:
    found = middle([run(10.0), run(30.0, goodput=80.0), run(20.0)])
    assert found.figures.p99 == 20.0
    assert found.figures.goodput == 100.0
    assert found.utilisation == [0.5]


# The bound


def ends(due: Sequence[float], fleet: Sequence[dict[str, Gpu]]) -> list[float]:
    some = [Arrival(at, 0) for at in due]
    return [each.ended for each in dispatch(some, (Kind(),), fleet)]


def test_the_perfect_dispatcher_waits_for_a_fast_one_where_that_is_sooner() -> None:
    fleet = [dict(each) for each in UNEQUAL]
    # At once: 5, 10 (either way), 15, 20 ms ...; the one of 40 ms is of use from the eighth on.
    found = ends([0.0] * 4, fleet)
    assert found == pytest.approx([0.005, 0.010, 0.010, 0.015])
    assert ends([0.0, 1.0], fleet) == pytest.approx([0.005, 1.005])


def test_instances_run_side_by_side() -> None:
    assert ends([0.0] * 3, [dict(one(Gpu(10.0, instances=2)))]) == pytest.approx([0.01, 0.01, 0.02])


def test_the_bound_grows_with_the_load_and_is_left_out_where_it_says_nothing() -> None:
    some = [
        bound(rate, 20.0, (Kind(),), UNEQUAL, seeds=(1, 2, 3), budget_ms=0.0).figures.p99
        for rate in (150.0, 240.0, 280.0)
    ]
    assert some == sorted(some)
    assert 10.0 < some[0] < 30.0
    assert is_apt((Kind(),), UNEQUAL, 100.0, 325.0)
    assert not is_apt((Kind(),), UNEQUAL, 400.0, 325.0)
    assert not is_apt((Kind(deadline_ms=1.0),), UNEQUAL, 100.0, 325.0)


# Journal, goals, page


def test_a_journal_is_gone_on_with_where_a_run_was_ended(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    journal = Journal(path)
    key = Key("unequal", "150/s", TRITON_LB, 0, "mark")
    journal.add(key, run(10.0))
    journal.add_times("unequal", "commit", [{"gpu": 5.5}])
    with path.open("a") as file:
        file.write('{"key": {"part"')
    again = Journal(path)
    assert key in again
    assert replace(key, fingerprint="other") not in again
    assert again.runs("unequal", "150/s", TRITON_LB, "mark") == [run(10.0)]
    assert again.times("unequal", "commit") == [{"gpu": 5.5}]
    assert again.times("unequal", "other") is None
    assert again.contestants("unequal") == [TRITON_LB]
    again.clear()
    assert key not in Journal(path)


def test_goals_compare_with_peers_and_with_the_bound() -> None:
    row = {TRITON_LB: run(50.0), HAPROXY_TUNED: run(49.0), PERFECT: run(40.0)}
    found = {goal.what: goal for goal in goals.judge("unequal", {"240/s": row}, {})}
    assert not found["p99 to that of the tuned HAProxy"].is_met
    assert found["p99 to the simulated bound"].text == "1.25 met"
    assert found["p50 to the best peer's"].is_met
    (goal,) = goals.judge("overload", {"200%": {TRITON_LB: run(1.0, goodput=97)}}, {"200%": 100.0})
    assert goal.is_met
    assert goal.limit_text == "at least 0.95"
    assert goals.judge("slices", {"50%": row}, {}) == []


def test_the_page_has_goals_tables_and_what_did_not_take_part(tmp_path: Path) -> None:
    (part,) = chosen(["unequal"], everything=False)
    part = limited_to(part, [TRITON_LB, HAPROXY_TUNED])
    journal = Journal(tmp_path / "study.jsonl")
    played = Played(part, list(part.fleet), {HAPROXY_TUNED: "it is missing"})
    for step in part.steps:
        mark = fingerprint(part, step, "this", 1.0)
        journal.add(Key(part.name, step.name, TRITON_LB, 0, mark), run(1000.0))
    made = report.chapter(played, journal, commit="this", scale=1.0)
    page = report.page([made], {"commit": "this"}, {"unequal": "x.png"}, "## More")
    for text in ("by sleeping", PERFECT, "it is missing", "![", "## More", "missed"):
        assert text in page
    assert len(report.missed([made])) == 3
    assert "unequal" in report.data([made], {})["parts"]


def test_the_fewest_slices_within_the_budget_are_found(tmp_path: Path) -> None:
    def level(rate: float, p90: float) -> Figures:
        return Figures(0, rate, rate, p90, p90, p90, 0.0, 0.0)

    levels = {
        scaling.Level(1, 1): level(45, 22.0),
        scaling.Level(1, 5): level(49, 102.0),
        scaling.Level(2, 5): level(98, 49.0),
        scaling.Level(2, 10): level(98, 100.0),
    }
    assert scaling.needed(levels, 50.0) == {1: 1, 5: 2}
    scaling.write_csv(levels, tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text().splitlines()[1] == "1,1,45.0,22.0,22.0,22.0"
    section = scaling.section(levels, "", "x.csv")
    assert "| needed for p90 within 50 ms | 1 | 2 | more |" in section
    assert scaling.section({}, "", "x.csv") == ""


def test_perf_analyzer_is_read_as_it_writes() -> None:
    found = scaling.parse(
        "Concurrency,Inferences/Second,Client Send,p50 latency,p90 latency,p99 latency\n"
        "1,47.5,30,20950,21400,22000\n5,243.1,35,20400,21900,24000\n"
    )
    assert found[5].rate == 243.1
    assert found[1].p90 == 21.4
    for report_of_another in ("", "Concurrency\n1\n"):
        with pytest.raises(BenchError):
            scaling.parse(report_of_another)
