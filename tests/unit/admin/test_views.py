from __future__ import annotations

import asyncio
import json

import pytest

from lb.admin.answers import json_in_steps, to_json
from lb.admin.models import Backend, Latency, Model, Status
from lb.admin.openapi import openapi_document
from lb.admin.views import backend_view, model_views, models_view, quantile, status_view
from lb.control.model_placement import PlacementStatus
from lb.control.record import Setup
from lb.domain.backend import LATENCY_BOUNDS_S, AdminState, AppProtocol
from lb.domain.load import DeviceLoad, LoadReport, ModelLoad
from lb.domain.model import ModelEntry, ModelState
from lb.health.models import ModelList
from lb.kserve.repository import Region
from tests.fakes.pool import READY_AT, make_pool
from tests.unit.admin.schema import problems

DOCUMENT = openapi_document("1.2.3")
HTTP, GRPC = AppProtocol.HTTP, AppProtocol.GRPC


# Backends


def test_a_view_says_state_reason_and_load() -> None:
    directory = make_pool()
    backend = directory.find("a").backend
    backend.in_flight = 5
    http, grpc = backend.port(HTTP), backend.port(GRPC)
    http.in_flight, http.connections, grpc.in_flight = 3, 4, 2
    http.codes = {200: 7, 500: 1}
    grpc.codes = {0: 2}
    http.failures = {"upstream_lost": 3}
    a, b = (backend_view(record, 111.0) for record in directory.records)
    assert (a.name, a.state, a.why, a.since_s) == ("a", "up", "", 10.0)
    assert (a.in_flight, a.served, a.weight, a.max_requests, a.empty) == (5, 10, 2.0, 8, False)
    assert list(a.ports) == ["http", "grpc"]
    port = a.ports["http"]
    assert (port.address, port.in_flight, port.connections) == ("127.0.0.1:8000", 3, 4)
    assert (port.served, port.failed, port.changes) == (8, 3, 1)
    assert (b.state, b.why, b.empty) == ("down", "grpc: closed", True)
    assert [port.state for port in b.ports.values()] == ["up", "down"]
    assert b.ports["grpc"].why == "closed"


def test_the_operator_comes_first_in_the_reason() -> None:
    directory = make_pool()
    directory.set_admin("b", AdminState.DRAINING, 105.0)
    view = backend_view(directory.find("b"), 106.0)
    assert (view.state, view.why, view.since_s) == ("draining", "operator; grpc: closed", 1.0)


def test_latency_covers_both_ports_in_milliseconds() -> None:
    directory = make_pool()
    backend = directory.find("a").backend
    backend.port(HTTP).latency.counts[0] = 50
    backend.port(GRPC).latency.counts[-1] = 50
    view = backend_view(directory.find("a"), 111.0)
    assert view.latency == Latency(
        p50_ms=1000 * LATENCY_BOUNDS_S[0], p99_ms=1000 * LATENCY_BOUNDS_S[-1]
    )
    assert view.ports["http"].latency.p99_ms == 495 * 2 * LATENCY_BOUNDS_S[0]
    assert backend_view(directory.find("b"), 111.0).latency == Latency(p50_ms=None, p99_ms=None)


def test_a_backend_is_json_as_documented() -> None:
    directory = make_pool()
    directory.find("a").backend.ports[0].latency.counts[3] = 5  # type: ignore[union-attr]
    gpu = DeviceLoad(device=b"GPU-1", utilization=0.35, memory_total=16e9)
    models = {b"m": ModelLoad(pending=3.0)}
    directory.find("a").load = LoadReport(at=110.0, models=models, devices=(gpu,), others=0.12345)
    for name in ("a", "b"):
        view = backend_view(directory.find(name), 111.0)
        document = json.loads(to_json(view))
        assert problems(document, "Backend", DOCUMENT) == []
        assert Backend.model_validate(document) == view


