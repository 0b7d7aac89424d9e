from __future__ import annotations

import json

from lb.admin.openapi import openapi_document
from lb.admin.render import render_backend
from lb.control.views import backend_view
from lb.domain.load import DeviceLoad, LoadReport, ModelLoad
from tests.fakes.pool import make_pool
from tests.unit.admin.schema import problems, resolve


def test_a_backend_is_rendered_in_the_documented_shape() -> None:
    document = openapi_document("1.2.3")
    schema = resolve("#/components/schemas/Backend", document)
    directory = make_pool()
    directory.find("a").backend.ports[0].latency.counts[3] = 5  # type: ignore[union-attr]
    gpu = DeviceLoad(device=b"GPU-1", utilization=0.35, memory_total=16e9)
    models = {b"m": ModelLoad(pending=3.0)}
    directory.find("a").load = LoadReport(at=110.0, models=models, devices=(gpu,), others=0.12345)
    for name in ("a", "b"):
        rendered = render_backend(backend_view(directory.find(name), 111.0))
        assert problems(json.loads(json.dumps(rendered)), schema, document) == []


def test_what_a_backend_says_of_its_load_is_shown() -> None:
    directory = make_pool()
    gpu = DeviceLoad(device=b"GPU-1", utilization=0.35, memory_used=1e9, memory_total=16e9)
    models = {b"m": ModelLoad(pending=3.0)}
    directory.find("a").load = LoadReport(at=110.0, models=models, devices=(gpu,), others=0.12345)
    assert render_backend(backend_view(directory.find("a"), 111.0))["load"] == {
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
    silent = render_backend(backend_view(directory.find("b"), 111.0))["load"]
    assert silent == {"age_s": None, "pending": 0.0, "others": None, "devices": []}


def test_numbers_are_rounded_and_in_the_units_of_their_names() -> None:
    rendered = render_backend(backend_view(make_pool().find("b"), 111.123456))
    assert rendered["since_s"] == 10.123
    assert rendered["ports"]["http"]["probe_ms"] == 2.0
    assert rendered["latency"] == {"p50_ms": None, "p99_ms": None}
    assert rendered["ports"]["grpc"]["why"] == "closed"
