"""What the live document says of backends, variants and models that are loaded on demand."""

from __future__ import annotations

from typing import Any

import pytest

from lb.admin.live import LiveView
from lb.admin.live_placement import placement_rows
from lb.admin.live_variants import variant_rows
from lb.control.directory import BackendDirectory
from lb.control.model_placement import PlacedModel, PlacementStatus
from lb.domain.backend import LATENCY_BOUNDS_S, AdminState, Histogram
from lb.domain.load import DeviceLoad, LoadReport
from lb.domain.model import ModelEntry, ModelState
from lb.domain.operation import Operation, OperationKind
from lb.domain.outcome import Reason
from lb.domain.schedule import ModelBackendView, ModelQueueView
from lb.health.models import ModelList
from lb.placing.planner import Failure, Step
from lb.telemetry.collector import ModelTableStatus
from lb.telemetry.meter import Meter
from lb.telemetry.variants import VariantStatus
from tests.fakes.live import FakeClock, live_sources, read_live
from tests.fakes.pool import make_pool
from tests.fakes.records import grpc_record
from tests.unit.admin.test_live import large_pool, settle

_USUAL: dict[str, Any] = {
    "name": "bert", "variant": "new", "model": "bert_v2", "version": "", "percent": 5.0,
    "file_percent": 5.0, "is_ready": True, "answers": 10, "errors": 1,
    "changed": "", "why": "", "rollbacks": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "note"),
    [
        ({}, ""),
        ({"is_ready": False, "percent": 1.0}, "not ready, gets nothing"),
        (
            {"rollbacks": {"errors": 1}, "why": "new: 9 % of answers failed", "percent": 0.0},
            "rolled back: new: 9 % of answers failed",
        ),
        (
            {"rollbacks": {"errors": 1}, "why": "other: slow", "percent": 50.0, "changed": "api"},
            "5 % in the file, changed by api",
        ),
    ],
)
def test_a_variant_says_what_is_not_as_in_the_file(facts: dict[str, Any], note: str) -> None:
    (row,) = variant_rows([VariantStatus(**{**_USUAL, "durations": Histogram(), **facts})])
    assert (row["name"], row["model"], row["note"]) == ("bert/new", "bert_v2", note)
    assert row["p99_ms"] is None


def test_a_variant_has_the_version_and_the_latency_of_its_answers() -> None:
    durations = Histogram()
    durations.counts[LATENCY_BOUNDS_S.index(0.005)] = 1
    (row,) = variant_rows([VariantStatus(**{**_USUAL, "durations": durations, "version": "3"})])
    assert row["model"] == "bert_v2:3"
    assert 2.5 < (row["p99_ms"] or 0.0) <= 5.0


def _placed(model: bytes, backend: str = "a", state: str = "ready") -> PlacedModel:
    return PlacedModel(
        model=model, backend=backend, state=state, age_s=1.0, value=1.0, load=0.1, size=0,
        size_source="guessed", kept="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "step", "note"),
    [
        ("on_demand", Step(b"gpt", "a", ()), "loading gpt"),
        ("on_demand", Step(b"gpt", "a", (b"old", b"bert")), "loading gpt in place of old, bert"),
        ("on_demand", Step(None, "a", (b"old",)), "unloading old"),
        ("observe", Step(None, "a", (b"old",)), "would unload old"),
        ("observe", Step(b"gpt", "a", (b"old",)), "would load gpt in place of old"),
        ("on_demand", Step(b"gpt", "gone", ()), "bad was not loaded: no memory"),
    ],
)
def test_placement_says_what_is_done_or_what_failed(mode: str, step: Step, note: str) -> None:
    failure = Failure("no memory", 100.0, 1)
    status = PlacementStatus(
        mode=mode,
        managed=("a",),
        models=(_placed(b"bert"), _placed(b"gpt", state="loading")),
        steps=(step,),
        failures=((b"bad", "a", failure), (b"worse", "a", failure), (b"bad", "gone", failure)),
    )
    (row,) = placement_rows(status)
    assert row["models"] == ["bert", "gpt (loading)"]
    assert (row["room"], row["note"]) == ("2", note)


def test_of_very_many_models_some_are_named() -> None:
    models = tuple(_placed(b"m%d" % number) for number in range(15))
    (row,) = placement_rows(PlacementStatus(managed=("a",), max_models=20, models=models))
    assert row["models"] == [*(f"m{number}" for number in range(12)), "and 3 more"]
    assert row["room"] == "15 of 20"


def _verdict(directory: BackendDirectory, now: float) -> tuple[str, str]:
    summary = read_live(LiveView(live_sources(directory), FakeClock(now)))["summary"]
    return summary["verdict"], summary["why"]


def test_the_sentence_counts_backends_that_somebody_put_away() -> None:
    directory = large_pool(6, 100.0)
    assert _verdict(directory, 101.0) == ("good", "All 6 backends are up.")
    for number in range(5):
        directory.set_admin(f"gpu-{number}", AdminState.DISABLED, 102.0)
    verdict, why = _verdict(directory, 103.0)
    assert verdict == "good"
    assert why.startswith("1 backend is up; gpu-0 is disabled, ")
    assert why.endswith(", and 2 others are not in use.")