def test_what_a_backend_says_of_its_load_is_shown() -> None:
    directory = make_pool()
    gpu = DeviceLoad(device=b"GPU-1", utilization=0.35, memory_used=1e9, memory_total=16e9)
    models = {b"m": ModelLoad(pending=3.0)}
    directory.find("a").load = LoadReport(at=110.0, models=models, devices=(gpu,), others=0.12345)
    assert backend_view(directory.find("a"), 111.0).load.model_dump() == {
        "age_s": 1.0,
        "pending": 3.0,
        "others": 0.123,
        "devices": [
            {
                "id": "GPU-1",
                "utilization": 0.35,
                "memory_used_bytes": 1e9,
                "memory_total_bytes": 16e9,
            }
        ],
    }
    silent = backend_view(directory.find("b"), 111.0).load.model_dump()
    assert silent == {"age_s": None, "pending": 0.0, "others": None, "devices": []}


def test_numbers_are_rounded_and_in_the_units_of_their_names() -> None:
    view = backend_view(make_pool().find("b"), 111.123456)
    assert view.since_s == 10.123
    assert view.ports["http"].probe_ms == 2.0


def test_a_summary_names_the_backends_that_are_not_up() -> None:
    directory = make_pool()
    directory.find("a").backend.in_flight = 2
    directory.find("b").backend.port(HTTP).codes = {200: 7}
    assert status_view(directory, "1.2.3", ()) == Status(
        version="1.2.3",
        backends=2,
        up=1,
        not_up={"b": "down"},
        in_flight=2,
        served=7,
        changed_shares=[],
    )


def test_a_quantile_is_linear_inside_its_bucket() -> None:
    counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
    assert quantile(counts, 0.5) is None
    counts[1] = 10
    low, high = LATENCY_BOUNDS_S[0], LATENCY_BOUNDS_S[1]
    assert quantile(counts, 0.5) == pytest.approx((low + high) / 2)
    assert quantile(counts, 1.0) == pytest.approx(high)


def test_a_quantile_above_the_last_bound_is_that_bound() -> None:
    counts = [0] * len(LATENCY_BOUNDS_S) + [3]
    assert quantile(counts, 0.5) == LATENCY_BOUNDS_S[-1]


# Models


async def models(*entries: ModelEntry) -> str:
    pool = make_pool()
    record = pool.find("a")
    record.models.listed(ModelList(entries), READY_AT)
    record.learn(Setup(regions=(Region("r", "/k", 0, 8),), cuda=frozenset({"c"})))
    return await json_in_steps(
        models_view(pool, record, READY_AT + 2), "models", model_views(record, PlacementStatus())
    )


async def test_the_models_of_a_backend_are_as_documented() -> None:
    document = json.loads(
        await models(
            ModelEntry(b"simple", b"1", ModelState.READY),
            ModelEntry(b"other", b"", ModelState.UNAVAILABLE, "unloaded"),
        )
    )
    assert document == {
        "listed": True,
        "age_s": 2.0,
        "models": [
            {
                "name": "simple",
                "version": "1",
                "state": "ready",
                "reason": "",
                "draining": False,
                "placement": "",
            },
            {
                "name": "other",
                "version": "",
                "state": "unavailable",
                "reason": "unloaded",
                "draining": False,
                "placement": "",
            },
        ],
        "regions": ["c", "r"],
        "drift": {"models": [], "configurations": [], "settings": []},
    }
    assert problems(document, "Models", DOCUMENT) == []


async def test_text_of_a_backend_that_is_no_unicode_is_json_all_the_same() -> None:
    reason = 'half a pair: \ud800, "models":[]'
    text = await models(ModelEntry(b"m", b"1", ModelState.UNAVAILABLE, reason))
    assert json.loads(text.encode())["models"][0]["reason"] == reason


async def test_a_long_array_is_made_in_steps() -> None:
    entries = [ModelEntry(b"m%d" % number, b"1", ModelState.READY) for number in range(1000)]
    making = asyncio.ensure_future(models(*entries))
    iterations = 0
    while not making.done():
        await asyncio.sleep(0)
        iterations += 1
    assert [each["name"] for each in json.loads(making.result())["models"]] == [
        f"m{number}" for number in range(1000)
    ]
    assert iterations > 5


def test_a_newer_server_may_say_more() -> None:
    document = {"name": "m", "version": "1", "state": "napping", "reason": "", "since_s": 1}
    assert Model.model_validate(document).state == "napping"