def test_without_backends_nothing_is_good() -> None:
    assert _verdict(large_pool(0, 100.0), 101.0) == ("bad", "There are no backends.")
    assert _verdict(large_pool(1, 100.0), 101.0) == ("good", "The only backend is up.")


def test_the_worst_of_several_is_named_and_the_others_are_counted() -> None:
    directory = large_pool(4, 100.0)
    for name in ("gpu-1", "gpu-2"):
        directory.find(name).outlier_reason = "ejected for bert"
    assert _verdict(directory, 101.0) == (
        "degraded",
        "gpu-1 is up, but not for every model: ejected for bert. 1 other backend is ill too.",
    )


def test_where_most_requests_fail_that_is_worse_than_an_ill_backend() -> None:
    directory, meter, clock = large_pool(2, 100.0), Meter(), FakeClock(101.0)
    view = LiveView(live_sources(directory, meter), clock)
    read_live(view)
    for _ in range(10):
        meter.finished(grpc_record(reason=Reason.UPSTREAM_LOST, grpc_status=14))
    clock.now += 1.0
    summary = read_live(view)["summary"]
    assert (summary["verdict"], summary["why"]) == (
        "bad", "10 requests per second fail, most with upstream_lost.",
    )  # fmt: skip


def test_streams_count_as_requests_and_other_calls_do_not() -> None:
    meter, clock = Meter(), FakeClock(101.0)
    view = LiveView(live_sources(large_pool(1, 100.0), meter), clock)
    read_live(view)
    for kind in (OperationKind.STREAM, OperationKind.STREAM, OperationKind.OTHER):
        meter.finished(grpc_record(operation=Operation(kind.value, kind)))
    clock.now += 1.0
    assert read_live(view)["summary"]["requests"] == 2.0


def test_models_that_a_backend_is_loading_are_counted() -> None:
    directory = large_pool(1, 100.0)
    entries = [
        ModelEntry(b"m%d" % number, b"1", state)
        for number, state in enumerate([ModelState.READY, *[ModelState.LOADING] * 3])
    ]
    directory.find("gpu-0").models.listed(ModelList(tuple(entries)), 100.0)
    table = ModelTableStatus(backend="gpu-0", ready=1, age_s=1.0, missing=2, differing=0)
    view = LiveView(live_sources(directory, tables=lambda: [table]), FakeClock(101.0))
    (shown,) = read_live(view)["backends"]
    assert shown["models"] == {"ready": 1, "loading": 3, "missing": 2, "different": 0}


def test_queued_requests_of_all_versions_of_a_model_count_together() -> None:
    queues = [
        ModelQueueView(model=b"m", version=b"1", waiting={0: 3}, oldest_s=2.0),
        ModelQueueView(model=b"m", version=b"2", waiting={0: 1, 1: 1}, oldest_s=0.5),
        ModelQueueView(model=b"n", version=b"", waiting={}, oldest_s=0.0),
    ]
    sources = live_sources(make_pool(), queued=lambda: 5, model_queues=lambda _: queues)
    models = read_live(LiveView(sources, FakeClock(111.0)))["models"]
    shown = {each["name"]: (each["queued"], each["oldest_ms"]) for each in models}
    assert shown["m"] == (5, 2000.0)
    assert shown.get("n", (0, 0.0))[0] == 0


def test_a_backend_shows_its_devices_and_what_was_learnt_of_busy_models() -> None:
    directory, meter, clock = make_pool(), Meter(), FakeClock(111.0)
    settle(directory, 105.0)
    record = directory.find("a")
    gpus = (
        DeviceLoad(device=b"0", utilization=0.25, memory_used=1e9, memory_total=4e9),
        DeviceLoad(device=b"1", utilization=0.75, memory_used=2e9, memory_total=4e9),
        DeviceLoad(device=b"2"),
    )
    record.load = LoadReport(at=110.0, devices=gpus)
    directory.find("b").load = LoadReport(at=110.0, devices=(DeviceLoad(device=b"0"),))
    learnt = ModelBackendView(
        model=b"m", version=b"", backend=record.backend, in_flight=1, limit=2, expected_s=0.005,
        row_s=0.0, learnt=9, slowed=1.5,
    )  # fmt: skip
    view = LiveView(live_sources(directory, meter, model_backends=lambda _: [learnt]), clock)
    read_live(view)
    for _ in range(2):
        for _ in range(10):
            meter.finished(grpc_record(backend=record.backend, model=b"m"))
        clock.now += 2.0
        backends = {each["name"]: each for each in read_live(view)["backends"]}
    assert backends["a"]["gpu"] == {
        "devices": 3, "utilization": 0.75, "memory_used": 3e9, "memory_total": 8e9,
    }  # fmt: skip
    assert backends["b"]["gpu"] == {
        "devices": 1, "utilization": None, "memory_used": None, "memory_total": None,
    }  # fmt: skip
    assert backends["a"]["main_models"] == [
        {"model": "m", "ms": 5.0, "in_flight": 1, "limit": 2, "slowed": 1.5}
    ]
    assert backends["b"]["main_models"] == []
